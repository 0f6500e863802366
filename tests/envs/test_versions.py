"""Episodes of bundled ids are those of the versions that their names say (docs/project/versioning.md)."""

import hashlib
import json
from pathlib import Path

import pytest

import rollenv

#: From ids to digests of an episode. Only a new version of an id, an id that is new, or another choice of its expert
#: changes this file: `python tests/envs/test_versions.py` writes it.
FILE = Path(__file__).with_name("episodes.json")
BUNDLED = ("game", "tools", "multi", "logic", "eval", "ragen", "roll")


def episode(env_id: str) -> str:
    """Digest everything that an agent is shown in two turns of an oracle and four of random actions."""
    env = rollenv.make(env_id)
    observation, info = env.reset(seed=3)
    shown = [(observation, {name: value for name, value in info.items() if name != "forfeit"})]  # not shown to agents
    for turn in range(6):
        action = env.oracle_action() if turn < 2 and hasattr(env, "oracle_action") else env.sample_random_action()
        shown.append((action, *env.step(action)))
        if shown[-1][3] or shown[-1][4]:
            break
    env.close()
    return hashlib.sha256(json.dumps(shown, default=str, sort_keys=True).encode()).hexdigest()[:16]


def bundled_ids() -> list[str]:
    return [
        spec.id
        for spec in rollenv.list_envs()
        if spec.namespace in BUNDLED and not spec.needs and "random_action" in spec.abilities
    ]


@pytest.mark.parametrize("env_id", [each for each in bundled_ids() if each.endswith("-v0")])
def test_an_id_plays_the_episode_of_its_version(env_id):
    known = json.loads(FILE.read_text())
    assert episode(env_id) == known[env_id], f"{env_id} plays another episode: that needs a new version of the id"


@pytest.mark.integration
def test_every_variant_plays_the_episode_of_its_version():
    known = json.loads(FILE.read_text())
    assert {env_id: episode(env_id) for env_id in bundled_ids()} == known


if __name__ == "__main__":
    FILE.write_text(json.dumps({env_id: episode(env_id) for env_id in bundled_ids()}, indent=0) + "\n")
