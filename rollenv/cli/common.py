"""What the subcommands share: consoles, ``key=value`` arguments, agents by name."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rollenv.core import UsageError

if TYPE_CHECKING:
    from rollenv.agents.base import Agent

#: Pipes and files have no width of their own; tables should not be squeezed into 80 columns there.
_WIDE = 180
console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
error_console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _WIDE)

AGENT_HELP = (
    "random, oracle, noisy:SHARE (an oracle, that share of its actions replaced), local:FOLDER (a model or a run), "
    "vllm:FOLDER, or chat:MODEL at --base-url (the key is taken from OPENAI_API_KEY)."
)


def key_values(pairs: Iterable[str]) -> dict[str, Any]:
    """``["num_boxes=2", "rewards=ragen"]`` as keyword arguments; values are TOML, bare words are strings."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r} is not of the form key=value")
        try:
            out[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            out[key] = value
    return out


def make_agent(name: str, temperature: float | None = None, base_url: str = "") -> Agent:
    """The agent that a name on the command line stands for.

    Raises:
        UsageError: for an unknown name.
    """
    from rollenv.agents.base import OracleAgent, RandomAgent

    kind, _, argument = name.partition(":")
    if name == "random":
        return RandomAgent()
    if name == "oracle":
        return OracleAgent()
    if kind == "noisy":
        try:
            noise = float(argument)
        except ValueError:
            noise = -1.0
        if not 0 <= noise <= 1:
            raise UsageError(f"noisy:SHARE needs a share between 0 and 1, got {argument!r}")
        return OracleAgent(noise)
    if kind == "chat" and argument:
        from rollenv.agents.chat import ChatAgent

        if not base_url:
            raise UsageError(f"{name} needs --base-url, such as https://api.openai.com/v1 or http://127.0.0.1:8000/v1")
        return ChatAgent(argument, base_url, temperature=temperature)
    override = {} if temperature is None else {"temperature": temperature}
    if kind == "vllm" and argument:
        from rollenv.agents.token_session import saved_format
        from rollenv.agents.vllm import VLLMAgent

        folder = model_folder(Path(argument))
        return VLLMAgent.load(folder, *saved_format(folder, **override))
    if kind == "local" and argument:
        from rollenv.agents.local import LocalAgent

        return LocalAgent.load(model_folder(Path(argument)), **override)
    raise UsageError(f"there is no agent {name!r}; it is one of {AGENT_HELP}")


def model_folder(path: Path) -> Path:
    """The folder with the weights: the path itself, or the newest checkpoint if it is a run's folder."""
    checkpoints = sorted((path / "checkpoints").glob("step-*"))
    return checkpoints[-1] if checkpoints else path


def percent(success: float, low: float, high: float) -> str:
    """A success rate with its interval."""
    return f"{100 * success:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
