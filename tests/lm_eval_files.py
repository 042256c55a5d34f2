"""Tasks of lm-eval as YAML files on local data, for both ways of running them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ANIMALS = ("heron", "otter", "lynx", "a tawny owl", "hedgehog", "badger", "stoat", "marten")
PLACES = (
    "the weir",
    "a hollow oak",
    "the old mill",
    "the reeds",
    "a stone wall",
    "the orchard",
    "the quarry",
    "a barn",
)


def write_task(folder: Path, name: str, rows: Sequence[Mapping[str, Any]], **config: Any) -> None:
    """Write a task and its rows; `config` is its YAML beside the name and the data."""
    data = folder / "data" / f"{name}.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **local, **config}))


def mean(*metrics: str) -> list[dict[str, Any]]:
    """Return a metric list of means."""
    return [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics]


def write_three(folder: Path, rows: int = 8) -> None:
    """Write `choice` (multiple choice with two examples), `reply` (generation with stop texts) and `ending` (one
    continuation of many tokens)."""
    seen = [
        {
            "animal": ANIMALS[number % len(ANIMALS)],
            "place": PLACES[(3 * number) % len(PLACES)],
            "others": [PLACES[(3 * number + step) % len(PLACES)] for step in range(4)],
            "right": number % 4,
        }
        for number in range(rows)
    ]
    for row in seen:
        row["others"].insert(row["right"], row["others"].pop(0))
    asked = "Day {{right}}: the {{animal}} was seen near {{place}}.\nQuestion: where was the {{animal}}?\nAnswer:"
    write_task(
        folder,
        "choice",
        seen,
        output_type="multiple_choice",
        doc_to_text=asked,
        doc_to_choice="{{others}}",
        doc_to_target="right",
        num_fewshot=2,
        fewshot_config={"sampler": "first_n", "split": "test"},
        metric_list=mean("acc", "acc_norm"),
        metadata={"version": 3.0},
    )
    write_task(
        folder,
        "reply",
        seen,
        output_type="generate_until",
        doc_to_text=asked,
        doc_to_target="{{place}}",
        generation_kwargs={"until": ["\n", "e"], "max_gen_toks": 14, "do_sample": False},
        metric_list=mean("exact_match"),
        filter_list=[
            {"name": "strict", "filter": [{"function": "take_first"}]},
            {
                "name": "loose",
                "filter": [{"function": "regex", "regex_pattern": "([a-z]+)"}, {"function": "take_first"}],
            },
        ],
    )
    write_task(
        folder,
        "ending",
        seen,
        output_type="loglikelihood",
        doc_to_text="On day {{right}} the {{animal}} was seen near ",
        doc_to_target="{{place}}, and nowhere else",
        metric_list=[
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            *mean("acc"),
        ],
    )


_WORDS = ("apple", "river", "candle", "window")
_SAID = (
    "The train was late again.",
    "Rain fell on the harbour all night.",
    "She bought three pounds of flour.",
    "The clock in the hall had stopped.",
    "A letter came from her brother.",
    "He painted the gate green.",
)


def write_passwords(folder: Path, rows: int = 12) -> None:
    """Write `password`, multiple choice whose answer stands in the context and nowhere else: chance is 1 in 4."""
    seen = []
    for number in range(rows):
        said = [_SAID[(number + step) % len(_SAID)] for step in range(len(_SAID))]
        said.insert(1 + number % 5, f"The password is {_WORDS[number % 4]}.")
        seen.append({"passage": " ".join(said), "right": number % 4})
    write_task(
        folder,
        "password",
        seen,
        output_type="multiple_choice",
        doc_to_text="{{passage}}\nQuestion: What is the password?\nAnswer: The password is",
        doc_to_choice=list(_WORDS),
        doc_to_target="right",
        metric_list=mean("acc"),
    )
