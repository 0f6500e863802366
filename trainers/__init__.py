"""Training: advantages, losses, batches, the loop, recipes."""

from typing import TYPE_CHECKING

from rollenv.core.lazy import lazy_names

if TYPE_CHECKING:
    from rollenv.trainers.advantages.batch import AdvantageInput
    from rollenv.trainers.advantages.entropy import empg
    from rollenv.trainers.advantages.gae import bi_level_gae, token_gae, turn_gae
    from rollenv.trainers.advantages.groups import grpo, maxrl, reinforce, reinforce_pp, rloo
    from rollenv.trainers.advantages.history import hgpo
    from rollenv.trainers.advantages.turns import gigpo, mt_grpo, rebn, step_reinforce
    from rollenv.trainers.config import TrainConfig
    from rollenv.trainers.config.load import load_config
    from rollenv.trainers.learner import Learner
    from rollenv.trainers.losses.types import LossInput, TokenLoss
    from rollenv.trainers.run_dir import RunDir
    from rollenv.trainers.trainer import Trainer, TrainingResult
    from rollenv.trainers.training import train

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

__getattr__, __dir__ = lazy_names(__name__)
