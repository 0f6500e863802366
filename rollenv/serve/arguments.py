"""The arguments of environments that a client may give: none that names a file, program, server or data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.core import UsageError
from rollenv.env_spec import EnvSpec

#: Arguments whose texts choose among what an environment has built in.
_CHOICES = frozenset(
    [
        "action_format",
        "answer_key",
        "goals",
        "metric",
        "observation",
        "operators",
        "render_mode",
        "rewards",
        "rules",
        "separator",
        "size",
        "split",
        "variant",
    ]
)

#: Wrappers that only change what is seen. All others could run programs, load files or ask servers; a name of the form
#: "module:function" would import any module.
_WRAPPERS = frozenset(["concat", "concat_with_action", "episode_tracking"])


def check(env_spec: EnvSpec, kwargs: Mapping[str, Any], wrappers: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse what could make the server read, run or ask something.

    Args:
        kwargs: constructor arguments that a client gave.
        wrappers: names and settings that a client gave.

    Raises:
        UsageError: an argument is refused.
    """
    for name, value in kwargs.items():
        if not _plain(value, texts=name in _CHOICES) and value != env_spec.kwargs.get(name):
            raise UsageError(
                f"{env_spec.id}: this server takes no {name}={value!r:.60} from clients: only numbers, and texts that "
                "choose among built-in variants; whoever runs it can allow others with --any-arguments"
            )
    for name, settings in wrappers.items():
        if name not in _WRAPPERS or not isinstance(settings, Mapping) or not _plain([*settings.values()], texts=False):
            raise UsageError(f"{env_spec.id}: this server puts no wrapper {name!r} around environments for clients")


def _plain(value: Any, *, texts: bool) -> bool:
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return texts and len(value) <= 40 and "/" not in value and "\\" not in value
    if isinstance(value, list | tuple):
        return len(value) <= 1000 and all(_plain(each, texts=texts) for each in value)
    return isinstance(value, dict) and texts and all(_plain(each, texts=texts) for each in value.values())
