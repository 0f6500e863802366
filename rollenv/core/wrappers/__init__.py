"""Wrappers: the history as the observation, tools, episode statistics."""

from rollenv.core.wrappers.factory import TOKENIZER_REQUIRED, WRAPPER_FACTORY, wrap
from rollenv.core.wrappers.observation import ObservationWrapper
from rollenv.core.wrappers.tool_env import ToolEnvWrapper
from rollenv.core.wrappers.tracking import EpisodeTrackingWrapper

__all__ = [
    "TOKENIZER_REQUIRED",
    "WRAPPER_FACTORY",
    "EpisodeTrackingWrapper",
    "ObservationWrapper",
    "ToolEnvWrapper",
    "wrap",
]
