"""rollenv: where language-model agents meet environments."""

from rollenv.core.checker import check_env
from rollenv.core.env import Env, Wrapper
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import EpisodeOver, MissingExtra, RollenvError, UnknownEnv, Unsolvable, UsageError
from rollenv.core.notebook import env_html as _env_html  # noqa: F401  # notebooks show environments as HTML
from rollenv.core.parts import PARTS as _PARTS
from rollenv.core.registry import ABILITIES, list_envs, make, print_envs, register, spec
from rollenv.core.spaces import TextSpace
from rollenv.core.vector import make_vec
from rollenv.core.version import __version__ as __version__

# What rooms ask for that lies above them; see rollenv.core.parts.
_PARTS.update(
    {
        "wrap": "rollenv.core.wrappers.factory:wrap",
        "own environments": "rollenv.envs:register_all",
        "own questions": "rollenv.envs.data.own:spec_of",
        "served environment": "rollenv.remote.env:spec_of",
        "encode": "rollenv.rollout.workers.messages:encode",
        "decode": "rollenv.rollout.workers.messages:decode",
        "valid text": "rollenv.rollout.validation:text",
        "valid info": "rollenv.rollout.validation:info",
        "tokenizer": "rollenv.agents.tokenizer:tokenizer_at",
        "local user": "rollenv.agents.local_user:LocalUser",
    }
)

__all__ = [
    "ABILITIES",
    "Env",
    "EnvSpec",
    "EpisodeOver",
    "MissingExtra",
    "RollenvError",
    "TextSpace",
    "UnknownEnv",
    "Unsolvable",
    "UsageError",
    "Wrapper",
    "check_env",
    "list_envs",
    "make",
    "make_vec",
    "print_envs",
    "register",
    "spec",
]
