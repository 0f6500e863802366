"""Patterns: playing."""

from __future__ import annotations

import gem
from common import pattern
from gem.envs.game_env.guess_the_number import GuessTheNumberEnv


@pattern
def a_random_agent_of_the_readme():
    env = gem.make("game:GuessTheNumber-v0-easy")
    env.reset()
    for _ in range(20):
        _, reward, terminated, truncated, info = env.step(env.sample_random_action())
        assert isinstance(reward, (int, float)) and "suffix" in info
        if terminated or truncated:
            env.reset()


@pattern
def steps_out_of_turn():
    for name in ("game:GuessTheNumber-v0-easy", "game:Mastermind-v0-easy", "game:Sokoban-v0-easy"):
        assert len(gem.make(name).step("\\boxed{1}")) == 5
    env = gem.make("game:GuessTheNumber-v0-easy")
    env.reset(seed=0)
    assert env.step("no box")[1:3] == (-0.1, True)
    for _ in range(10):
        assert len(env.step("\\boxed{1}")) == 5
    env = gem.make("game:GuessTheNumber-v0-hard", max_turns=2)
    env.reset(seed=0)
    wrong = "\\boxed{1}" if env.game_number != 1 else "\\boxed{2}"
    env.step(wrong)
    assert env.step(wrong)[2:4] == (True, True)


@pattern
def arguments_nobody_knows():
    env = gem.make("game:GuessTheNumber-v0-hard", seed=3, num_workers=2, eval=True, split="train", verbose=False)
    assert env.reset(seed=1)[0]
    assert gem.make("rg:leg_counting", size=5, seed=2, whatever=1).reset()[0]


@pattern
def subclasses_of_games():
    class Kind(GuessTheNumberEnv):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation + " Well done.", reward + 1, terminated, truncated, {**info, "kind": True}

        def reset(self, seed=None):
            observation, info = super().reset(seed)
            return "Welcome. " + observation, info

    env = Kind(1, 10, 4)
    assert env.reset(3)[0].startswith("Welcome. ")
    observation, reward, *_, info = env.step(f"\\boxed{{{env.game_number}}}")
    assert reward == 2 and info["kind"] and observation.endswith("Well done.")
