"""`kvbench train` on synthetic traces: it learns, resumes, and trains in several processes as in one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import Done, kvbench
from kvbench.agents import Agents, AgentShape, AgentsInfo, load_agents
from kvbench.errors import UsageError
from kvbench.traces import Trace, TraceEntry, TraceManifest, write_manifest, write_sequence
from kvbench.training.corpus import Corpus, split
from kvbench.training.evaluation import normalised_costs
from kvbench.training.settings import TrainingSettings, make_settings, shape_of
from kvbench.training.state import TrainingState
from kvbench.training.trainer import Trainer, clip, learning_rate

LAYERS, KV_HEADS, HEAD_DIM = (0, 2), 2, 8
SHAPE = AgentShape(head_dim=HEAD_DIM, hidden=16, position="log_cosines", position_features=4, positions=4096)
INFO = AgentsInfo(model="toy", weights="random", layers=3, kv_heads=KV_HEADS, shape=SHAPE)
SETTINGS = TrainingSettings(
    steps=60, lr=1e-2, warm_up=5, batch=2, tokens=32, average=0.9, evaluations=3, held_out=0.25, seed=1
)


def write_traces(folder: Path, tasks: tuple[str, ...] = ("toy",), count: int = 12, model: str = "toy") -> Path:
    """Sequences whose u can be read off their keys, and falls with the position."""
    entries = [
        TraceEntry(
            task=task, subtask="all", sample=f"{task}/{i}", sample_hash="0" * 16, source=f"{task}-{i // 2}",
            cuts=(20 + i, 50 + i),
        )
        for task in tasks
        for i in range(count)
    ]  # fmt: skip
    manifest = TraceManifest(
        model=model, weights="random", model_layers=3, layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
        scaling=(1.0, 1.0), dtype="float32", attention="sdpa", device="cpu",
        seed=1, cuts=2, rollout=3, sequences=entries,
    )  # fmt: skip
    (folder / "sequences").mkdir(parents=True, exist_ok=True)
    write_manifest(folder, manifest)
    direction = torch.randn(HEAD_DIM, generator=torch.Generator().manual_seed(0))
    for number, entry in enumerate(entries):
        generator = torch.Generator().manual_seed(number)
        shape = (len(LAYERS), KV_HEADS, entry.tokens, HEAD_DIM)
        keys, values = (torch.randn(shape, generator=generator).half() for _ in range(2))
        u = (keys.float() @ direction - 0.02 * torch.arange(entry.tokens)).exp()
        write_sequence(folder, number, Trace(entry, keys, values, {cut: u[..., :cut] for cut in entry.cuts}, 4))
    return folder


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_traces(tmp_path_factory.mktemp("traces"))


def make_trainer(traces: Path, settings: TrainingSettings = SETTINGS, info: AgentsInfo = INFO) -> Trainer:
    corpus = Corpus.of([traces])
    return Trainer(corpus, split(corpus, settings.held_out, settings.held_out_most, settings.seed), info, settings)


def mean_cost(agents: Agents, traces: Path) -> float:
    corpus = Corpus.of([traces])
    costs = [normalised_costs(agents, corpus.read(sequence), LAYERS) for sequence in corpus.sequences]
    return float(torch.stack(costs).mean())


def test_the_normalised_cost_is_that_of_brute_force(traces: Path) -> None:
    agents = Agents.untrained(INFO, seed=3)
    corpus = Corpus.of([traces])
    trace = corpus.read(corpus.sequences[4])
    found = normalised_costs(agents, trace, LAYERS)
    n = trace.entry.tokens
    for index, layer in enumerate(LAYERS):
        positions = torch.arange(n).expand(1, KV_HEADS, n)
        scores = agents.score(layer, trace.keys[index : index + 1], trace.values[index : index + 1], positions)[0]
        for head in range(KV_HEADS):
            u = trace.future[n][index, head].double().numpy()

            def evicted(order: np.ndarray, u: np.ndarray = u) -> float:
                return sum(float(u[order[budget:]].sum()) for budget in range(n))

            order = np.argsort(-scores[head].detach().numpy(), kind="stable")
            assert found[index, head].item() == pytest.approx(evicted(order) / evicted(np.argsort(-u)), rel=1e-5)


@pytest.mark.parametrize(("objective", "reached"), [("exact", 1.3), ("rloo", 1.6)])
def test_training_learns_what_can_be_read_off_the_keys(traces: Path, objective: str, reached: float) -> None:
    told: list[int] = []
    trainer = make_trainer(traces, SETTINGS.model_copy(update={"objective": objective}))
    agents = trainer.run(lambda evaluation: told.append(evaluation.step))
    assert told == [20, 40, 60]
    assert [point["step"] for point in trainer.state.curve] == told
    untrained = mean_cost(Agents.untrained(INFO, seed=1), traces)
    trained = mean_cost(agents, traces)
    assert untrained > 2
    assert trained < reached
    assert trainer.state.best_cost == pytest.approx(min(point["cost"] for point in trainer.state.curve), abs=1e-5)


def test_layers_without_traces_keep_their_initial_weights(traces: Path) -> None:
    trained = make_trainer(traces).run(lambda _: None)
    untrained = Agents.untrained(INFO, seed=1)
    for name, tensor in trained.weights.items():
        assert torch.equal(tensor[1], untrained.weights[name][1])
        assert not torch.equal(tensor[2], untrained.weights[name][2]), name


def test_the_split_keeps_documents_together_and_tasks_apart(tmp_path: Path) -> None:
    corpus = Corpus.of([write_traces(tmp_path, ("one", "two"))])
    parts = split(corpus, 0.25, 16, seed=5)
    assert sorted(parts.train + parts.held_out) == list(corpus.sequences)
    assert parts == split(corpus, 0.25, 16, seed=5)
    assert parts != split(corpus, 0.25, 16, seed=6)
    held_out = [corpus.entry(sequence) for sequence in parts.held_out]
    assert {task: sum(e.task == task for e in held_out) for task in ("one", "two")} == {"one": 4, "two": 4}
    assert {e.source for e in held_out}.isdisjoint(corpus.entry(sequence).source for sequence in parts.train)
    assert len(split(corpus, 0.25, 1, seed=5).held_out) == 4  # one source of two sequences per task


def test_several_folders_are_learned_from_together(tmp_path: Path) -> None:
    one, two = write_traces(tmp_path / "one", ("one",)), write_traces(tmp_path / "two", ("two",))
    corpus = Corpus.of([one, two])
    assert {corpus.entry(sequence).task for sequence in corpus.sequences} == {"one", "two"}
    other = write_traces(tmp_path / "other", model="other")
    with pytest.raises(UsageError, match="model other, not toy"):
        Corpus.of([one, other])


def test_a_single_source_cannot_be_split(tmp_path: Path) -> None:
    corpus = Corpus.of([write_traces(tmp_path, count=2)])
    with pytest.raises(UsageError, match="the traces of toy come from 1 source"):
        split(corpus, 0.25, 16, 0)


class StopError(Exception):
    """Stands for a training that is killed."""


def test_a_stopped_training_goes_on_as_if_it_had_not_been(traces: Path, tmp_path: Path) -> None:
    whole = make_trainer(traces).run(lambda _: None)
    state = tmp_path / "state.safetensors"

    def stop(_: object) -> None:
        if state.is_file():
            raise StopError

    with pytest.raises(StopError):
        make_trainer(traces).run(stop, state)
    resumed = make_trainer(traces)
    assert TrainingState.load(state, resumed.identity, resumed.state.weights).step == 20
    told: list[int] = []
    assert resumed.run(lambda evaluation: told.append(evaluation.step), state).digest == whole.digest
    assert told == [40, 60]
    assert [point["step"] for point in resumed.state.curve] == [20, 40, 60]


def test_a_state_of_other_settings_is_refused(traces: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    trainer = make_trainer(traces, SETTINGS.model_copy(update={"steps": 2}))
    trainer.run(lambda _: None, state)
    with pytest.raises(UsageError, match="with other settings or traces: delete it"):
        make_trainer(traces, SETTINGS.model_copy(update={"steps": 3})).run(lambda _: None, state)
    state.write_bytes(b"torn")
    with pytest.raises(UsageError, match="is not the state of a training"):
        trainer.run(lambda _: None, state)


def test_gradients_are_clipped_per_agent() -> None:
    gradients = {"a": torch.tensor([[3.0, 4.0], [30.0, 40.0]]), "b": torch.tensor([[[0.0]], [[0.0]]])}
    clip(gradients, 5)
    torch.testing.assert_close(gradients["a"], torch.tensor([[3.0, 4.0], [3.0, 4.0]]))


def test_the_update_is_torch_s_adamw(traces: Path) -> None:
    trainer = make_trainer(traces, SETTINGS.model_copy(update={"weight_decay": 0.1}))
    reference = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in trainer.state.weights.items()}
    optimiser = torch.optim.AdamW(reference.values(), lr=1e-2, weight_decay=0.1)
    for step in range(1, 5):
        generator = torch.Generator().manual_seed(step)
        gradients = {name: torch.randn(t.shape, generator=generator) for name, t in reference.items()}
        for name, tensor in reference.items():
            tensor.grad = gradients[name].clone()
        optimiser.step()
        trainer.state.step = step
        trainer._update(gradients, 1e-2)
    for name, tensor in reference.items():
        torch.testing.assert_close(trainer.state.weights[name], tensor.detach())


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(SETTINGS, step, (step - 1) / SETTINGS.steps) for step in range(1, 61)]
    assert rates[0] < rates[2] < rates[4] == max(rates)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert learning_rate(SETTINGS, 60, 1) == pytest.approx(SETTINGS.last_lr)


def test_time_ends_a_training_too(traces: Path) -> None:
    trainer = make_trainer(traces, SETTINGS.model_copy(update={"steps": 100_000, "minutes": 1 / 60}))
    started = time.monotonic()
    trainer.run(lambda _: None)
    assert time.monotonic() - started < 20
    assert 0 < trainer.state.step < 100_000
    assert trainer.state.curve


def test_the_paper_s_settings_are_the_default_of_its_agent() -> None:
    settings = make_settings("paper", lr=None)
    assert (settings.lr, settings.steps, settings.warm_up, settings.weight_decay) == (5e-5, 4000, 100, 1e-3)
    assert (settings.last_lr, settings.clip, settings.average) == (1e-6, 5.0, 0.99)
    assert shape_of("paper", 128).parameters == 465_729
    with pytest.raises(UsageError, match="unknown agent 'papr': did you mean 'paper'"):
        make_settings("papr")


WORKER = """
import sys
from pathlib import Path
import torch
from kvbench.agents import AgentsInfo, save_agents
from kvbench.training.corpus import Corpus, split
from kvbench.training.processes import joined
from kvbench.training.settings import TrainingSettings
from kvbench.training.trainer import Trainer

