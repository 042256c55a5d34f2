"""KVP: a press that needs a checkpoint."""

from pathlib import Path

import pytest
import torch

from kvbench.agents import Agents, AgentShape, AgentsInfo, save_agents
from kvbench.check import Shape, random_layer
from kvbench.errors import UsageError
from kvbench.models import ModelFacts
from kvbench.registry import make_press

SHAPE = Shape(kv_heads=2, heads=6, head_dim=8)
FACTS = ModelFacts("tiny", "none", 3, 2, 6, 8, 512)


@pytest.fixture
def agents() -> Agents:
    sizes = AgentShape(head_dim=8, hidden=16, position_features=4, positions=64)
    return Agents.untrained(AgentsInfo(model="tiny", layers=3, kv_heads=2, shape=sizes), seed=0)


def test_it_ranks_by_the_agents_of_the_layer(agents: Agents, tmp_path: Path) -> None:
    save_agents(agents, tmp_path / "a.safetensors")
    press = make_press(f"kvp:checkpoint={tmp_path / 'a.safetensors'}").for_model(FACTS)
    layer = random_layer(SHAPE, 50)
    scores = agents.score(0, layer.keys, layer.values, layer.positions)
    assert torch.equal(press.sort(layer), scores.argsort(dim=-1, descending=True, stable=True))


def test_without_a_checkpoint_it_says_how_to_give_one() -> None:
    press = make_press("kvp")
    with pytest.raises(UsageError, match="kvp:checkpoint=FILE"):
        press.for_model(FACTS)
    with pytest.raises(UsageError, match="kvp:checkpoint=FILE"):
        press.identity()
    with pytest.raises(UsageError, match="kvp:checkpoint=FILE"):
        press.sort(random_layer(SHAPE, 5))
    with pytest.raises(UsageError, match=r"the agents of a\.safetensors are not loaded"):
        make_press("kvp:checkpoint=a.safetensors").sort(random_layer(SHAPE, 5))


def test_agents_of_another_model_are_refused(agents: Agents, tmp_path: Path) -> None:
    save_agents(agents, tmp_path / "a.safetensors")
    press = make_press(f"kvp:checkpoint={tmp_path / 'a.safetensors'}")
    with pytest.raises(UsageError, match="its KV heads per layer is 2, here it is 4"):
        press.for_model(ModelFacts("tiny", "none", 3, 4, 8, 8, 512))


def test_its_identity_is_the_weights_wherever_the_file_lies(agents: Agents, tmp_path: Path) -> None:
    save_agents(agents, tmp_path / "a.safetensors")
    save_agents(agents, tmp_path / "b.safetensors")
    a, b = (make_press(f"kvp:checkpoint={tmp_path / name}.safetensors") for name in "ab")
    assert a.identity() == b.identity() == a.for_model(FACTS).identity()
    assert a.identity() == {"version": 1, "checkpoint": agents.digest}
    with torch.no_grad():
        agents.weights["score_bias"] += 1
    save_agents(agents, tmp_path / "b.safetensors")
    assert a.identity() != b.identity()
