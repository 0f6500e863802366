"""Descriptions of environments for the command line and the docs: summaries of one line, and cards."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import inspect
import io
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec, load_entry_point
from rollenv.core.errors import Unsolvable, UsageError
from rollenv.core.human_input import ActionReader, reader
from rollenv.core.needs import Need
from rollenv.core.parts import PARTS
from rollenv.core.plugins import entry_points
from rollenv.core.registry import ENTRY_POINT_GROUP, NAMESPACES

#: Maximum number of turns of the example episodes of a card.
TURNS = 20

#: Turns of an example whose actions are collected, and the most actions that are shown.
_ASKED, _SHOWN = 10, 40


@dataclass
class Card:
    """The description of an environment, with a few example turns."""

    spec: EnvSpec
    about: str = ""
    """The first paragraph of its class's docstring."""
    source: str = ""
    """The class, as ``module:name``."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Python source of each constructor argument's default for this id; empty where there is no default."""
    prompt: str = ""
    """The observation of ``reset(seed=0)``."""
    action: str = ""
    """A random action, or the oracle's."""
    rewards: list[float] = field(default_factory=list)
    """Rewards per turn of one random episode and one of the oracle, at most :data:`TURNS` each."""
    players: str = ""
    """Of several players: how many, their roles, and who takes their seats."""
    limit: int | None = None
    """The limit on the turns of an episode, if any."""
    problem: str = ""
    """The reason why there is no example."""
    reader: ActionReader = field(default_factory=ActionReader)
    """The format of actions, if the example shows it."""
    legend: str = ""
    """The legend of the board, if the observation has one."""

    @property
    def reward(self) -> str:
        """The range of the rewards in the example."""
        bounds = dict.fromkeys(f"{each(self.rewards):.3g}" for each in (min, max) if self.rewards)
        return " to ".join(bounds)


def card(env_spec: EnvSpec, kwargs: dict[str, Any] | None = None) -> Card:
    """Collect the facts about an environment, and play two short episodes if all its needs are met.

    Args:
        kwargs: constructor arguments on top of the spec's.

    Raises:
        UsageError: its entry point or an argument is wrong.
    """
    found = Card(env_spec, about=_about(env_spec))
    try:
        _describe(found, kwargs or {})
        if env_spec.missing:
            found.problem = "what it needs is not here"
        else:
            _play(env_spec, kwargs or {}, found)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # the environment's own
        said = isinstance(error, ImportError) or hasattr(error, "exit_code")  # raised on purpose, as a sandbox's are
        found.problem = str(error) if said else f"it fails with {type(error).__name__}: {error}"
    return found


def card_of(env: Env, env_spec: EnvSpec, kwargs: dict[str, Any]) -> Card:
    """Return the card of an environment that is already built, after playing two short episodes in it.

    Unlike :func:`card`, this does not silence what libraries print, since other threads may be printing too.

    Args:
        kwargs: constructor arguments on top of the spec's.
    """
    found = Card(env_spec, about=_about(env_spec))
    _describe(found, kwargs)
    _play_in(env, found)
    return found


