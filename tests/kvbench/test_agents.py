"""The learned press's networks and their checkpoint."""

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kvbench.agents import Agents, AgentShape, AgentsInfo, load_agents, log_cosines, save_agents
from kvbench.errors import UsageError
from kvbench.models import ModelFacts

SHAPE = AgentShape(head_dim=8, hidden=16, position_features=4, positions=64)
INFO = AgentsInfo(model="tiny", layers=2, kv_heads=3, shape=SHAPE, training={"steps": 7})
FACTS = ModelFacts(name="tiny", weights="none", layers=2, kv_heads=3, heads=6, head_dim=8, window=512)


class OneAgent(nn.Module):
    """One agent as the paper describes it, from torch's own layers."""

    def __init__(self, agents: Agents, layer: int, head: int) -> None:
        super().__init__()
        weights = {name: tensor[layer, head].detach() for name, tensor in agents.weights.items()}

        def linear(name: str) -> nn.Linear:
            inputs, outputs = weights[f"{name}_weight"].shape
            module = nn.Linear(inputs, outputs)
            module.load_state_dict({"weight": weights[f"{name}_weight"].T, "bias": weights[f"{name}_bias"]})
            return module

        def norm(name: str) -> nn.LayerNorm:
            module = nn.LayerNorm(len(weights[f"{name}_norm_weight"]))
            module.load_state_dict({"weight": weights[f"{name}_norm_weight"], "bias": weights[f"{name}_norm_bias"]})
            return module

        self.key = nn.Sequential(linear("key"), norm("key"))
        self.value = nn.Sequential(linear("value"), norm("value"))
        self.position = nn.Sequential(nn.Embedding.from_pretrained(weights["position_table"]), norm("position"))
        self.head = nn.Sequential(
            linear("first"), norm("first"), nn.SiLU(), linear("second"), norm("second"), nn.SiLU(), linear("score")
        )

    def forward(self, key: Tensor, value: Tensor, position: Tensor) -> Tensor:
        features = [self.key(key), self.value(value), self.position(position)]
        scores: Tensor = self.head(torch.cat(features, dim=-1))
        return scores.squeeze(-1)


def random_agents(info: AgentsInfo = INFO) -> Agents:
    """Agents with every tensor random, the norms' too."""
    generator = torch.Generator().manual_seed(1)
    shapes = info.shape.tensors.items()
    return Agents(
        info, {name: torch.randn(info.layers, info.kv_heads, *size, generator=generator) for name, size in shapes}
    )


