"""``rollenv info``"""

from __future__ import annotations

import typer
from rich.text import Text

from rollenv.cli import completion
from rollenv.cli.common import console, id_of, key_values, print_result, print_table
from rollenv.core import cards
from rollenv.core.registry import spec

_LONGEST = 3000


def command(
    env: str = typer.Argument(help="Environment id; see `rollenv list`.", autocompletion=completion.ids),
    settings: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Arguments of the environment."),
) -> None:
    """Describe one environment: how to act, an example, rewards, needs and arguments."""
    card = cards.card(spec(id_of(env)), key_values(settings or ()))
    s = card.spec
    data = {
        "id": s.id,
        "about": card.about,
        "source": card.source,
        "abilities": sorted(s.abilities),
        "needs": [{"name": str(n), "hint": getattr(n, "hint", ""), "here": n not in s.missing} for n in s.needs],
        "arguments": card.arguments,
        "levels": list(s.levels),
        "indexed": s.indexed,
        "nondeterministic": s.nondeterministic,
        "players": card.players,
        "turn_limit": card.limit,
        "rewards_seen": [min(card.rewards), max(card.rewards)] if card.rewards else None,
        "prompt": card.prompt,
        "action": card.action,
        "problem": card.problem,
    }
    if print_result(data):
        return
    console.print(card.spec.id, style="bold", markup=False)
    console.print(card.about or cards.summary(card.spec), markup=False)
    console.print()
    print_table((), ([Text(name, "bold"), value] for name, value in _facts(card).items() if value), ids=True)
    if card.problem:
        console.print(f"\nno example: {card.problem}", markup=False)
    for title, text in (("what an agent reads first (seed 0)", card.prompt), ("an action", card.action)):
        if text:
            shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n... ({len(text):,} characters)"
            console.print(f"\n[bold]{title}[/]")
            console.print(shown, markup=False)


def _facts(card: cards.Card) -> dict[str, str]:
    """Return the rows of the table; empty values are left out."""
    s = card.spec
    needs = [f"{', '.join(names)}{hint and f' ({hint})'}" for hint, names in cards.needed(s.needs).items()]
    missing = f"\nnot here: {', '.join(map(str, s.missing))}" if s.missing else ""
    turns = f"at most {card.limit}, one action each" if card.limit != 1 else "1: a single answer"
    return {
        "players": card.players,
        "turns": turns if card.limit else "",
        "reward of a turn": card.reward and f"{card.reward} (as seen in two sampled episodes)",
        "actions": ", ".join(card.reader.few) and f"as a turn allows: {', '.join(card.reader.few)}",
        "abilities": ", ".join(sorted(s.abilities)).replace("_", " "),
        "levels": f"{len(s.levels)}, for a curriculum" if s.levels else "",
        "tasks": "numbered; `rollenv eval` plays each once" if s.indexed else "drawn from the seed",
        "deterministic": "no" if s.nondeterministic else "yes, for a given seed and actions",
        "needs": ("; ".join(needs) or "a base install") + missing,
        "arguments": ", ".join(f"{name}={value}" if value else name for name, value in card.arguments.items()),
        "source": card.source,
    }
