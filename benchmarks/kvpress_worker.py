"""kvpress, one cell at a time, for `peer.py`: run by the Python of an environment in which kvpress is installed.

    python benchmarks/kvpress_worker.py MODEL_FOLDER DTYPE

Prints a line of JSON that says which versions run. After that it answers each line on its standard input, a cell,
with a line on its standard output.
"""

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from kvpress import (
    KeyDiffPress,
    KnormPress,
    KVPressTextGenerationPipeline,
    LagKVPress,
    RandomPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

PRESSES = {
    "random": RandomPress,
    "streaming_llm": StreamingLLMPress,
    "k_norm": KnormPress,
    "keydiff": KeyDiffPress,
    "snapkv": SnapKVPress,
    "tova": TOVAPress,
    "lagkv": LagKVPress,
}


def main() -> None:
    """Serve cells until the input ends."""
    folder, dtype = sys.argv[1:]
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    pipeline = KVPressTextGenerationPipeline(model=model, tokenizer=AutoTokenizer.from_pretrained(folder))
    versions = {name: version(name) for name in ("kvpress", "transformers", "torch")}
    say({**versions, "threads": torch.get_num_threads()})
    for line in sys.stdin:
        say(answer(pipeline, json.loads(line)))


def say(message: dict[str, Any]) -> None:
    """Write a line of JSON."""
    print(json.dumps(message), flush=True)


@torch.inference_mode()
def answer(pipeline: KVPressTextGenerationPipeline, cell: dict[str, Any]) -> dict[str, Any]:
    """Answer one cell as kvpress's pipeline does once it has tokenised; return the answer and the seconds."""
    n = len(cell["context"])
    ratio = 1 - (cell["budget"] + 0.5) / n  # of which kvpress keeps int(n · (1 − ratio)), the budget
    press = PRESSES[cell["press"]](compression_ratio=ratio)
    inputs = {"context_ids": torch.tensor([cell["context"]]), "questions_ids": [torch.tensor([cell["fed"]])]}
    started = time.perf_counter()
    (text,) = pipeline._forward(inputs, max_new_tokens=cell["new_tokens"], press=press)
    return {"answer": text, "seconds": time.perf_counter() - started}


if __name__ == "__main__":
    main()
