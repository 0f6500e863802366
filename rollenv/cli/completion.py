"""Shell completions: ids, recipes and agents. Bash splits words at ``:`` and ``=``; they are joined again here."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator

import typer

_VARIABLE = "_ROLLENV_COMPLETE"
#: Characters besides spaces at which bash splits words.
_BREAKS = ":="


def ids(incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the matching ids, each with its summary."""
    from rollenv.core.cards import summary
    from rollenv.core.registry import list_envs

    for spec in list_envs():
        if spec.id.startswith(incomplete):
            yield spec.id, summary(spec)


def recipes(incomplete: str) -> list[str]:
    """Return the matching bundled recipes."""
    from rollenv.trainers import config

    return [name for name in config.recipes() if name.startswith(incomplete)]


def agents(incomplete: str) -> list[str]:
    """Return the matching kinds of agents."""
    kinds = ("random", "oracle", "noisy:", "constant:", "replay:", "local:", "vllm:", "chat:")
    return [kind for kind in kinds if kind.startswith(incomplete)]


def run(app: Callable[[], None]) -> None:
    """Run the app. Completions for bash are computed for whole words, then cut to the part after the last break."""
    if os.environ.get(_VARIABLE) != "complete_bash":
        app()
        return
    words, current = _whole_words(os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"]))
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(words), str(current)
    typed = words[current] if current < len(words) else ""
    there = max(map(typed.rfind, _BREAKS)) + 1
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            app()
    finally:
        typer.echo("\n".join(line[there:] for line in output.getvalue().splitlines()))


def _whole_words(words: list[str], current: int) -> tuple[list[str], int]:
    """Return the words as typed, and the index of the one to complete."""
    whole: list[str] = []
    glued, at = False, 0
    for i, word in enumerate(words):
        is_break = bool(word) and not word.strip(_BREAKS)
        if whole and (glued or is_break):
            whole[-1] += word
        else:
            whole.append(word)
        glued = is_break
        if i <= current:
            at = len(whole) - 1
    return whole, at
