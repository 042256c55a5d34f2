"""The batch of variants against independent references: plain transformers, masks, and each variant alone."""

from collections.abc import Collection, Mapping
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from kvbench.after_prefill import run_prompt
from kvbench.chunked import run_prompt_in_chunks
from kvbench.errors import KvbenchError
from kvbench.models import Model, facts_of
from kvbench.press import LayerCache, Press, Reads, ScorePress
from kvbench.prompts import Prompt
from kvbench.ranking import Protect, protect
from kvbench.variants import Job, Outcome, Variant
from tiny_models import CONFIGS, masked_forward, tiny_model, tiny_network
from tiny_runs import (
    FAMILIES,
    FED,
    NEW,
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


def run(
    model: Model,
    ready: Mapping[str, Press],
    variants: Collection[Variant],
    prompt: Prompt | None = None,
    protected: Protect = UNPROTECTED,
    new: int = NEW,
) -> Outcome:
    prompt = prompt or random_prompt()
    return run_prompt(model, Job(prompt, [question(new)] * len(prompt.fed), ready, variants, protected, seed=3))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_batch_answers_what_each_variant_answers_alone(family: str) -> None:
    model = tiny_model(family)
    ready = presses(*PRESSES, "oracle")
    variants = [Variant(None, N), *grid(ready, (1, 7, 41))]
    together = run(model, ready, variants)
    assert together.failures == {}
    for variant in variants:
        alone = run(model, ready, [variant])
        assert tokens(together, variant) == tokens(alone, variant), variant


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_cache_answers_what_transformers_generates(family: str, attention: str) -> None:
    prompt = random_prompt()
    everything = torch.cat([prompt.context, prompt.fed[0]]).unsqueeze(0)
    generated = tiny_network(CONFIGS[family]).generate(
        everything, attention_mask=torch.ones_like(everything), max_new_tokens=NEW, do_sample=False
    )
    full = Variant(None, N)
    answered = run(tiny_model(family, attention=attention), {}, [full])
    assert tokens(answered, full) == tuple(generated[0, N + FED :].tolist())


@pytest.mark.parametrize("budget", [1, 7, 41])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_compressed_cache_answers_as_if_evicted_tokens_were_masked(family: str, budget: int) -> None:
    prompt = random_prompt()
    variant = Variant("remembered", budget)
    answered = tokens(run(tiny_model(family), {"remembered": Remembered()}, [variant, *grid(["remembered"])]), variant)
    sequence = torch.cat([prompt.context, prompt.fed[0], torch.tensor(answered[:-1], dtype=torch.int64)])
    visible = {}
    for layer, ranking in Remembered.rankings.items():
        kept = torch.zeros(ranking.shape[1], N, dtype=torch.bool).scatter_(-1, ranking[0, :, :budget], True)
        visible[layer] = torch.ones(len(kept), len(sequence), len(sequence), dtype=torch.bool).tril()
        visible[layer][:, N:, :N] &= kept.unsqueeze(1)  # the new tokens see only what each KV head kept
    logits = masked_forward(tiny_network(CONFIGS[family]), sequence, visible)
    assert answered == tuple(logits[N + FED - 1 :].argmax(-1).tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_budget_of_the_whole_context_answers_what_the_full_cache_answers(family: str) -> None:
    ready = presses(*PRESSES)
    full = Variant(None, N)
    outcome = run(tiny_model(family), ready, [full, *grid(ready, (20, N))])
    for label in ready:
        assert tokens(outcome, Variant(label, N)) == tokens(outcome, full), label


@pytest.mark.parametrize("family", FAMILIES)
def test_measured_entries_are_the_budget_in_every_layer_and_bytes_count_all_layers(family: str) -> None:
    model = tiny_model(family)
    ready = presses("k_norm", "random")
    outcome = run(model, ready, [Variant(None, N), *grid(ready)])
    config = model.network.config
    windows = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or [None] * 3]
    entry = 2 * model.facts.kv_heads * model.facts.head_dim * 8
    for variant, kept in outcome.kept.items():
        assert (kept.least, kept.most) == (variant.budget, variant.budget)
        tail = sum(windows) * (config.sliding_window - 1) if any(windows) else 0
        assert kept.bytes == entry * (tail + (3 - sum(windows)) * variant.budget)


class Spy(ScorePress):
    """Scores tokens like `k_norm`, and notes whether queries were there."""

    paper: ClassVar[str] = ""
    reads: ClassVar[frozenset[Reads]] = frozenset({Reads.KEYS})
    captured: ClassVar[list[bool]] = []

    def score(self, layer: LayerCache) -> Tensor:
        self.captured.append(layer.captured_queries is not None or layer.captured_future is not None)
        return -layer.keys.norm(dim=-1)


def test_attention_free_presses_run_without_one_query_captured() -> None:
    Spy.captured.clear()
    run(tiny_model("llama"), {"spy": Spy(), **presses("snapkv", "oracle")}, grid(["spy", "snapkv", "oracle"], (7,)))
    assert Spy.captured == [False] * 3


class Undeclared(Spy):
    """Reads queries that it does not declare."""

    def score(self, layer: LayerCache) -> Tensor:
        return layer.queries.sum(dim=(2, 3, 4))


class Repeats(Spy):
    """Names a token twice."""

    def sort(self, layer: LayerCache) -> Tensor:
        return torch.zeros(*layer.keys.shape[:3], dtype=torch.int64)


class Short(Spy):
    """Leaves tokens out."""

    def sort(self, layer: LayerCache) -> Tensor:
        return super().sort(layer)[..., 1:]


@pytest.mark.parametrize(
    ("press", "reason"),
    [(Undeclared(), "Reads.QUERIES"), (Repeats(), "permutation"), (Short(), "expected torch.int64")],
)
def test_a_press_that_breaks_the_contract_fails_and_the_others_go_on(press: Press, reason: str) -> None:
    model = tiny_model("llama")
    ready = {"bad": press, **presses("k_norm")}
    outcome = run(model, ready, grid(ready))
    assert reason in outcome.failures["bad"]
    assert set(outcome.answers) == set(grid(["k_norm"]))
    alone = run(model, presses("k_norm"), grid(["k_norm"]))
    assert all(tokens(outcome, variant) == tokens(alone, variant) for variant in grid(["k_norm"]))


def test_every_question_after_the_context_is_answered_as_if_it_were_the_only_one() -> None:
    model = tiny_model("qwen3")
    ready = presses("snapkv:window=8", "k_norm")
    prompt = random_prompt(fed=(FED, 1, 9))
    variants = [Variant(None, N), *grid(ready)]
    together = run(model, ready, variants, prompt)
    for number, fed in enumerate(prompt.fed):
        alone = run(model, ready, variants, Prompt(prompt.context, (fed,), (0,), ((),)))
        for variant in variants:
            assert together.answers[variant][number] == alone.answers[variant][0], (number, variant)


def test_rows_stop_at_their_own_end_and_the_rest_go_on_unchanged() -> None:
    model = tiny_model("llama")
    ready = presses("random", "k_norm")
    variants = [Variant(None, N), *grid(ready)]
    free = run(model, ready, variants, new=30)
    last = {variant: tokens(free, variant)[i % 10] for i, variant in enumerate(variants)}
    model.end_tokens = frozenset(list(last.values())[::3])
    stopped = run(model, ready, variants, new=30)
    lengths = set()
    for variant in variants:
        whole = tokens(free, variant)
        ends = [i for i, token in enumerate(whole) if token in model.end_tokens]
        expected = whole[: ends[0] + 1] if ends else whole
        assert tokens(stopped, variant) == expected
        assert stopped.answers[variant][0].stopped == ("end" if ends else "length")
        lengths.add(len(expected))
    assert len(lengths) > 2


def test_a_stop_text_ends_and_cuts_the_answer() -> None:
    model = tiny_model("llama")
    full = Variant(None, N)
    free = run_prompt(model, Job(random_prompt(), [question(30)], {}, [full], UNPROTECTED, 0)).answers[full][0]
    mark = free.text[4:6]
    cut = run_prompt(model, Job(random_prompt(), [question(30, (mark,))], {}, [full], UNPROTECTED, 0)).answers[full][0]
    assert cut.stopped == "stop"
    assert cut.text == free.text[: free.text.index(mark)]


def test_a_model_without_full_attention_layers_is_refused() -> None:
    config = CONFIGS["mistral"].__class__(**{**CONFIGS["mistral"].to_dict(), "sliding_window": 8})
    network = tiny_network(config)
    model = Model(network, tiny_model("mistral").tokenizer, facts_of(config, "mistral", "random"), "sdpa")
    with pytest.raises(KvbenchError, match="no full-attention layer"):
        run(model, {}, [Variant(None, N)])
    job = Job(random_prompt(), [question()], {}, [Variant(None, N)], UNPROTECTED, 0)
    with pytest.raises(KvbenchError, match="no full-attention layer"):
        run_prompt_in_chunks(model, job, chunk=20)


@pytest.mark.parametrize(("first", "last"), [(0, 0), (4, 16), (50, 50), (0, 7), (3, 0)])
def test_protected_tokens_lead_every_ranking_and_the_others_keep_their_order(first: int, last: int) -> None:
    ranking = torch.stack([torch.randperm(N) for _ in range(6)]).view(2, 3, N)
    result = protect(ranking, Protect(first, last))
    assert torch.equal(result.sort(-1).values, torch.arange(N).expand(2, 3, N))
    front = [*range(min(first, N)), *range(N - 1, max(N - 1 - last, first - 1), -1)]
    assert result[..., : len(front)].flatten(0, 1).tolist() == [front] * 6
    others = [[t for t in row if t not in front] for row in ranking.flatten(0, 1).tolist()]
    assert result[..., len(front) :].flatten(0, 1).tolist() == others


def test_the_oracle_ranks_by_the_attention_of_the_full_caches_own_answer() -> None:
    model = tiny_model("llama")
    full, oracle = Variant(None, N), Variant("oracle", 20)

    class Seen(ScorePress):
        """The oracle's input, kept for the comparison."""

        paper: ClassVar[str] = ""
        reads: ClassVar[frozenset[Reads]] = frozenset({Reads.FUTURE})
        future: ClassVar[dict[int, Tensor]] = {}

        def score(self, layer: LayerCache) -> Tensor:
            self.future[layer.index] = layer.future_attention
            return layer.future_attention

    outcome = run(model, {"oracle": Seen()}, [full, oracle])
    prompt = random_prompt()
    answered = torch.tensor(tokens(outcome, full)[:-1])
    sequence = torch.cat([prompt.context, prompt.fed[0], answered])
    network = tiny_network(CONFIGS["llama"])
    network.set_attn_implementation("eager")
    attentions = network(sequence.unsqueeze(0), output_attentions=True).attentions
    for layer, weights in enumerate(attentions):  # [1, heads, length, length]
        future = weights[0, :, N:, :N].unflatten(0, (2, 3)).amax(dim=1).sum(dim=1)  # [kv_heads, N]
        torch.testing.assert_close(Seen.future[layer][0].double(), future, atol=1e-6, rtol=1e-5)