def random_states(n: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    keys, values = torch.randn(2, batch, 3, n, 8, generator=generator)
    return keys, values, torch.randint(0, 64, (batch, 3, n), generator=generator)


@pytest.mark.parametrize(("positions", "parameters"), [(6000, 465_729), (12_000, 657_729)])
def test_an_agent_has_the_paper_s_size(positions: int, parameters: int) -> None:
    shape = AgentShape(head_dim=128, positions=positions)
    assert shape.parameters == parameters
    agents = Agents.untrained(AgentsInfo(model="m", layers=1, kv_heads=2, shape=shape), seed=0)
    assert sum(tensor.numel() for tensor in agents.parameters()) == 2 * parameters


@pytest.mark.parametrize("n", [1, 5, 1024, 2500])
def test_all_heads_together_score_like_each_agent_alone(n: int) -> None:
    agents = random_agents()
    keys, values, positions = random_states(n)
    scores = agents.score(1, keys, values, positions)
    assert scores.shape == (2, 3, n)
    assert scores.dtype == torch.float32
    for head in range(3):
        alone = OneAgent(agents, 1, head)(keys[:, head], values[:, head], positions[:, head])
        torch.testing.assert_close(scores[:, head], alone, rtol=1e-4, atol=1e-4)


def test_half_precision_states_are_scored_in_float32() -> None:
    keys, values, positions = random_states(9)
    agents = random_agents()
    halves = agents.score(0, keys.bfloat16(), values.bfloat16(), positions)
    assert torch.equal(halves, agents.score(0, keys.bfloat16().float(), values.bfloat16().float(), positions))


def test_positions_past_the_table_read_its_last_row() -> None:
    agents = random_agents()
    keys, values, positions = random_states(9)
    last = agents.score(0, keys, values, torch.full_like(positions, 63))
    assert torch.equal(agents.score(0, keys, values, torch.full_like(positions, 5000)), last)
    assert not torch.equal(agents.score(0, keys, values, torch.full_like(positions, 62)), last)


def test_log_cosines_need_no_parameters_and_stay_bounded() -> None:
    shape = SHAPE.model_copy(update={"position": "log_cosines", "positions": 100})
    assert not any("position" in name for name in shape.tensors)
    features = log_cosines(torch.tensor([0, 9, 99, 10**6]), 4, 99)
    assert features.abs().max() <= 1
    torch.testing.assert_close(features[0], torch.ones(4))
    torch.testing.assert_close(features[1], torch.tensor([0.0, -1, 0, 1]), rtol=0, atol=1e-5)
    agents = random_agents(INFO.model_copy(update={"shape": shape}))
    keys, values, positions = random_states(9)
    last = agents.score(0, keys, values, torch.full_like(positions, 99))
    assert torch.equal(agents.score(0, keys, values, torch.full_like(positions, 5000)), last)
    assert not torch.equal(agents.score(0, keys, values, torch.full_like(positions, 98)), last)


def test_half_precision_storage_is_used_in_float32(tmp_path: Path) -> None:
    agents = random_agents()
    digest = save_agents(agents, tmp_path / "half.safetensors", torch.float16)
    loaded = load_agents(tmp_path / "half.safetensors", FACTS)
    assert loaded.digest == digest != agents.digest
    assert all(torch.equal(loaded.weights[name], t.half().float()) for name, t in agents.weights.items())
    save_agents(agents, tmp_path / "whole.safetensors")
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]


def test_scores_have_gradients_for_the_scored_layer_only() -> None:
    agents = Agents.untrained(INFO, seed=0)
    agents.score(1, *random_states(9)).sum().backward()
    for name, tensor in agents.weights.items():
        assert tensor.grad is not None
        assert tensor.grad[0].eq(0).all()
        assert tensor.grad[1].ne(0).any(), name


def test_untrained_agents_are_those_of_torch_s_layers() -> None:
    agents = Agents.untrained(AgentsInfo(model="m", layers=3, kv_heads=4, shape=AgentShape(head_dim=64)), seed=0)
    torch.manual_seed(0)
    reference = nn.Linear(544, 256)
    weight, bias = agents.weights["first_weight"], agents.weights["first_bias"]
    assert weight.std().item() == pytest.approx(reference.weight.std().item(), rel=0.02)
    assert weight.abs().max() <= 544**-0.5 >= bias.abs().max()
    assert agents.weights["first_norm_weight"].eq(1).all()
    assert agents.weights["first_norm_bias"].eq(0).all()
    assert agents.weights["position_table"].std().item() == pytest.approx(1, rel=0.01)
    assert agents.digest == Agents.untrained(agents.info, seed=0).digest
    assert agents.digest != Agents.untrained(agents.info, seed=1).digest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_agents(random_agents(), tmp_path / "agents.safetensors")
    return tmp_path / "agents.safetensors"


