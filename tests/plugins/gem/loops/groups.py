"""Groups for GRPO as GEM's script makes them: members of one question share its state, and advantages are their own."""

import json
from copy import deepcopy

import numpy as np
from datasets import Dataset
from gem.envs.math_env import MathEnv
from gem.envs.reasoning_gym import ReasoningGymEnv

ROWS = Dataset.from_list([{"problem": f"What is {i} - 3?", "answer": str(i - 3)} for i in range(30)])
CANDIDATES = 6


def members(env, size, **fresh):
    """The same question `size` times: by its state where there is one, else by a copy."""
    state = env.get_state() if hasattr(env, "get_state") else None
    found = []
    for _ in range(size):
        if state is None:
            found.append(deepcopy(env))
        else:
            found.append(env.spawn(same_state=True))
    return found


def train(env, question, right, iterations=10, size=8):
    weights, draws, curve = np.zeros(CANDIDATES), np.random.RandomState(0), []
    for _ in range(iterations):
        rewards, chosen = [], []
        for _ in range(4):
            env.reset()
            for member in members(env, size):
                p = np.exp(weights) / np.exp(weights).sum()
                choice = int(draws.choice(CANDIDATES, p=p))
                _, reward, terminated, truncated, _ = member.step(f"\\boxed{{{right(member) + choice - 2}}}")
                assert terminated
                assert truncated
                rewards.append(float(reward))
                chosen.append(choice)
        groups = np.array(rewards).reshape(4, size)
        advantages = ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-6)).ravel()
        p = np.exp(weights) / np.exp(weights).sum()
        for choice, advantage in zip(chosen, advantages, strict=False):
            weights += 0.05 * advantage * (np.eye(CANDIDATES)[choice] - p)
        curve.append(float(np.mean(rewards)))
    return {"curve": curve, "best": int(weights.argmax()), "next": question(env)}


math = MathEnv(dataset=ROWS, use_mp=False, seed=6)
sums = ReasoningGymEnv("chain_sum", size=25, seed=9, max_turns=1)
print(
    json.dumps(
        {
            "math": train(math, lambda env: env.reset()[0], lambda env: int(env.answer)),
            "chain_sum": train(sums, lambda env: env.reset()[0], lambda env: int(env.data["answer"])),
        }
    )
)
