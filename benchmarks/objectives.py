"""The seven objectives side by side: held-out normalised cost against steps and seconds, on the same traces.

    python benchmarks/objectives.py TRACES [TRACES …] --layers 6 14 18 22 --out results/training/objectives.json

Network, initial weights, sequences, cuts, drawn tokens, learning rates and their schedule are the same for all; only
the loss differs. Run it on an idle machine: seconds are part of the result. Objectives that are in the file already,
of the same settings and traces, are not trained again.

The file holds one object:
    settings       what all share, as in an agents file (without the objective)
    identity       hash of the settings, the layers and the sequences
    layers         whose agents are trained
    model, agents, parameters    the model's name, how many agents there are, and parameters of each
    learned_from, held_out       how many sequences
    environment    machine and versions
    curves         {objective: [{step, seconds, cost, by_task, median, worst, worst_head}, …]}, where cost is the
                   normalised cost over all budgets (1 is the best possible), averaged over heads and held-out sequences
    exact_to_rloo  {cost, exact: {step, seconds}, rloo: {step, seconds}, steps_ratio, seconds_ratio}: the least cost
                   that RLOO reaches, and the first evaluation at which each is there; ratios are exact's part of RLOO's
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from kvbench.agents import AgentsInfo
from kvbench.environment import describe_environment
from kvbench.models import choose_device
from kvbench.records import content_hash
from kvbench.store import write_atomically
from kvbench.traces import Trace, TraceManifest
from kvbench.training.corpus import Corpus, split
from kvbench.training.objectives import OBJECTIVES
from kvbench.training.settings import make_settings, shape_of
from kvbench.training.trainer import Trainer


@dataclass(frozen=True)
class SomeLayers(Corpus):
    """A corpus of which only some layers are learned."""

    layers: tuple[int, ...] = ()

    @property
    def manifest(self) -> TraceManifest:
        """What the folders say of the model, with these layers only."""
        return super().manifest.model_copy(update={"layers": self.layers})

    def read(self, sequence: tuple[int, int]) -> Trace:
        """Read these layers of a sequence."""
        trace = super().read(sequence)
        rows = [super(SomeLayers, self).manifest.layers.index(layer) for layer in self.layers]
        future = {cut: received[rows] for cut, received in trace.future.items()}
        return replace(trace, keys=trace.keys[rows], values=trace.values[rows], future=future)


def main() -> None:
    """Train once per objective, writing what is known after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("results/training/objectives.json"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--layers", type=int, nargs="+", help="All by default.")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()

    console = Console()
    whole = Corpus.of(asked.traces)
    corpus = SomeLayers(whole.folders, whole.sequences, tuple(asked.layers or whole.manifest.layers))
    settings = make_settings("small", steps=asked.steps, evaluations=asked.evaluations, seed=asked.seed)
    parts = split(corpus, settings.held_out, settings.held_out_most, settings.seed)
    manifest = corpus.manifest
    info = AgentsInfo(
        model=manifest.model,
        weights=manifest.weights,
        layers=manifest.model_layers,
        kv_heads=manifest.kv_heads,
        shape=shape_of("small", manifest.head_dim),
    )
    shared = settings.model_dump(mode="json", exclude={"objective"})
    identity = content_hash(
        [shared, corpus.layers, [corpus.entry(s).model_dump(mode="json") for s in corpus.sequences]]
    )
    results: dict[str, Any] = {
        "settings": shared,
        "identity": identity,
        "model": manifest.model,
        "layers": corpus.layers,
        "agents": corpus.agents,
        "parameters": info.shape.parameters,
        "learned_from": len(parts.train),
        "held_out": len(parts.held_out),
        "environment": describe_environment().model_dump(mode="json"),
        "curves": _curves(asked.out, identity),
    }
    for objective in asked.objectives:
        if objective in results["curves"]:
            continue
        own = settings.model_copy(update={"objective": objective})
        trainer = Trainer(corpus, parts, info, own, choose_device(None))
        trainer.run(lambda e, name=objective: console.print(f"{name}: step {e.step}, {e.seconds:.0f} s, {e.cost:.3f}"))
        results["curves"][objective] = trainer.state.curve
        results["exact_to_rloo"] = ratio(results["curves"])
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(asked.out, json.dumps(results, indent=1) + "\n")


def _curves(file: Path, identity: str) -> dict[str, Any]:
    """Return the curves of an earlier run of the same settings and traces."""
    found = json.loads(file.read_text()) if file.is_file() else {}
    return dict(found["curves"]) if found.get("identity") == identity else {}


def ratio(curves: dict[str, list[dict[str, Any]]]) -> dict[str, Any] | None:
    """Return how far exact had to go for the best cost of RLOO; none if either is missing or exact never had it."""
    if not {"exact", "rloo"} <= curves.keys():
        return None
    cost = min(point["cost"] for point in curves["rloo"])
    first = {name: next((p for p in curves[name] if p["cost"] <= cost), None) for name in ("exact", "rloo")}
    exact, rloo = first["exact"], first["rloo"]
    if exact is None or rloo is None:
        return None
    return {
        "cost": cost,
        **{name: {"step": p["step"], "seconds": p["seconds"]} for name, p in (("exact", exact), ("rloo", rloo))},
        "steps_ratio": round(exact["step"] / rloo["step"], 4),
        "seconds_ratio": round(exact["seconds"] / rloo["seconds"], 4),
    }


if __name__ == "__main__":
    main()
