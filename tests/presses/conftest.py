"""What the tests of presses share."""

from collections.abc import Callable

import pytest

from kvbench.agents import Agents, AgentShape, AgentsInfo, save_agents
from kvbench.check import Shape
from kvbench.models import ModelFacts
from kvbench.press import Press
from kvbench.registry import make_press

SMOLLM2 = Shape()


@pytest.fixture(scope="session")
def ready_press(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Press]:
    """Make a press from its spec, ready for a layer's shape: KVP gets small untrained agents."""

    def make(spec: str, shape: Shape = SMOLLM2) -> Press:
        if spec != "kvp":
            return make_press(spec)
        facts = ModelFacts("tiny", "none", 2, shape.kv_heads, shape.heads, shape.head_dim, 512)
        sizes = AgentShape(head_dim=shape.head_dim, hidden=16, position_features=4, positions=64)
        file = tmp_path_factory.mktemp("agents") / "tiny.safetensors"
        info = AgentsInfo(model="tiny", layers=2, kv_heads=shape.kv_heads, shape=sizes)
        save_agents(Agents.untrained(info, seed=0), file)
        return make_press(f"kvp:checkpoint={file}").for_model(facts)

    return make
