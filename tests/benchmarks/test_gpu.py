"""The benchmark for a GPU, at toy size on the processor."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def test_every_part_runs_at_toy_size(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    command = [sys.executable, str(SCRIPT), "--toy", "--device", "cpu", "--output", str(output)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    parts = json.loads(output.read_text())["parts"]
    left_out = {name for name, found in parts.items() if "left_out" in found}
    assert left_out <= {"prefill 64 flash_attention_2", "prefill 128 flash_attention_2"}  # needs its package
    assert parts["same answers"]["same"] == parts["same answers"]["cells"] == 57
    assert parts["sweep 96"]["cells"] == 28
    assert all(not found.get("failures") for found in parts.values())
    assert set(parts["ranking 64"]["share_of_prefill"]) >= {"h2o", "kvp", "snapkv"}