def _describe(found: Card, kwargs: dict[str, Any]) -> None:
    """Fill in the description from the class."""
    cls = load_entry_point(found.spec.entry_point, found.spec.id)
    found.about = _plain(inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ") or found.about
    found.source = f"{cls.__module__}:{getattr(cls, '__qualname__', type(cls).__name__)}"
    found.arguments = _arguments(cls, {**found.spec.kwargs, **kwargs})


def _play(env_spec: EnvSpec, kwargs: dict[str, Any], found: Card) -> None:
    """Play the example episodes with the output of libraries silenced."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.closing(env_spec.make(**kwargs)) as env,
        ):
            _play_in(env, found)
    finally:
        logging.disable(before)


def _play_in(env: Env, found: Card) -> None:
    observation, info = env.reset(seed=0)
    found.prompt = "\n".join(str(part) for part in (info.get("prefix"), observation, info.get("suffix")) if part)
    found.players = _players(env, info)
    found.limit = turn_limit(env)
    found.reader, found.legend = reader(env, observation, info), str(getattr(env.unwrapped, "legend", "") or "")
    offered = dict.fromkeys(found.reader.few)
    for seed, name in enumerate(("sample_random_action", "oracle_action")):
        if not hasattr(env, name):
            continue
        _, info = env.reset(seed=seed)
        for turn in range(TURNS):
            if turn < _ASKED:
                offered |= dict.fromkeys(found.reader.now(env, info).few)
            try:
                action = getattr(env, name)()
            except (Unsolvable, NotImplementedError):
                break
            found.action = found.action or action
            _, reward, terminated, truncated, info = env.step(action)
            found.rewards.append(float(reward))
            if terminated or truncated:
                break
    found.reader = replace(found.reader, few=tuple(offered)[:_SHOWN])


def _players(env: Env, info: dict[str, Any]) -> str:
    players = getattr(env.unwrapped, "players", 1)
    if players < 2:
        return ""
    roles = ", ".join(map(str, info.get("roles", ())))
    return (
        f'{players}{f" ({roles})" if roles else ""}; info["player"] says who moves. By default one plays '
        "all seats: you, or the agent of an evaluation; `rollenv arena` and `seats.others` of recipes seat others."
    )


def turn_limit(env: Env) -> int | None:
    """Return the limit on the turns of an episode, if the environment has such an attribute."""
    limits = [getattr(env.unwrapped, name, None) for name in ("max_turns", "max_steps")]
    return next((limit for limit in limits if isinstance(limit, int) and not isinstance(limit, bool)), None)


def _arguments(factory: Any, given: dict[str, Any]) -> dict[str, str]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return {name: repr(value) for name, value in given.items()}
    named = {p.name: "" if p.default is p.empty else repr(p.default) for p in parameters if p.kind not in (2, 4)}
    return named | {name: repr(value) for name, value in given.items()}


# -- lines ------------------------------------------------------------------------------------------------------------


def summary(env_spec: EnvSpec) -> str:
    """Return the one-line summary of an environment, without importing it."""
    return env_spec.summary or _about(env_spec).partition("\n")[0]


def family(namespace: str) -> str:
    """Return the summary of a namespace; empty if there is none."""
    entry = entry_points(NAMESPACES).get(namespace) or entry_points(ENTRY_POINT_GROUP).get(namespace)
    own = PARTS["own environments"].partition(":")[0]
    return _module_docstring(entry.module if entry else f"{own}.{namespace}").partition("\n")[0]


def needed(needs: Iterable[Need]) -> dict[str, list[str]]:
    """Map each install command to the names of the needs that it meets; the key "" holds needs without a command."""
    found: dict[str, list[str]] = {}
    for need in dict.fromkeys(needs):
        found.setdefault("" if isinstance(need, str) else need.hint, []).append(str(need))
    return found


def _about(env_spec: EnvSpec) -> str:
    """Read the first paragraph of the entry point's docstring from its source, without an import."""
    entry = env_spec.entry_point
    if callable(entry):
        return _first_paragraph(inspect.getdoc(entry) or "")
    module, _, name = entry.partition(":")
    return _class_docstring(module, name)


@functools.cache
def _class_docstring(module: str, name: str) -> str:
    for node in ast.walk(tree) if (tree := _tree(module)) else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return _first_paragraph(ast.get_docstring(node) or "")
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module != module:
                    return _class_docstring(node.module, alias.name)
    return ""


@functools.cache
def _module_docstring(module: str) -> str:
    tree = _tree(module)
    return _first_paragraph(ast.get_docstring(tree) or "") if tree else ""


@functools.cache
def _tree(module: str) -> ast.Module | None:
    try:
        found = importlib.util.find_spec(module)
        return ast.parse(Path(found.origin or "").read_text(encoding="utf-8")) if found else None
    except (ImportError, AttributeError, OSError, ValueError, SyntaxError):
        return None


def _first_paragraph(docstring: str) -> str:
    return _plain(inspect.cleandoc(docstring).partition("\n\n")[0])


def _plain(docstring: str) -> str:
    """The text without reStructuredText markup."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", docstring).replace("``", "")
