r"""Additional rewards, computed as each trajectory ends: ``RolloutManager(reward=...)``.

A reward function takes a finished trajectory and returns a number that is added to its last turn's reward::

    reward = ByDomain(
        {
            "math:*": Sum([(1.0, Format(r"<think>.*</think>.*"))]),
            "chat": Judge("http://127.0.0.1:8000/v1", "judge"),
            "*": Format(r".*\\boxed\{.*\}.*", missed=-0.5),
        }
    )
"""

from rollenv.trainers.rewards.base import ByDomain, Reward, Sum
from rollenv.trainers.rewards.format import Format
from rollenv.trainers.rewards.function import FunctionFailed, FunctionReward
from rollenv.trainers.rewards.judge import Judge, JudgeFailed

__all__ = ["ByDomain", "Format", "FunctionFailed", "FunctionReward", "Judge", "JudgeFailed", "Reward", "Sum"]
