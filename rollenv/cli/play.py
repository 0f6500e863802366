"""``rollenv play``"""

from __future__ import annotations

from typing import Any

import typer

from rollenv.cli.common import console, key_values
from rollenv.core import Env, Unsolvable
from rollenv.registry import make

HELP = "Type an action, or :hint for the oracle's, :random for a random one, :again for a new episode, :quit to leave."


def command(
    env: str = typer.Argument(help="An id; `rollenv list` shows them."),
    settings: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Constructor arguments."),
    seed: int | None = typer.Option(None, help="Seed of the first episode."),
) -> None:
    """Play an environment yourself, in the terminal."""
    game = make(env, **key_values(settings or ()))
    console.print(f"[dim]{HELP}[/]")
    try:
        going = True
        while going:
            going = _episode(game, seed)
            seed = None
    finally:
        game.close()


def _episode(game: Env, seed: int | None) -> bool:
    """Play one episode; whether to play another."""
    observation, info = game.reset(seed)
    total, over = 0.0, False
    while not over:
        _show(observation, info)
        typed = _ask("> ")
        if typed is None or typed == ":quit":
            return False
        if typed == ":again":
            return True
        action = _translate(game, typed)
        if action is None:
            continue
        observation, reward, terminated, truncated, info = game.step(action)
        total += reward
        over = terminated or truncated
    _show(observation, info)
    verdict = "solved" if info.get("success") else "over"
    console.print(f"[bold]The episode is {verdict}[/], total reward {total:g}. Enter for another one, :quit to leave.")
    return _ask("> ") not in (None, ":quit")


def _show(observation: str, info: dict[str, Any]) -> None:
    for text in (observation, info.get("suffix", "")):
        if text:
            console.print(text, markup=False)


def _ask(prompt: str) -> str | None:
    """A line from the terminal, None at its end."""
    try:
        return console.input(prompt, markup=False).strip()
    except EOFError:
        console.print()
        return None


def _translate(game: Env, typed: str) -> str | None:
    """What was typed as an action of the game; None if there is nothing to play."""
    try:
        if typed == ":hint":
            action = game.oracle_action()
        elif typed == ":random":
            action = game.sample_random_action()
        elif typed.startswith(":"):
            console.print(HELP, style="yellow")
            return None
        else:
            return _full_form(game, typed)
    except (NotImplementedError, Unsolvable) as reason:
        console.print(str(reason), markup=False, style="yellow")
        return None
    console.print(action, markup=False, style="dim")
    return action


def _full_form(game: Env, typed: str) -> str:
    """Directions may be typed bare or by their first letter."""
    directions = getattr(game, "directions", ())
    meant = [d for d in directions if typed and d.startswith(typed.lower())]
    if len(meant) == 1 and hasattr(game, "format_action"):
        return str(game.format_action(meant[0]))
    return typed