traces, to, settings, info = sys.argv[1:]
torch.set_num_threads(1)
settings = TrainingSettings.model_validate_json(settings)
corpus = Corpus.of([Path(traces)])
parts = split(corpus, settings.held_out, settings.held_out_most, settings.seed)
with joined("cpu") as (processes, device):
    assert processes.count == 2
    info = AgentsInfo.model_validate_json(info)
    agents = Trainer(corpus, parts, info, settings, device, processes).run(lambda _: None)
    if processes.is_first:
        save_agents(agents, Path(to))
"""


def test_two_processes_train_what_one_does(traces: Path, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"steps": 4, "evaluations": 1})
    (tmp_path / "worker.py").write_text(WORKER)
    arguments = [str(traces), str(tmp_path / "two.safetensors"), settings.model_dump_json(), INFO.model_dump_json()]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(tmp_path / "worker.py"), *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    two = load_agents(tmp_path / "two.safetensors")
    one = make_trainer(traces, settings).run(lambda _: None)
    for name, tensor in one.weights.items():
        if name != "score_bias":  # shifts all scores: its gradient is rounding noise, which AdamW makes as large as any
            torch.testing.assert_close(two.weights[name], tensor, rtol=1e-3, atol=1e-4)


def error_of(done: Done) -> str:
    """The one line that a failed command prints last."""
    return " ".join(done.stderr.split("error:")[-1].split())


def train_arguments(traces: Path, to: Path, *more: str) -> tuple[str, ...]:
    return ("train", "--traces", str(traces), "--out", str(to), "--device", "cpu", "--steps", "4", *more)


def test_the_command_writes_agents_that_say_how_they_came_to_be(traces: Path, tmp_path: Path) -> None:
    to = tmp_path / "agents.safetensors"
    done = kvbench(*train_arguments(traces, to, "--half"))
    assert done.returncode == 0, done.stderr
    assert "worst" in done.stderr
    assert "held-out normalised cost" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["agents.safetensors"]
    info = load_agents(to).info
    assert (info.model, info.weights, info.layers, info.shape) == ("toy", "random", 3, shape_of("small", HEAD_DIM))
    said = info.training
    assert said["command"].startswith("kvbench train --traces")
    assert said["settings"]["objective"] == "exact"
    assert said["learned_from"] == {"toy:all": 10}
    assert [one["task"] for one in said["held_out"]] == ["toy", "toy"]
    assert said["curve"][-1]["step"] == 4
    assert said["environment"]["kvbench"]
    again = kvbench(*train_arguments(traces, to, "--half"))
    assert again.returncode == 0
    assert "is there already" in again.stderr
    assert "agents of another training" in error_of(kvbench(*train_arguments(traces, to, "--lr", "1e-4")))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--objective", "rlo"), "unknown objective 'rlo': did you mean 'rloo'"),
        (("--agent", "large"), "unknown agent 'large'"),
        (("--lr", "-1"), "lr"),
    ],
)
def test_a_wrong_command_is_a_sentence(traces: Path, tmp_path: Path, more: tuple[str, ...], message: str) -> None:
    done = kvbench(*train_arguments(traces, tmp_path / "a.safetensors", *more))
    assert done.returncode == 2
    assert message in error_of(done)


def test_traces_must_be_there(tmp_path: Path) -> None:
    done = kvbench(*train_arguments(tmp_path / "none", tmp_path / "a.safetensors"))
    assert (done.returncode, "there are no traces in" in error_of(done)) == (2, True)
