"""The program of the ranks besides the first one."""

from __future__ import annotations

import collections

from rollenv.trainers import sharded_state
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.learner import Learner
from rollenv.trainers.parts import begin, restore
from rollenv.trainers.ranks import Ranks
from rollenv.trainers.run_dir import RunDir


def follow(config: TrainConfig, run: RunDir, ranks: Ranks) -> None:
    """Do what the first rank tells, until it tells the end.

    Args:
        config: the settings of the run.
        run: its folder, which all ranks see.
        ranks: that train; not the first of them.

    Raises:
        RankLost: another rank has ended.
        RollenvError: the same that the first rank meets.
    """
    parts = restore(config, run, {}, lambda *_: None, ranks) or begin(config, {}, lambda *_: None, ranks)
    learner = Learner(config, parts, run)
    while True:
        match ranks.told():
            case "learn", (iteration, version, groups):
                parts.iteration, parts.version = iteration, version
                learner.update(learner.judge(groups, {}))
            case "weights", _:
                collections.deque(parts.policy.named_weights(), maxlen=0)
            case "adapter", _:
                parts.policy.adapter()
            case "save", (folder,):
                sharded_state.write(folder, parts.states, ranks)
            case "end", _:
                return
            case order, _:
                raise ValueError(f"there is no order {order!r}")