def test_a_checkpoint_brings_everything_back(checkpoint: Path) -> None:
    loaded = load_agents(checkpoint, FACTS)
    assert loaded.info == INFO
    assert loaded.digest == random_agents().digest
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in random_agents().weights.items())


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow past a few bytes."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_failed_save_leaves_the_old_checkpoint(checkpoint: Path) -> None:
    with full_disk(), pytest.raises(UsageError, match="cannot be written"):
        save_agents(Agents.untrained(INFO, seed=0), checkpoint)
    assert load_agents(checkpoint).digest == random_agents().digest
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_a_save_that_cannot_end_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "agents.safetensors").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        save_agents(random_agents(), tmp_path / "agents.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["agents.safetensors"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written to .*nowhere"):
        save_agents(random_agents(), tmp_path / "nowhere" / "agents.safetensors")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (ModelFacts("other", "none", 2, 3, 6, 8, 512), "another model: tiny, here other"),
        (ModelFacts("tiny", "none", 4, 3, 6, 8, 512), "another model: layers 2, here 4"),
        (ModelFacts("tiny", "none", 2, 1, 6, 8, 512), "another model: KV heads per layer 3, here 1"),
        (ModelFacts("tiny", "none", 2, 3, 6, 64, 512), "another model: head size 8, here 64"),
    ],
)
def test_agents_of_another_model_are_refused(checkpoint: Path, facts: ModelFacts, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_agents(checkpoint, facts)


def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no agents file .*none\.safetensors"):
        load_agents(tmp_path / "none.safetensors")
    with pytest.raises(UsageError, match="there is no agents file"):
        load_agents(tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path("exploded").touch, ()


@pytest.mark.parametrize("name", ["agents.pt", "agents.bin", "agents.safetensors"])
@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, archive: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if archive:
        torch.save(Bomb(), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UsageError, match="is a pickle, which can run code"):
        load_agents(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], object]) -> None:
    """Write a checkpoint again with its tensors or metadata changed."""
    tensors = load_file(path)
    header_length = int.from_bytes(path.read_bytes()[:8], "little")
    metadata = json.loads(path.read_bytes()[8 : 8 + header_length])["__metadata__"]
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def test_a_tensor_must_be_there(checkpoint: Path) -> None:
    rewrite(checkpoint, lambda tensors, _: tensors.pop("second_bias"))
    with pytest.raises(UsageError, match="lacks the tensor 'second_bias'"):
        load_agents(checkpoint)


def test_unknown_tensors_are_refused(checkpoint: Path) -> None:
    rewrite(checkpoint, lambda tensors, _: tensors.update(third_bias=torch.zeros(1)))
    with pytest.raises(UsageError, match="has an unknown tensor 'third_bias'"):
        load_agents(checkpoint)


@pytest.mark.parametrize("tensor", [torch.zeros(2, 3, 17), torch.zeros(2, 3, 16, dtype=torch.bfloat16)])
def test_a_tensor_must_have_its_shape_and_type(checkpoint: Path, tensor: Tensor) -> None:
    rewrite(checkpoint, lambda tensors, _: tensors.update(second_bias=tensor))
    with pytest.raises(UsageError, match=r"'second_bias' is .*, it must be torch.float32 or float16 \(2, 3, 16\)"):
        load_agents(checkpoint)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_must_be_finite(checkpoint: Path, value: float) -> None:
    rewrite(checkpoint, lambda tensors, _: tensors["key_bias"].fill_(value))
    with pytest.raises(UsageError, match="'key_bias' has values that are not finite"):
        load_agents(checkpoint)


def test_changed_weights_are_noticed(checkpoint: Path) -> None:
    content = bytearray(checkpoint.read_bytes())
    content[-3] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(UsageError, match="is damaged: its weights are not those that were saved"):
        load_agents(checkpoint)


def test_a_torn_file_is_refused(checkpoint: Path) -> None:
    content = checkpoint.read_bytes()
    for length in (0, 4, 100, len(content) - 1):
        checkpoint.write_bytes(content[:length])
        with pytest.raises(UsageError, match="cannot be read as safetensors"):
            load_agents(checkpoint)


def test_other_safetensors_files_are_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="holds no agents"):
        load_agents(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("format", 2, "format"), ("layers", 0, "layers"), ("shape", {"head_dim": 8, "depth": 3}, "shape.depth")],
)
def test_a_description_that_is_not_understood_is_refused(
    checkpoint: Path, field: str, value: object, message: str
) -> None:
    def change(_: dict[str, Tensor], metadata: dict[str, str]) -> None:
        metadata["kvbench_agents"] = json.dumps({**json.loads(metadata["kvbench_agents"]), field: value})

    rewrite(checkpoint, change)
    with pytest.raises(UsageError, match=f"describes its agents wrongly: {message}"):
        load_agents(checkpoint)
