"""Play groups of episodes and turn their rewards into advantages. Needs: a base install."""

import numpy as np

from rollenv.agents import OracleAgent
from rollenv.rollout import RolloutManager, Task
from rollenv.trainers import gigpo, grpo

# Four attempts at each of three rooms, by an expert that makes 70 % random moves.
tasks = [Task("game:Sokoban-v0-tiny", seed) for seed in range(3)]
with RolloutManager(OracleAgent(noise=0.7)) as manager:
    groups = manager.collect(tasks, group_size=4)

trajectories = [trajectory for group in groups for trajectory in group]
labels = np.repeat(np.arange(len(groups)), 4)

# GRPO: one number for each trajectory, compared with its group.
whole = grpo(np.array([t.reward for t in trajectories]), labels)
for trajectory, label, advantage in zip(trajectories, labels, whole, strict=True):
    print(f"room {label}: reward {trajectory.reward:5.2f}, {len(trajectory.turns):2} turns, advantage {advantage:5.2f}")

# GiGPO: one number for each turn. Turns taken in the same state are compared with each other.
turns = [turn for trajectory in trajectories for turn in trajectory.turns]
by_turn = gigpo([[u.reward for u in t.turns] for t in trajectories], labels, [u.state_key for u in turns])
best = int(by_turn.argmax())
print(f"the best of {len(turns)} turns: {turns[best].text} in state {turns[best].state_key!r}")
