"""Descriptions of environments for people: a line each, and cards. The command line and the docs show them."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core import Env, Unsolvable
from rollenv.env_spec import EnvSpec, load_entry_point
from rollenv.needs import Need
from rollenv.registry import ELSEWHERE, ENTRY_POINT_GROUP
from rollenv.typed import Reader, reader

#: Turns of an episode that a card is made from.
TURNS = 20


@dataclass
class Card:
    """The description of an environment, and a few turns of it."""

    spec: EnvSpec
    about: str = ""
    """The first paragraph of its class's docstring."""
    source: str = ""
    """The class, as module and name."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Constructor arguments and their defaults for this id, as Python writes them; those without one are empty."""
    prompt: str = ""
    """The observation of ``reset(seed=0)``."""
    action: str = ""
    """A random action, or the oracle's."""
    rewards: list[float] = field(default_factory=list)
    """Rewards of the turns of a random and of an oracle's episode, at most :data:`TURNS` each."""
    limit: int | None = None
    """Turns of an episode, where there is a limit."""
    problem: str = ""
    """Why there is no example."""
    reader: Reader = field(default_factory=Reader)
    """The form of actions, as far as the example shows it."""
    legend: str = ""
    """The meaning of its board's signs, where it explains them."""

    @property
    def reward(self) -> str:
        """The range of the rewards in the example."""
        low, high = min(self.rewards, default=0), max(self.rewards, default=0)
        return "" if not self.rewards else f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def card(env_spec: EnvSpec, kwargs: dict[str, Any] | None = None) -> Card:
    """Collect the facts about an environment. Plays two short episodes if all that it needs is here.

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
    except ImportError as error:
        if isinstance(error, ValueError):  # a wrong entry point
            raise
        found.problem = str(error)
    return found


def card_of(env: Env, env_spec: EnvSpec, kwargs: dict[str, Any]) -> Card:
    """The card of an environment that is built already; two short episodes are played in it.

    Unlike :func:`card` it hides nothing that libraries print: other threads may print, too.

    Args:
        kwargs: constructor arguments on top of the spec's.
    """
    found = Card(env_spec, about=_about(env_spec))
    _describe(found, kwargs)
    _play_in(env, found)
    return found


def _describe(found: Card, kwargs: dict[str, Any]) -> None:
    """Fill in the description that the class has."""
    cls = load_entry_point(found.spec.entry_point, found.spec.id)
    found.about = _plain(inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ") or found.about
    found.source = f"{cls.__module__}.{getattr(cls, '__qualname__', type(cls).__name__)}"
    found.arguments = _arguments(cls, {**found.spec.kwargs, **kwargs})


def _play(env_spec: EnvSpec, kwargs: dict[str, Any], found: Card) -> None:
    """Play a little, and hide what libraries log and print meanwhile."""
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
    found.limit = turn_limit(env)
    found.reader, found.legend = reader(env, observation), str(getattr(env.unwrapped, "legend", "") or "")
    for seed, name in enumerate(("sample_random_action", "oracle_action")):
        if not hasattr(env, name):
            continue
        env.reset(seed=seed)
        for _ in range(TURNS):
            try:
                action = getattr(env, name)()
            except (Unsolvable, NotImplementedError):
                break
            found.action = found.action or action
            _, reward, terminated, truncated, _ = env.step(action)
            found.rewards.append(reward)
            if terminated or truncated:
                break


def turn_limit(env: Env) -> int | None:
    """The limit on the turns of an episode, where the environment tells it."""
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
    """Return what an environment is, in a line. Nothing is imported for it."""
    return env_spec.summary or _about(env_spec).partition("\n")[0]


def family(namespace: str) -> str:
    """Return the line about the ids of a namespace; empty where there is none."""
    module = ELSEWHERE.get(namespace, f"rollenv.envs.{namespace}")
    return (_module_docstring(module) or _plugin_docstring(namespace)).partition("\n")[0]


def needed(needs: Iterable[Need]) -> dict[str, list[str]]:
    """Return the commands that install what is needed, each with the names of what it brings; "" brings nothing."""
    found: dict[str, list[str]] = {}
    for need in dict.fromkeys(needs):
        found.setdefault("" if isinstance(need, str) else need.hint, []).append(str(need))
    return found


def _about(env_spec: EnvSpec) -> str:
    """The first paragraph of the docstring of what builds the environment; read, not imported."""
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
def _plugin_docstring(namespace: str) -> str:
    """Docstring of the module that the entry point with a namespace's name points to."""
    entries = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=namespace)
    return next((_module_docstring(entry.module) for entry in entries), "")


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
    """The text without the marks of reStructuredText."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", docstring).replace("``", "")
