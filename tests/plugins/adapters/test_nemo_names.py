"""What NeMo Gym calls of our server, as far as that can be told without Python 3.12."""

from __future__ import annotations

import ast
from pathlib import Path

import yaml

FILE = Path(__file__).parents[3] / "plugins" / "adapters" / "nemo_gym.py"
TREE = ast.parse(FILE.read_text())

#: As resources_servers.gymnasium.GymnasiumServer has them in NeMo Gym 0.4.
METHODS = {
    "reset": ["self", "metadata", "session_id"],
    "step": ["self", "action", "metadata", "session_id"],
    "close_session": ["self", "session_id"],
}


def test_the_server_has_the_methods_of_a_gymnasium_server():
    (server,) = (n for n in TREE.body if isinstance(n, ast.ClassDef) and n.name == "RollenvServer")
    assert [ast.unparse(base) for base in server.bases] == ["GymnasiumServer"]
    found = {n.name: [a.arg for a in n.args.args] for n in server.body if isinstance(n, ast.AsyncFunctionDef)}
    assert {name: found[name] for name in METHODS} == METHODS
    for name in ("reset", "step"):
        (method,) = (n for n in server.body if getattr(n, "name", "") == name)
        assert ast.literal_eval(method.args.defaults[-1]) is None


def test_the_configuration_is_yaml_whose_agent_is_theirs():
    (text,) = (
        ast.literal_eval(n.value) for n in TREE.body if isinstance(n, ast.Assign) and n.targets[0].id == "_CONFIG"
    )
    made = yaml.safe_load(text.format(name="x", env_id='"game:X-v0"', env_kwargs='{"a": 1}', max_steps=7))
    assert made["x"]["resources_servers"]["x"]["env_kwargs"] == {"a": 1}
    agent = made["x_agent"]["responses_api_agents"]["gymnasium_agent"]
    assert (agent["max_steps"], agent["resources_server"]["name"]) == (7, "x")
