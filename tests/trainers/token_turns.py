"""Trajectories of given tokens, and the gradients that they leave."""

from __future__ import annotations

import torch

from rollenv.rollout.types import Task, Trajectory, Turn

TASK = Task("test:Any-v0", 0)


def trajectory(*parts: tuple[tuple[int, ...], tuple[int, ...]]) -> Trajectory:
    """Turns of (prompt, response)."""
    turns = [Turn(prompt, response, (-1.0,) * len(response), 0.0, "", "") for prompt, response in parts]
    return Trajectory(TASK, turns, "terminated")


def gradients(model) -> torch.Tensor:
    """All of them, which are forgotten."""
    out = torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return out
