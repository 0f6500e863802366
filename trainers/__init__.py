"""Training: advantages, losses, batches, the loop, recipes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.trainers.advantages.batch import AdvantageInput
    from rollenv.trainers.advantages.entropy import empg
    from rollenv.trainers.advantages.gae import bi_level_gae, token_gae, turn_gae
    from rollenv.trainers.advantages.groups import grpo, maxrl, reinforce, reinforce_pp, rloo
    from rollenv.trainers.advantages.history import hgpo
    from rollenv.trainers.advantages.turns import gigpo, mt_grpo, rebn, step_reinforce
    from rollenv.trainers.config import TrainConfig
    from rollenv.trainers.config.load import load_config
    from rollenv.trainers.losses.types import LossInput, TokenLoss
    from rollenv.trainers.own_loop import Learner
    from rollenv.trainers.run_dir import RunDir
    from rollenv.trainers.trainer import Trainer, TrainingResult
    from rollenv.trainers.training import train

#: The module of each public name; it is imported when the name is first used.
_MODULES = {
    "AdvantageInput": "rollenv.trainers.advantages.batch",
    "LossInput": "rollenv.trainers.losses.types",
    "TokenLoss": "rollenv.trainers.losses.types",
    "empg": "rollenv.trainers.advantages.entropy",
    "bi_level_gae": "rollenv.trainers.advantages.gae",
    "token_gae": "rollenv.trainers.advantages.gae",
    "turn_gae": "rollenv.trainers.advantages.gae",
    "grpo": "rollenv.trainers.advantages.groups",
    "maxrl": "rollenv.trainers.advantages.groups",
    "reinforce": "rollenv.trainers.advantages.groups",
    "reinforce_pp": "rollenv.trainers.advantages.groups",
    "rloo": "rollenv.trainers.advantages.groups",
    "hgpo": "rollenv.trainers.advantages.history",
    "gigpo": "rollenv.trainers.advantages.turns",
    "mt_grpo": "rollenv.trainers.advantages.turns",
    "rebn": "rollenv.trainers.advantages.turns",
    "step_reinforce": "rollenv.trainers.advantages.turns",
    "TrainConfig": "rollenv.trainers.config",
    "load_config": "rollenv.trainers.config.load",
    "Learner": "rollenv.trainers.own_loop",
    "RunDir": "rollenv.trainers.run_dir",
    "TrainingResult": "rollenv.trainers.trainer",
    "Trainer": "rollenv.trainers.trainer",
    "train": "rollenv.trainers.training",
}

__all__ = [
    "AdvantageInput",
    "Learner",
    "LossInput",
    "RunDir",
    "TokenLoss",
    "TrainConfig",
    "Trainer",
    "TrainingResult",
    "bi_level_gae",
    "empg",
    "gigpo",
    "grpo",
    "hgpo",
    "load_config",
    "maxrl",
    "mt_grpo",
    "rebn",
    "reinforce",
    "reinforce_pp",
    "rloo",
    "step_reinforce",
    "token_gae",
    "train",
    "turn_gae",
]


def __getattr__(name: str) -> Any:
    name = {"Result": "TrainingResult"}.get(name, name)  # its former name
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
