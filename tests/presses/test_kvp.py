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


def test_a_model_without_agents_is_told_how_to_train_them() -> None:
    with pytest.raises(UsageError, match="comes without agents for tiny: train them with `kvbench train`"):
        make_press("kvp").for_model(FACTS)
    with pytest.raises(UsageError, match="comes without ruler agents for tiny"):
        make_press("kvp:variant=ruler").for_model(FACTS)
    with pytest.raises(UsageError, match="variant"):
        make_press("kvp:variant=rulr")


def test_agents_are_loaded_for_a_model_first() -> None:
    press = make_press("kvp")
    for use in (press.identity, lambda: press.sort(random_layer(SHAPE, 5))):
        with pytest.raises(UsageError, match="kvp:checkpoint=FILE"):
            use()
    with pytest.raises(UsageError, match=r"the agents of a\.safetensors are not loaded"):
        make_press("kvp:checkpoint=a.safetensors").sort(random_layer(SHAPE, 5))


@pytest.mark.parametrize("name", ["smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"])
def test_the_agents_that_come_with_kvbench_are_found_by_any_of_the_model_s_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.agents.CHECKPOINTS", tmp_path)
    sizes = AgentShape(head_dim=8, hidden=16, position="log_cosines", position_features=4, positions=64)
    digests = {}
    for seed, suffix in enumerate(("", "-ruler", "-oasst2")):
        info = AgentsInfo(model="smollm2-135m", weights="wheel", layers=3, kv_heads=2, shape=sizes)
        file = tmp_path / f"smollm2-135m{suffix}.safetensors"
        digests[suffix] = save_agents(Agents.untrained(info, seed), file, torch.float16)
    facts = ModelFacts(name, "hub", 3, 2, 6, 8, 512)
    for suffix, spec in (("", "kvp"), ("-ruler", "kvp:variant=ruler"), ("-oasst2", "kvp:variant=oasst2")):
        assert make_press(spec).for_model(facts).identity() == {"version": 1, "checkpoint": digests[suffix]}


def test_agents_of_the_same_weights_or_transferred_ones_are_used(agents: Agents, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_agents(Agents(agents.info.model_copy(update={"weights": "sha256:1"}), dict(agents.weights.items())), file)
    press = make_press(f"kvp:checkpoint={file}")
    press.for_model(ModelFacts("renamed", "sha256:1", 3, 2, 6, 8, 512))
    tuned = ModelFacts("tuned", "sha256:2", 3, 2, 6, 8, 512)
    with pytest.raises(UsageError, match=r"another model: tiny, here tuned; .*kvp:transfer=true"):
        press.for_model(tuned)
    make_press(f"kvp:checkpoint={file},transfer=true").for_model(tuned)
    with pytest.raises(UsageError, match="another model: layers 3, here 4"):
        make_press(f"kvp:checkpoint={file},transfer=true").for_model(ModelFacts("tuned", "none", 4, 2, 6, 8, 512))


def test_agents_of_another_model_are_refused(agents: Agents, tmp_path: Path) -> None:
    save_agents(agents, tmp_path / "a.safetensors")
    press = make_press(f"kvp:checkpoint={tmp_path / 'a.safetensors'}")
    with pytest.raises(UsageError, match="another model: KV heads per layer 2, here 4"):
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
