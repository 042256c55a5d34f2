"""What ranking costs beside the prefill: each press, by context length (figure 6 of arXiv:2602.10238).

    python benchmarks/ranking.py --output results/benchmarks/ranking.json
    python benchmarks/ranking.py --model qwen2.5-7b-layer --lengths 1024 4096

`qwen2.5-7b-layer` is one layer of Qwen2.5-7B's shape with random weights, on which speed does not depend, and KVP's
agents of the paper's size. Elsewhere KVP's are those that kvbench ships for the model, or untrained ones of the size
asked for. All presses rank in the same forward pass; the table shows the medians of the rounds.

For presses with static scores a second table compares their ranking time in chunked prefill with that of scoring
all kept tokens again after every chunk.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config

from kvbench.agents import Agents, AgentShape, AgentsInfo, save_agents
from kvbench.attention import AttentionCall
from kvbench.chunked import run_prompt_in_chunks
from kvbench.environment import describe_environment
from kvbench.errors import UsageError
from kvbench.models import DTYPES, Model, ModelFacts, choose_device, choose_dtype, facts_of, find, quieten_transformers
from kvbench.press import Press, ScorePress
from kvbench.prompts import Prompt
from kvbench.ranking import Protect, Rankers, now, whole_layer
from kvbench.registry import PRESSES, make_press, registered
from kvbench.task import Question
from kvbench.variants import Job, Variant

ONE_LAYER = "qwen2.5-7b-layer"


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128, help="Of untrained agents, where none are shipped.")
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--budget", type=int, default=1024, help="Of the chunked runs.")
    parser.add_argument("--dtype")
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    quieten_transformers()
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    if options.model == ONE_LAYER:
        model = random_qwen(layers=1, vocabulary=1024, dtype=dtype, device=device)
        kvp = untrained_kvp(model.facts, hidden=256)
    else:
        model = find(options.model).load(dtype, device, "sdpa")
        kvp = shipped_kvp(model.facts) or untrained_kvp(model.facts, options.hidden)
    presses = all_presses(model.facts, kvp)
    shares = [measure(model, presses, n, options.rounds) for n in options.lengths]
    show(shares, model.facts)
    rescored: list[dict[str, Any]] = []
    if options.model != ONE_LAYER:
        rescored = measure_chunked(model, presses, options.lengths[-1], options.chunk, options.budget)
        show_chunked(rescored)
    if options.output:
        figures = {
            "command": ["python", *sys.argv],
            "environment": describe_environment().model_dump(),
            "model": model.facts.name,
            "layers": model.facts.layers,
            "dtype": dtype,
            "kvp": kvp.identity(),
            "lengths": [vars(share) for share in shares],
            "chunked": rescored,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(figures, indent=2) + "\n")


def random_qwen(layers: int, vocabulary: int, dtype: str, device: str, toy: bool = False) -> Model:
    """Make a model in Qwen2.5-7B's shape, or a toy of it, with random weights and no tokenizer."""
    sizes = (64, 160, 4, 2) if toy else (3584, 18944, 28, 4)
    hidden, intermediate, heads, kv_heads = sizes
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=1 << 18,
        rope_theta=1e6,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation="sdpa")
    return Model(network, NoTokenizer(), facts_of(config, "random Qwen2", "random"), "sdpa")


class NoTokenizer(SimpleNamespace):
    """Stands in for the tokenizer of a model whose answers nobody reads."""

    eos_token_id = None

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the tokens' numbers."""
        return " ".join(map(str, tokens))


def shipped_kvp(facts: ModelFacts) -> Press | None:
    """Return the learned press with the agents that kvbench ships, if it does."""
    try:
        return make_press("kvp").for_model(facts)
    except UsageError:
        return None


def untrained_kvp(facts: ModelFacts, hidden: int) -> Press:
    """Return the learned press with untrained agents, which cost what trained ones do."""
    shape = AgentShape(head_dim=facts.head_dim, hidden=hidden)
    info = AgentsInfo(model=facts.name, layers=facts.layers, kv_heads=facts.kv_heads, shape=shape)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "agents.safetensors"
        save_agents(Agents.untrained(info, seed=0), file)
        return make_press(f"kvp:checkpoint={file}").for_model(facts)


