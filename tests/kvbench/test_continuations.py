"""Log-likelihoods of continuations: against plain forward passes, under eviction, and whatever stands beside them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvbench.after_prefill import run_prompt
from kvbench.chunked import run_prompt_in_chunks
from kvbench.errors import KvbenchError
from kvbench.future import future_attention
from kvbench.prompts import Prompt, prompts_of
from kvbench.ranking import Protect, protect
from kvbench.task import Answer, Question, Sample
from kvbench.variants import Job, Outcome, Variant
from tiny_models import CONFIGS, masked_forward, tiny_model, tiny_network, tiny_tokenizer
from tiny_runs import FAMILIES, PRESSES, UNPROTECTED, N, Remembered, grid, presses, random_prompt

LENGTHS = (1, 4, 9)
FULL = Variant(None, N)


def weighed(*lengths: int, seed: int = 1) -> tuple[Prompt, Question]:
    """Make a prompt and a question with continuations of these lengths."""
    prompt = random_prompt()
    generator = torch.Generator().manual_seed(seed)
    continuations = tuple(torch.randint(3, 250, (length,), generator=generator) for length in lengths)
    question = Question(text="", targets=(), continuations=tuple(str(number) for number in range(len(lengths))))
    return Prompt(prompt.context, prompt.fed, (0,), (continuations,)), question


def run(family: str, prompt: Prompt, question: Question, variants: list[Variant], ready: dict[str, object]) -> Outcome:
    return run_prompt(tiny_model(family), Job(prompt, [question], ready, variants, UNPROTECTED, seed=3))  # type: ignore[arg-type]


def reference(logits: Tensor, start: int, continuation: Tensor) -> float:
    """Sum the log-probabilities of a continuation whose first token is predicted at `start`."""
    chosen = logits[start : start + len(continuation)].log_softmax(-1)
    return float(chosen.gather(1, continuation.unsqueeze(1)).sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_cache_gives_the_likelihoods_of_a_plain_forward_pass(family: str) -> None:
    prompt, question = weighed(*LENGTHS)
    [answer] = run(family, prompt, question, [FULL], {}).answers[FULL]
    network = tiny_network(CONFIGS[family])
    fed = torch.cat([prompt.context, prompt.fed[0]])
    for number, continuation in enumerate(prompt.continuations[0]):
        with torch.inference_mode():
            logits = network(torch.cat([fed, continuation]).unsqueeze(0), use_cache=False).logits[0]
        expected = reference(logits, len(fed) - 1, continuation)
        assert answer.log_likelihoods[number] == pytest.approx(expected, rel=1e-9)
        greedy = logits[len(fed) - 1 : -1].argmax(-1)
        assert answer.greedy[number] == torch.equal(greedy, continuation)
    assert answer.continuation_tokens == LENGTHS
    assert answer.text == str(max(range(len(LENGTHS)), key=lambda number: answer.log_likelihoods[number]))


@pytest.mark.parametrize("budget", [1, 7, 41])
@pytest.mark.parametrize("family", FAMILIES)
def test_likelihoods_are_those_of_a_pass_in_which_evicted_tokens_are_masked(family: str, budget: int) -> None:
    prompt, question = weighed(*LENGTHS)
    variant = Variant("remembered", budget)
    [answer] = run(family, prompt, question, [variant], {"remembered": Remembered()}).answers[variant]
    for number, continuation in enumerate(prompt.continuations[0]):
        sequence = torch.cat([prompt.context, prompt.fed[0], continuation])
        visible = {}
        for layer, ranking in Remembered.rankings.items():
            seen = torch.ones(len(sequence), len(sequence), dtype=torch.bool).tril().repeat(ranking.shape[1], 1, 1)
            evicted = protect(ranking, Protect(0, 0))[0, :, budget:]  # [kv_heads, n - budget]
            for head, tokens in enumerate(evicted):
                seen[head, N:, tokens] = False
            visible[layer] = seen
        logits = masked_forward(tiny_network(CONFIGS[family]), sequence, visible)
        expected = reference(logits, N + len(prompt.fed[0]) - 1, continuation)
        assert answer.log_likelihoods[number] == pytest.approx(expected, rel=1e-9)


@settings(max_examples=25)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5), family=st.sampled_from(FAMILIES))
def test_a_continuation_weighs_what_it_weighs_alone_and_under_each_variant_alone(
    lengths: list[int], family: str
) -> None:
    prompt, question = weighed(*lengths)
    ready = presses("keydiff", "tova")
    variants = [FULL, *grid(ready, (1, 7, 59))]
    together = run(family, prompt, question, variants, dict(ready))
    for number, continuation in enumerate(prompt.continuations[0]):
        one = Prompt(prompt.context, prompt.fed, (0,), ((continuation,),))
        alone_question = Question(text="", targets=(), continuations=("0",))
        for variant in variants:
            [alone] = run(family, one, alone_question, [variant], dict(ready)).answers[variant]
            [beside] = together.answers[variant]
            assert beside.log_likelihoods[number] == pytest.approx(alone.log_likelihoods[0], rel=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_chunks_that_hold_the_context_likelihoods_are_those_after_prefill(family: str) -> None:
    prompt, question = weighed(*LENGTHS)
    ready = presses(*PRESSES)
    variants = grid(ready, (7, 41))
    job = Job(prompt, [question], ready, variants, UNPROTECTED, seed=3)
    whole, chunked = run_prompt(tiny_model(family), job), run_prompt_in_chunks(tiny_model(family), job, N)
    for variant in variants:
        [one], [other] = whole.answers[variant], chunked.answers[variant]
        assert one.log_likelihoods == pytest.approx(other.log_likelihoods, rel=1e-9)


def test_many_rows_and_long_continuations_are_weighed_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, question = weighed(1, 20, 33)
    ready = presses("keydiff", "random")
    variants = [FULL, *grid(ready)]
    at_once = run("llama", prompt, question, variants, dict(ready))
    monkeypatch.setattr("kvbench.answering._LOGITS_PER_PASS", 40)
    in_pieces = run("llama", prompt, question, variants, dict(ready))
    for variant in variants:
        [one], [other] = at_once.answers[variant], in_pieces.answers[variant]
        assert one.log_likelihoods == pytest.approx(other.log_likelihoods, rel=1e-9)


def test_the_oracle_foresees_what_the_continuations_attend_to() -> None:
    prompt, question = weighed(5)
    oracle = Variant("oracle", 7)
    outcome = run("llama", prompt, question, [oracle], dict(presses("oracle")))
    assert outcome.failures == {}
    # A branch of two alternatives gets what each gets alone, but for the prompt's last tokens, which count once.
    keys = torch.randn(1, 2, 6, 8)
    query, own = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    branches = torch.tensor([0, 1, 1, 2, 2])
    visible = (branches.unsqueeze(1) == branches) | (branches == 0)
    visible &= torch.ones(5, 5, dtype=torch.bool).tril()
    both = future_attention(query, keys, own, 0.3, visible)
    first, second, trunk = (
        future_attention(query[:, :, index], keys, own[:, :, index], 0.3)
        for index in (torch.tensor([0, 1, 2]), torch.tensor([0, 3, 4]), torch.tensor([0]))
    )
    torch.testing.assert_close(both, first + second - trunk)


TOKENIZER = tiny_tokenizer()
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="#"), min_size=1, max_size=12)


@given(context=TEXTS, text=TEXTS, continuations=st.lists(TEXTS, min_size=1, max_size=4))
def test_prompt_and_continuation_are_the_tokens_of_the_whole_text(
    context: str, text: str, continuations: list[str]
) -> None:
    question = Question(text=text, targets=(), continuations=tuple(continuations))
    sample = Sample(id="s", subtask="t", context=context, questions=(question,), source="s", template="rendered")
    for placement in ("inside", "after"):
        [prompt] = prompts_of(TOKENIZER, sample, placement)  # type: ignore[arg-type]
        for continuation, tokens in zip(continuations, prompt.continuations[0], strict=True):
            whole = TOKENIZER(context + text + continuation, add_special_tokens=False)["input_ids"]
            assert [*prompt.context.tolist(), *prompt.fed[0].tolist(), *tokens.tolist()] == whole
            assert TOKENIZER.decode(tokens) == continuation


def test_a_continuation_without_a_token_is_refused() -> None:
    question = Question(text="?", targets=(), continuations=("yes", ""))
    sample = Sample(id="s", subtask="t", context="context", questions=(question,), source="s")
    with pytest.raises(KvbenchError, match="adds no token"):
        prompts_of(TOKENIZER, sample, "after")


def test_a_question_has_one_kind_of_answer() -> None:
    with pytest.raises(ValueError, match="either max_new_tokens or continuations"):
        Question(text="", targets=(), max_new_tokens=3, continuations=("a",))
    with pytest.raises(ValueError, match="either max_new_tokens or continuations"):
        Question(text="", targets=())
    assert Answer("text").log_likelihoods == ()
