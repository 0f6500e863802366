"""The loop of the worker ranks: all ranks but the first."""

from __future__ import annotations

import collections

from rollenv.trainers import sharded_state
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.ranks import Ranks
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.training_state import begin, restore
from rollenv.trainers.updater import Updater


def run_worker_rank(config: TrainConfig, run: RunDir, ranks: Ranks) -> None:
    """Run the commands of the first rank until it ends the run."""
    state = restore(config, run, {}, lambda *_: None, ranks) or begin(config, {}, lambda *_: None, ranks)
    learner = Updater(config, state, run)
    while True:
        match ranks.receive_command():
            case "learn", (iteration, total, version, groups):
                state.iteration, state.version = iteration, version
                learner.config = config.model_copy(update={"iterations": total})
                learner.update(learner.compute_advantages(groups, {}))
            case "measure", (groups,):
                learner.measure(groups)
            case "weights", _:
                collections.deque(state.policy.named_weights(), maxlen=0)
            case "adapter", _:
                state.policy.adapter()
            case "save", (folder,):
                sharded_state.write(folder, state.states, ranks)
            case "end", _:
                return
            case command, _:
                raise ValueError(f"there is no command {command!r}")
