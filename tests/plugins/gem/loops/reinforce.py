"""REINFORCE with normalised returns (ReBN) on an environment of one's own, as GEM's training scripts do it.

A step is a transition: what the environment showed, what was answered, and the discounted return from there. A batch of
transitions has its returns normalised; the policy is a table of softmax weights over candidate actions.
"""

import json
import random

import gem
import numpy as np
from gem import Env
from gem.envs.registration import register
from gem.utils.constants import TERMINAL_STATE
from gem.utils.parsing import extract_last_boxed_answer
from gem.wrappers.wrapper_factory import get_wrapper_fns

GAMMA, RATE, CANDIDATES = 0.9, 4.0, [f"\\boxed{{{i}}}" for i in range(6)]


class HigherLower(Env):
    """Find a number; it draws from the process-wide generators, as GEM's own environments do."""

    def __init__(self, max_turns=4, **_):
        super().__init__()
        self.max_turns = max_turns
        self.reset()

    def reset(self, seed=None):
        super().reset(seed)
        self.number = random.randint(1, 4) + int(np.random.randint(0, 2))
        self.turn = 0
        return "Guess a number from 0 to 5.", {"suffix": f"turn {self.turn}"}

    def step(self, action):
        self.turn += 1
        guess = extract_last_boxed_answer(action)
        if guess is None or not guess.isdigit():
            return TERMINAL_STATE, -0.1, True, self.turn == self.max_turns, {}
        if int(guess) == self.number:
            return TERMINAL_STATE, 1.0, True, self.turn == self.max_turns, {}
        said = "higher" if int(guess) < self.number else "lower"
        if self.turn == self.max_turns:
            return TERMINAL_STATE, 0.0, True, True, {}
        return f"After {guess}: {said}.", 0.0, False, False, {"suffix": f"turn {self.turn}"}

    def sample_random_action(self):
        return random.choice(CANDIDATES)


class Policy:
    def __init__(self, seed):
        self.weights, self.draws = {}, np.random.RandomState(seed)

    def probabilities(self, prompt):
        weights = self.weights.setdefault(prompt, np.zeros(len(CANDIDATES)))
        exp = np.exp(weights - weights.max())
        return exp / exp.sum()

    def act(self, prompt):
        return int(self.draws.choice(len(CANDIDATES), p=self.probabilities(prompt)))

    def update(self, batch):
        returns = np.array([g for _, _, g in batch])
        advantages = (returns - returns.mean()) / (returns.std() + 1e-8)
        gradients = {}
        for (prompt, action, _), advantage in zip(batch, advantages, strict=False):
            gradient = gradients.setdefault(prompt, np.zeros(len(CANDIDATES)))
            gradient -= advantage * self.probabilities(prompt)
            gradient[action] += advantage
        for prompt, gradient in gradients.items():
            self.weights[prompt] += RATE * gradient / len(batch) ** 0.5


def transitions(prompts, actions, rewards):
    total, found = 0.0, []
    for prompt, action, reward in zip(reversed(prompts), reversed(actions), reversed(rewards), strict=False):
        total = reward + GAMMA * total
        found.append((prompt, action, total))
    return found


def collect(env, observations, running, policy, wanted):
    """Episodes of a vector environment until there are enough transitions; it resets by itself."""
    n, done, batch = len(observations), [], []
    while len(batch) < wanted:
        choices = [policy.act(observation) for observation in observations]
        after, rewards, terminated, truncated, infos = env.step([CANDIDATES[choice] for choice in choices])
        for i in range(n):
            for part, value in zip(running[i], (observations[i], choices[i], float(rewards[i])), strict=False):
                part.append(value)
            if terminated[i] or truncated[i]:
                batch += transitions(*running[i])
                done.append((sum(running[i][2]), len(running[i][2])))
                assert infos[i]["prev_ep_step_counter"] == len(running[i][2])
                running[i] = ([], [], [])
        observations = after
    return observations, batch, done


register("own:HigherLower", HigherLower, max_turns=4)
env = gem.make_vec(["own:HigherLower"] * 6, wrappers=get_wrapper_fns("concat_with_action,episode_tracking"), seed=3)
observations, infos = env.reset(seed=11)
policy, curve, running = Policy(0), [], [([], [], []) for _ in observations]
for _ in range(20):
    observations, batch, done = collect(env, observations, running, policy, 150)
    policy.update(batch)
    curve.append([len(batch), len(done), float(np.mean([r for r, _ in done])), float(np.mean([n for _, n in done]))])
single = gem.make("own:HigherLower")
single.reset(seed=5)
print(
    json.dumps(
        {
            "first": observations[:2],
            "curve": curve,
            "states": len(policy.weights),
            "number": single.number,
            "next": [single.reset() and single.number for _ in range(5)],
        }
    )
)
