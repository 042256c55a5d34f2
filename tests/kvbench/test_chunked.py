"""The chunked schedule: equal to compressing once where it must be, and bounded where it must be."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvbench.after_prefill import run_prompt
from kvbench.agents import Agents, AgentShape, AgentsInfo, save_agents
from kvbench.chunked import run_prompt_in_chunks
from kvbench.models import Model
from kvbench.press import LayerCache, Press, Reads, ScorePress
from kvbench.prompts import Prompt
from kvbench.ranking import Protect, protect
from kvbench.registry import make_press
from kvbench.variants import Job, Outcome, Variant
from tiny_models import CONFIGS, masked_forward, tiny_model, tiny_network
from tiny_runs import (
    FAMILIES,
    FED,
    PRESSES,
    UNPROTECTED,
    N,
    Remembered,
    grid,
    presses,
    question,
    random_prompt,
    tokens,
)

BUDGETS = (1, 9, 30)
NEW = 8


def run(
    model: Model,
    ready: Mapping[str, Press],
    variants: list[Variant],
    chunk: int,
    prompt: Prompt | None = None,
    protected: Protect = UNPROTECTED,
) -> Outcome:
    prompt = prompt or random_prompt()
    asked = [question(NEW)] * len(prompt.fed)
    return run_prompt_in_chunks(model, Job(prompt, asked, ready, variants, protected, seed=3), chunk=chunk)


@pytest.mark.parametrize("chunk", [N, N + 1, 4 * N])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_chunk_for_all_is_compressing_after_prefill(family: str, chunk: int) -> None:
    model = tiny_model(family)
    ready = presses(*PRESSES)
    variants = [Variant(None, N), *grid(ready, BUDGETS)]
    chunked = run(model, ready, variants, chunk, protected=Protect(2, 3))
    once = run_prompt(model, Job(random_prompt(), [question(NEW)], ready, variants, Protect(2, 3), seed=3))
    assert chunked.failures == {}
    for variant in variants:
        assert tokens(chunked, variant) == tokens(once, variant), variant
        assert chunked.kept[variant] == once.kept[variant]


@pytest.mark.parametrize("chunk", [7, 20, 59])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_budget_that_is_never_reached_answers_what_the_full_cache_answers(family: str, chunk: int) -> None:
    model = tiny_model(family)
    ready = presses("k_norm", "snapkv:window=8")
    variants = [Variant(None, N), *grid(ready, (N,))]
    chunked = run(model, ready, variants, chunk)
    once = run_prompt(model, Job(random_prompt(), [question(NEW)], ready, [Variant(None, N)], UNPROTECTED, seed=3))
    for variant in variants:
        assert tokens(chunked, variant) == tokens(once, Variant(None, N)), variant


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_variants_together_answer_what_each_answers_alone(family: str) -> None:
    model = tiny_model(family)
    ready = presses(*PRESSES)
    variants = [Variant(None, N), *grid(ready, BUDGETS)]
    together = run(model, ready, variants, 16)
    for variant in variants:
        assert tokens(together, variant) == tokens(run(model, ready, [variant], 16), variant), variant


@pytest.mark.parametrize("chunk", [5, 16, 33])
def test_several_questions_are_answered_from_one_chunked_context(chunk: int) -> None:
    model = tiny_model("qwen3")
    ready = presses("keydiff")
    variants = grid(ready, BUDGETS)
    prompt = random_prompt(fed=(5, 1, 9))
    together = run(model, ready, variants, chunk, prompt)
    for number, fed in enumerate(prompt.fed):
        alone = run(model, ready, variants, chunk, Prompt(prompt.context, (fed,), (0,), ((),)))
        for variant in variants:
            assert together.answers[variant][number] == alone.answers[variant][0]


@settings(max_examples=25)
@given(st.integers(2, 90), st.integers(1, 60), st.integers(1, 100), st.integers(0, 5), st.integers(0, 9))
def test_entries_stay_within_budget_and_one_chunk(n: int, budget: int, chunk: int, first: int, last: int) -> None:
    model = tiny_model("llama")
    ready = presses("k_norm", "snapkv:window=8", "h2o")
    variants = grid(ready, (budget,))
    outcome = run(model, ready, variants, chunk, random_prompt(n=n), Protect(first, last))
    assert outcome.failures == {}
    for variant in variants:
        kept = outcome.kept[variant]
        assert (kept.least, kept.most) == (min(budget, n), min(budget, n))
        assert kept.most <= outcome.peaks[variant] <= budget + chunk


@pytest.mark.parametrize(("budget", "chunk"), [(6, 20), (17, 16), (30, 7)])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_chunk_sees_what_was_kept_before_it_and_itself(family: str, budget: int, chunk: int) -> None:
    """A plain forward pass under the mask that StreamingLLM's evictions make, the same in every head."""
    prompt = random_prompt()
    variant = Variant("streaming_llm:sinks=2", budget)
    answered = tokens(run(tiny_model(family), presses("streaming_llm:sinks=2"), [variant], chunk), variant)
    length = N + FED + len(answered) - 1
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    kept: list[int] = []
    for start in range(0, N, chunk):
        stop = min(start + chunk, N)
        evicted = [token for token in range(start) if token not in kept]
        visible[start:, evicted] = False
        held = [*kept, *range(start, stop)]
        kept = held if len(held) <= budget else sorted({*held[:2], *held[2 - budget :]})
    visible[N:, [token for token in range(N) if token not in kept]] = False
    sequence = torch.cat([prompt.context, prompt.fed[0], torch.tensor(answered[:-1], dtype=torch.int64)])
    logits = masked_forward(tiny_network(CONFIGS[family]), sequence, visible)
    assert answered == tuple(logits[N + FED - 1 :].argmax(-1).tolist())


