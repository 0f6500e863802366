"""``gymnasium:ID`` with ``images=``: what an environment renders is shown."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rollenv
from rollenv.core.errors import UsageError


class Pixels(gymnasium.Env):
    """A walk that is seen, and told in numbers too large to be shown."""

    metadata = {"render_modes": ["rgb_array"]}
    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (64, 64, 3)), "mission": spaces.Text(20)})

    def __init__(self, render_mode=None, blind=False):
        self.render_mode, self.blind = render_mode, blind

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(8))
        return {"image": self.render(), "mission": "go right"}, {"at": self.at}

    def step(self, action):
        self.at += int(action)
        return {"image": self.render(), "mission": "go right"}, float(action), self.at > 20, False, {}

    def render(self):
        if self.blind:
            return None
        board = np.zeros((28, 28 * 24, 3), np.uint8)
        board[:, 28 * self.at : 28 * self.at + 28] = (255, 0, 0)
        return board


gymnasium.register("rollenvtest/Pixels-v0", Pixels)


@pytest.mark.parametrize(("images", "told"), [("only", "<image>\nmission: go right"), ("also", "<image>\nimage: (")])
def test_what_it_renders_is_shown(images, told):
    env = rollenv.make("gymnasium:rollenvtest/Pixels-v0", images=images)
    observation, info = env.reset(3)
    assert env.spawn().reset(3) == (observation, info)
    assert f"\n\n{told}" in observation
    for action, by in (("1", 1), ("nonsense", 0), ("0", 0)):
        before = info["images"][0].array()
        observation, *_, info = env.step(action)
        assert told in observation
        assert np.array_equal(np.roll(before, 28 * by, 1), info["images"][0].array())
    assert env.spawn(same_state=True).step("1") == env.step("1")
    with pytest.raises(UsageError, match="renders no pixels"):
        rollenv.make("gymnasium:rollenvtest/Pixels-v0", images=images, blind=True).reset(1)
    with pytest.raises(UsageError, match="'only' or 'also'"):
        rollenv.make("gymnasium:rollenvtest/Pixels-v0", images="yes")


def test_minigrid_is_seen():
    pytest.importorskip("minigrid")
    env = rollenv.make("gymnasium:minigrid:MiniGrid-DoorKey-5x5-v0", images="only", tile_size=28)
    observation, info = env.reset(1)
    assert observation.endswith("<image>\nmission: use the key to open the door and then get to the goal")
    assert (info["images"][0].width, info["images"][0].height) == (140, 140)
    assert env.step("forward")[4]["valid"] is True
