"""The cost of rankings against its definition, and `kvbench cost` against transformers' attention weights."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attention_weights import attention_weights, received_after
from command_line import kvbench
from kvbench.budgets import parse_budgets
from kvbench.cost import costs_of_sample, costs_of_trace, evicted_attention, normalised_cost, total_cost
from kvbench.cost_report import CostReport, CostSample, PressCost, read_reports, summarise
from kvbench.press import LayerCache, sample_seed
from kvbench.ranking import Protect, protect
from kvbench.records import Environment
from kvbench.registry import make_press
from kvbench.traces import TraceEntry, TraceManifest
from kvbench.tracing import Drawn, take_trace
from tiny_models import CONFIGS, tiny_model, tiny_network, tiny_tokenizer
from tiny_runs import UNPROTECTED, N, presses, question, random_prompt

PRESSES = ("oracle", "random", "k_norm", "streaming_llm", "snapkv:window=8")
BUDGETS = parse_budgets("1,7,25%,60,400")


def brute_force_evicted(u: list[float], ranking: list[int], budget: int) -> float:
    return sum(u[token] for token in ranking[budget:])


@st.composite
def futures_and_rankings(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    u = draw(st.lists(st.floats(0, 100, width=32), min_size=1, max_size=30))
    u[0] = max(u[0], 1.0)  # some attention there always is
    return u, draw(st.permutations(range(len(u))))


def tensors(u: list[float], ranking: list[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor(u).view(1, 1, -1), torch.tensor(ranking).view(1, 1, -1)


@given(futures_and_rankings())
def test_costs_are_their_definition(case: tuple[list[float], list[int]]) -> None:
    u, ranking = case
    n = len(u)
    expected = [brute_force_evicted(u, ranking, budget) for budget in range(n + 1)]
    evicted = evicted_attention(*tensors(u, ranking))[0, 0].tolist()
    assert evicted == pytest.approx(expected, abs=1e-9)
    assert evicted[-1] == 0
    assert total_cost(*tensors(u, ranking)).item() == pytest.approx(sum(expected[:-1]), abs=1e-9)
    best = sorted(range(n), key=lambda token: -u[token])
    least = sum(brute_force_evicted(u, best, budget) for budget in range(n))
    assert normalised_cost(*tensors(u, ranking), UNPROTECTED).item() == pytest.approx(sum(expected[:-1]) / least)


@given(futures_and_rankings(), st.integers(0, 5), st.integers(0, 5))
def test_no_ranking_costs_less_than_the_future_itself(
    case: tuple[list[float], list[int]], first: int, last: int
) -> None:
    u, ranking = tensors(*case)
    protected = Protect(first, last)
    assert normalised_cost(u, protect(ranking, protected), protected).item() >= 1 - 1e-12
    oracle = u.argsort(dim=-1, descending=True, stable=True)
    assert normalised_cost(u, protect(oracle, protected), protected).item() == 1


@given(futures_and_rankings(), st.randoms(use_true_random=False))
def test_costs_do_not_depend_on_how_tokens_are_numbered(case: tuple[list[float], list[int]], random: Any) -> None:
    u, ranking = case
    new_number = list(range(len(u)))
    random.shuffle(new_number)
    renumbered = [0.0] * len(u)
    for token, number in enumerate(new_number):
        renumbered[number] = u[token]
    before, after = tensors(u, ranking), tensors(renumbered, [new_number[token] for token in ranking])
    assert torch.equal(evicted_attention(*before), evicted_attention(*after))
    assert torch.equal(total_cost(*before), total_cost(*after))


def drawn() -> Drawn:
    prompt = random_prompt()
    entry = TraceEntry(task="toy", subtask="all", sample="one", sample_hash="0" * 16, source="one", cuts=(N,))
    return Drawn(entry, prompt.context, prompt.fed[0], question(6), ())


@pytest.mark.parametrize("protected", [UNPROTECTED, Protect(2, 5)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_a_samples_costs_are_those_of_the_attention_weights(family: str, protected: Protect) -> None:
    model, wanted = tiny_model(family), drawn()
    costs = costs_of_sample(model, wanted, presses(*PRESSES), protected, BUDGETS, seed=3)
    answered = take_trace(model, wanted)
    tokens = greedy(family, wanted)
    assert costs.failures == {}
    assert costs.future_tokens == answered.future_tokens
    weights = attention_weights(family, tokens)
    assert costs.layers == tuple(weights)
    for row, layer in enumerate(weights):
        u = received_after(weights[layer], N)  # [kv_heads, N]
        cache = LayerCache(
            layer,
            answered.keys[row].double().unsqueeze(0),
            answered.values[row].double().unsqueeze(0),
            torch.arange(N).expand(1, len(u), N),
            model_scaling(family),
            3,
        )
        for label in ("random", "streaming_llm"):
            ranking = protect(make_press(label).sort(cache), protected)[0]
            best = protect(u.argsort(dim=-1, descending=True).unsqueeze(0), protected)[0]
            for head in range(len(u)):
                of_head, order = u[head].tolist(), ranking[head].tolist()
                cost = sum(brute_force_evicted(of_head, order, budget) for budget in range(N))
                least = sum(brute_force_evicted(of_head, best[head].tolist(), budget) for budget in range(N))
                assert costs.normalised[label][row, head].item() == pytest.approx(cost / least, rel=1e-4)
                for place, budget in enumerate((1, 7, N // 4, N, N)):
                    share = brute_force_evicted(of_head, order, budget) / sum(of_head)
                    assert costs.evicted[label][row, head, place].item() == pytest.approx(share, abs=1e-5)
    assert torch.equal(costs.normalised["oracle"], torch.ones_like(costs.normalised["oracle"]))
    for label in PRESSES:
        assert bool((costs.normalised[label] >= 1).all())
        assert bool((costs.evicted["oracle"] <= costs.evicted[label] + 1e-9).all())


def model_scaling(family: str) -> float:
    return float(tiny_model(family).network.config.head_dim ** -0.5)


def greedy(family: str, wanted: Drawn) -> Tensor:
    """The tokens that are fed: the prompt, and a greedy answer without its last token."""
    network = tiny_model(family).network
    network.set_attn_implementation("eager")
    sequence = torch.cat([wanted.context, wanted.fed])
    for _ in range(wanted.question.max_new_tokens - 1):
        with torch.inference_mode():
            logits = network(sequence.unsqueeze(0), use_cache=False).logits
        sequence = torch.cat([sequence, logits[0, -1:].argmax(-1)])
    return sequence


def test_a_trace_costs_what_the_model_does() -> None:
    model, wanted = tiny_model("qwen2", torch.float32), drawn()
    trace = take_trace(model, wanted)
    facts = model.facts
    manifest = TraceManifest(
        **{"model": facts.name, "weights": facts.weights, "model_layers": 3, "layers": (0, 1, 2), "kv_heads": 2},
        **{"scaling": (0.35,) * 3, "head_dim": 8, "dtype": "float32", "attention": "sdpa", "device": "cpu"},
        **{"seed": 3, "cuts": 1, "rollout": 6},
    )
    ready = presses("oracle", "random", "streaming_llm", "k_norm")
    ours = costs_of_trace(trace, manifest, ready, UNPROTECTED, BUDGETS)
    theirs = costs_of_sample(model, wanted, ready, UNPROTECTED, BUDGETS, sample_seed(3, "one"))
    assert ours.prefill_seconds is None
    for label in ("oracle", "random", "streaming_llm"):  # half-precision keys may tie or swap where norms are close
        torch.testing.assert_close(ours.normalised[label], theirs.normalised[label])
        torch.testing.assert_close(ours.evicted[label], theirs.evicted[label])
    torch.testing.assert_close(ours.normalised["k_norm"], theirs.normalised["k_norm"], rtol=0.05, atol=0)


def report(normalised: dict[str, list[list[list[float]]]], sources: Sequence[str]) -> CostReport:
    samples = [
        CostSample(sample=str(i), sample_hash=str(i), subtask="a", source=source, data="d", tokens=100, future_tokens=9)
        for i, source in enumerate(sources)
    ]
    costs = {
        label: PressCost(
            identity=label,
            reads=(),
            normalised=values,
            evicted=[[0.5]] * len(samples),
            evicted_by_head=[[[0.5]]],
            ranking_seconds=[0.5] * len(samples),
            prefill_seconds=[2.0] * len(samples),
        )
        for label, values in normalised.items()
    }
    protocol = {
        **{"model": "toy", "weights": "w", "task": "t", "origin": "model", "seed": 1, "rollout": 5},
        **{"protect_first": 0, "protect_last": 0, "dtype": "float32", "attention": "sdpa", "device": "cpu"},
        **{"budgets": ("50",), "layers": (3, 7), "kv_heads": 2},
    }
    environment = Environment(
        kvbench="0", python="3", torch="2", transformers="5", processor="p", threads=1, platform="linux"
    )
    return CostReport.model_validate(
        {"protocol": protocol, "samples": samples, "environment": environment, "presses": costs}
    )


def test_a_summary_counts_heads_and_clusters_samples_of_one_source() -> None:
    random = [[[5.0, 5.0], [5.0, 9.0]]] * 4
    press = [[[1.0, 2.0], [3.0, 10.0]], [[1.0, 2.0], [3.0, 12.0]], [[2.0, 2.0], [3.0, 12.0]], [[2.0, 2.0], [3.0, 10.0]]]
    measured = report({"random": random, "mine": press}, ["a", "a", "b", "b"])
    best, worst = summarise(measured)
    assert (best.press, worst.press) == ("mine", "random")
    assert best.mean.mean == pytest.approx(np.mean(press))
    assert (best.worst, best.worst_mean, best.worse_than_random) == ((7, 1), 11.0, 1)
    assert best.speed == pytest.approx(4 * 100 * 4 / 2.0)
    assert best.share_of_prefill == pytest.approx(0.25)
    means = [np.mean([np.mean(one) for one in press[:2]]), np.mean([np.mean(one) for one in press[2:]])]
    assert best.mean.low is not None
    half = 12.706 * np.std(means, ddof=1) / np.sqrt(2)  # Student's, of two sources
    assert best.mean.low == pytest.approx(np.mean(press) - half, rel=1e-3)
    assert (worst.mean.mean, worst.mean.low) == (6.0, None)


def arguments(model: Path, to: Path, press: str, *more: str) -> Sequence[str]:
    return (
        *("cost", "--model", str(model), "--dtype", "float32", "--rollout", "3", "--samples", "2", "--out", str(to)),
        *("--press", press, *more),
    )


def test_presses_are_measured_and_added_to_the_report(model_folder: Path, tmp_path: Path) -> None:
    task = ("--task", "ruler-2k:fwe", "--budgets", "64,50%")
    done = kvbench(*arguments(model_folder, tmp_path, "k_norm,snapkv:window=16,kernel=3", *task))
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80 or str(tmp_path) in done.stdout
    [first] = read_reports(tmp_path)
    assert first.presses.keys() == {"oracle", "random", "k_norm", "snapkv:window=16,kernel=3"}
    assert [sample.sample for sample in first.samples] == ["fwe/0", "fwe/1"]
    for cost in first.presses.values():
        assert np.shape(cost.normalised) == (2, 3, 2)
        assert np.shape(cost.evicted) == (2, 2)
        assert np.shape(cost.evicted_by_head) == (3, 2, 2)
        assert np.mean(cost.evicted) == pytest.approx(np.mean(cost.evicted_by_head), rel=1e-4)
        assert len(cost.ranking_seconds) == len(cost.prefill_seconds) == 2
    told = json.loads(kvbench(*arguments(model_folder, tmp_path, "streaming_llm", *task, "--json")).stdout)
    [second] = read_reports(tmp_path)
    assert second.presses.keys() == {*first.presses, "streaming_llm"}
    assert second.presses["k_norm"] == first.presses["k_norm"]
    assert second.presses["random"].normalised == first.presses["random"].normalised
    assert {one["press"] for one in told[0]["presses"]} == set(second.presses)


def test_traces_are_ranked_without_the_model_and_only_by_presses_without_queries(
    model_folder: Path, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    taken = kvbench(
        *("traces", "--model", str(model_folder), "--dtype", "float32", "--rollout", "3", "--samples", "2"),
        *("--task", "ruler-2k:fwe", "--out", str(traces)),
    )
    assert taken.returncode == 0, taken.stderr
    refused = kvbench(*arguments(model_folder, tmp_path / "r", "tova", "--traces", str(traces)))
    assert refused.returncode == 2
    assert "press tova reads queries, which traces do not hold" in refused.stderr
    done = kvbench(*arguments(model_folder, tmp_path / "r", "all", "--traces", str(traces)))
    assert done.returncode == 0, done.stderr
    [found] = read_reports(tmp_path / "r")
    assert found.protocol.origin == "traces"
    assert {"oracle", "random", "k_norm", "streaming_llm"} <= found.presses.keys()
    assert not {"tova", "snapkv", "h2o", "full"} & found.presses.keys()
    for name, differs in ((model_folder.name, "weights"), ("other", "name")):
        network = tiny_network(CONFIGS["llama"], torch.float32, seed=1)
        network.save_pretrained(tmp_path / name)
        tiny_tokenizer().save_pretrained(tmp_path / name)
        other = kvbench(*arguments(tmp_path / name, tmp_path / "r", "k_norm", "--traces", str(traces)))
        assert other.returncode == 2
        assert f"are of another model: {differs} " in other.stderr
    other = kvbench(*arguments(model_folder, tmp_path / "r", "k_norm", "--traces", str(traces), "--task", "ruler-4k"))
    assert other.returncode == 2
    assert "did you mean 'ruler-2k'" in other.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "nothing to measure on"),
        (("--traces", "nowhere"), "there are no traces in 'nowhere'"),
        (("--task", "rulr"), "unknown task 'rulr'"),
        (("--task", "ruler-2k", "--protect", "4"), "--protect '4' is not allowed"),
        (("--task", "ruler-2k", "--budgets", "0"), "budget '0' is not allowed"),
    ],
)
def test_wrong_commands_are_refused_in_a_sentence(
    model_folder: Path, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    done = kvbench(*arguments(model_folder, tmp_path, "k_norm", *more))
    assert done.returncode == 2
    [*_, last] = done.stderr.strip().splitlines()
    assert last.startswith("error: ")
    assert words in last


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(Exception, match=r"x\.json is not a cost report: protocol: field required"):
        read_reports(tmp_path)