class FirstLayer(Press):
    """Another press, its view of layer 0 kept for the comparison."""

    paper = ""
    reads = make_press("k_norm").reads
    name: str
    seen: ClassVar[dict[str, tuple[LayerCache, Tensor]]] = {}

    def sort(self, layer: LayerCache) -> Tensor:
        ranking = make_press(self.name).sort(layer)
        if layer.index == 0:
            self.seen[self.name] = (layer, ranking)
        return ranking


@settings(max_examples=25)
@given(
    st.sampled_from(["k_norm", "random", "streaming_llm"]),
    st.integers(20, 90),
    st.integers(1, 60),
    st.integers(1, 100),
    st.integers(0, 4),
    st.integers(0, 9),
)
def test_static_scores_keep_in_layer_0_what_ranking_once_keeps(
    name: str, n: int, budget: int, chunk: int, first: int, last: int
) -> None:
    model = tiny_model("llama")
    prompt, protected = random_prompt(n=n), Protect(first, last)
    kept: list[list[set[int]]] = []
    for size in (chunk, n):
        watcher = FirstLayer(name=name)
        run(model, {"watched": watcher}, [Variant("watched", budget)], size, prompt, protected)
        if n <= budget:
            return
        layer, ranking = watcher.seen[name]
        chosen = protect(ranking, protected)[..., :budget]
        kept.append([set(row) for row in layer.positions.gather(-1, chosen)[0].tolist()])
    assert kept[0] == kept[1]


def test_a_press_that_fails_midway_leaves_the_others_unharmed() -> None:
    class FailsLater(Remembered):
        """Ranks the first chunk, and then no more."""

        def sort(self, layer: LayerCache) -> Tensor:
            if int(layer.positions.max()) > 20:
                raise RuntimeError("enough")
            return super().sort(layer)

    model = tiny_model("llama")
    ready = {"fails": FailsLater(), **presses("k_norm")}
    outcome = run(model, ready, grid(ready, BUDGETS), 16)
    assert outcome.failures == {"fails": "layer 0: RuntimeError: enough"}
    alone = run(model, presses("k_norm"), grid(["k_norm"], BUDGETS), 16)
    assert outcome.answers == alone.answers


def test_original_positions_reach_the_press() -> None:
    positions: list[Tensor] = []

    class Notes(Remembered):
        """Notes the positions it is given in layer 1."""

        def sort(self, layer: LayerCache) -> Tensor:
            if layer.index == 1:
                positions.append(layer.positions[0, 0])
            return make_press("streaming_llm:sinks=2").sort(layer)

    run(tiny_model("llama"), {"notes": Notes()}, [Variant("notes", 6)], 20)
    assert positions[1].tolist() == [0, 1, 16, 17, 18, 19, *range(20, 40)]
    assert positions[2].tolist() == [0, 1, 36, 37, 38, 39, *range(40, 60)]
    assert torch.equal(positions[0], torch.arange(20))


class CountedNorms(ScorePress):
    """Keys of low norm; remembers how many tokens it was asked to score."""

    paper: ClassVar[str] = ""
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS})
    static_scores: ClassVar[bool] = True
    scored: ClassVar[list[int]] = []

    def score(self, layer: LayerCache) -> Tensor:
        self.scored.append(layer.n)
        return -layer.keys.norm(dim=-1)


def test_static_scores_are_computed_once_per_token() -> None:
    CountedNorms.scored.clear()
    model = tiny_model("llama")
    variant = Variant("norms", 20)
    outcome = run(model, {"norms": CountedNorms()}, [variant], chunk=25)
    assert outcome.failures == {}
    assert CountedNorms.scored == [n for n in (25, 25, 10) for _ in range(model.facts.layers)]


@pytest.mark.parametrize("spec", ["random", "k_norm", "k_norm:skip_layers=2", "kvp"])
def test_known_scores_give_the_answers_of_scores_computed_anew(
    spec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = tiny_model("llama")
    press = make_press(spec) if spec != "kvp" else untrained_kvp(model, tmp_path)
    variants = grid([spec], (9, 20, 30))
    known = run(model, {spec: press}, variants, chunk=11, protected=Protect(2, 3))
    monkeypatch.setattr(type(press), "static_scores", False)
    anew = run(model, {spec: press}, variants, chunk=11, protected=Protect(2, 3))
    assert known.failures == anew.failures == {}
    assert known.answers == anew.answers


def untrained_kvp(model: Model, folder: Path) -> Press:
    facts = model.facts
    shape = AgentShape(head_dim=facts.head_dim, hidden=16, position_features=4, positions=N)
    info = AgentsInfo(model=facts.name, layers=facts.layers, kv_heads=facts.kv_heads, shape=shape)
    save_agents(Agents.untrained(info, seed=0), folder / "agents.safetensors")
    return make_press(f"kvp:checkpoint={folder / 'agents.safetensors'}").for_model(facts)
