"""A card for each registered id, from the registry and a short episode."""

from __future__ import annotations

import inspect
import os
import textwrap
from itertools import groupby
from pathlib import Path

import rollenv
from rollenv.core import cards
from rollenv.core.env_spec import EnvSpec, load_entry_point
from rollenv.core.errors import MissingExtra
from rollenv.plugins.publishing import catalogue

ROOT = Path(__file__).resolve().parents[2]
_SOURCE = "https://github.com/rollenv/rollenv/blob/main/"
_LONGEST = 1500


def pages() -> dict[str, str]:
    """Make an overview, and a page for each namespace with a card for each id."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a build downloads no data
    specs = rollenv.list_envs()
    rows = ["# Environments", "", f"{len(specs)} ids are registered. `rollenv list` shows them on your machine.", ""]
    rows += ["| namespace | ids | what it holds |", "|---|---|---|"]
    found = {"envs/index.md": ""}
    for namespace, group in groupby(specs, key=lambda s: s.namespace):
        members = list(group)
        about = cards.family(namespace)
        rows.append(f"| [`{namespace}:`]({namespace}.md) | {len(members)} | {about} |")
        all_cards = "\n\n".join(_card(cards.card(env_spec)) for env_spec in members)
        found[f"envs/{namespace}.md"] = f"# {namespace}:\n\n{about}\n\n{all_cards}\n"
    rows += ["", "The examples on the cards are what `reset(seed=0)` returned when this site was built."]
    if measured := list(catalogue.read(catalogue.OWN).values()):
        rows += ["[What was measured](measured.md): success by random play, by cheats and by the expert, and faults."]
        found["envs/measured.md"] = catalogue.page(measured)
    found["envs/index.md"] = "\n".join(rows) + "\n"
    return found


def _card(card: cards.Card) -> str:
    env_spec = card.spec
    facts = {
        "needs": _needs(env_spec),
        "abilities": ", ".join(f"`{name}`" for name in sorted(env_spec.abilities)) or "none",
        "reward of a turn, as seen": card.reward,
        "players": card.players,
        "turn limit": card.limit and str(card.limit),
        "levels": env_spec.levels and f"{len(env_spec.levels)}, for a curriculum",
        "arguments": ", ".join(f"`{name}={value!r}`" for name, value in env_spec.kwargs.items()),
        "tasks": env_spec.indexed and "numbered; an evaluation plays each once",
        "deterministic": env_spec.nondeterministic and "no",
        "source": _source(env_spec),
    }
    table = ["| | |", "|---|---|"] + [f"| {name} | {_cell(value)} |" for name, value in facts.items() if value]
    parts = [f"## {env_spec.id}", card.about, "\n".join(table)]
    if card.problem:
        parts.append(f"No example: {card.problem} (when this page was built).")
    if card.prompt:
        parts.append(_folded("First prompt", card.prompt))
    if card.action:
        parts.append(_folded("A random action", card.action))
    return "\n\n".join(parts)


def _source(env_spec: EnvSpec) -> str:
    try:
        cls: object = load_entry_point(env_spec.entry_point, env_spec.id)
    except MissingExtra:  # its module needs a package that is not installed
        return f"`{str(env_spec.entry_point).replace(':', '.')}`"
    file = inspect.getsourcefile(inspect.unwrap(cls))  # type: ignore[arg-type]
    path = Path(file or "").resolve()
    name = f"{cls.__module__}.{cls.__qualname__}"  # type: ignore[attr-defined]
    return f"[`{name}`]({_SOURCE}{path.relative_to(ROOT)})" if path.is_relative_to(ROOT) else f"`{name}`"


def _needs(env_spec: EnvSpec) -> str:
    """List the requirements besides a base install, and how to get them."""
    found = cards.needed(env_spec.needs)
    said = [f"{', '.join(names)}{hint and f' ({_as_code(hint)})'}" for hint, names in found.items()]
    return "; ".join(said) or "a base install"


def _as_code(hint: str) -> str:
    return f"`{hint}`" if hint.startswith("pip ") else hint


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _folded(title: str, text: str) -> str:
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n... ({len(text):,} characters)"
    block = f"~~~~~~text\n{shown}\n~~~~~~"
    return f'??? example "{title}"\n\n{textwrap.indent(block, "    ", lambda line: True)}'