def all_presses(facts: ModelFacts, kvp: Press) -> dict[str, Press]:
    """Return every registered press that ranks without knowing the future."""
    names = [name for name in registered(PRESSES) if name not in ("full", "kvp", "oracle")]
    return {name: make_press(name).for_model(facts) for name in names} | {"kvp": kvp}


@dataclass(frozen=True)
class Shares:
    """The seconds of prefill and rankings at one context length, each round's, all layers."""

    n: int
    prefill: list[float]
    ranking: dict[str, list[float]]


class RankingPrefill:
    """A prefill on whose way every press ranks every layer, and nothing is kept."""

    def __init__(self, presses: Mapping[str, Press]):
        """Start the clocks of the presses at zero."""
        self.rankers = Rankers(presses, Protect(4, 16))

    def attend(self, call: AttentionCall) -> Tensor:
        """Run the kernel, then every press."""
        out = call.kernel()
        layer = whole_layer(call.layer, call.key, call.value, call.scaling, seed=0, queries=call.query)
        for label in self.rankers.presses:
            self.rankers.rank(label, layer)
        return out


def measure(model: Model, presses: Mapping[str, Press], n: int, rounds: int) -> Shares:
    """Time prefill and rankings of `n` random tokens, after a round that does not count.

    Raises:
        SystemExit: A press failed.
    """
    tokens = torch.randint(3, 1000, (1, n), generator=torch.Generator().manual_seed(n)).to(model.device)
    shares = Shares(n, [], {label: [] for label in presses})
    for round_number in range(rounds + 1):
        step = RankingPrefill(presses)
        started = now(model.device)
        with torch.inference_mode():
            model.forward(tokens, 0, step)
        seconds = now(model.device) - started
        if step.rankers.failures:
            raise SystemExit(f"presses failed: {step.rankers.failures}")
        if round_number:
            shares.prefill.append(seconds - sum(step.rankers.seconds.values()))
            for label, spent in step.rankers.seconds.items():
                shares.ranking[label].append(spent)
    return shares


def show(shares: Sequence[Shares], facts: ModelFacts) -> None:
    """Print the first table."""
    lengths = [f"{share.n:,}" for share in shares]
    table = Table(
        "", *(f"{n}: ms a layer" for n in lengths), *(f"{n}: % of prefill" for n in lengths), title=facts.name
    )
    for label in ("prefill", *shares[0].ranking):
        seconds = [median(share.prefill if label == "prefill" else share.ranking[label]) for share in shares]
        layers = (f"{spent * 1e3 / facts.layers:.2f}" for spent in seconds)
        percents = (f"{spent / median(share.prefill):.2%}" for spent, share in zip(seconds, shares, strict=True))
        table.add_row(label, *layers, *percents)
    Console().print(table)


def measure_chunked(
    model: Model, presses: Mapping[str, Press], n: int, chunk: int, budget: int
) -> list[dict[str, Any]]:
    """Time the ranking of presses with static scores in chunks: of new tokens only, and of all."""
    prompt = Prompt(torch.randint(3, 1000, (n,)), (torch.tensor([5]),), (0,), ((),))
    rows = []
    for label, press in presses.items():
        if not (isinstance(press, ScorePress) and press.static_scores):
            continue
        variant = Variant(label, budget)
        question = Question(text="", targets=(), max_new_tokens=1)
        job = Job(prompt, [question], {label: press}, [variant], Protect(4, 16), 0)
        seconds = {}
        for static in (True, False):
            type(press).static_scores = static
            started = time.perf_counter()
            outcome = run_prompt_in_chunks(model, job, chunk)
            seconds[static] = outcome.timings.ranking[label], time.perf_counter() - started
        type(press).static_scores = True
        rows.append(
            {"press": label, "n": n, "chunk": chunk, "budget": budget}
            | {"new_only": seconds[True][0], "all_again": seconds[False][0], "whole_run": seconds[True][1]}
        )
    return rows


def show_chunked(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the second table."""
    table = Table("press", "new tokens scored, s", "all scored again, s", "whole run, s", title="in chunks")
    for row in rows:
        table.add_row(row["press"], *(f"{row[key]:.3f}" for key in ("new_only", "all_again", "whole_run")))
    Console().print(table)


if __name__ == "__main__":
    main()
