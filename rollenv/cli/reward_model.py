"""``rollenv reward-model``"""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer

from rollenv.cli import train
from rollenv.cli.common import console, is_setting
from rollenv.core.errors import UsageError


def command(
    data: list[str] = typer.Argument(
        metavar="DATA... [KEY=VALUE]...",
        help="Stored episodes, whose groups are compared, or rows with chosen and rejected; then settings.",
    ),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in run_dir."),
) -> None:
    """Train a reward model on pairs, for rewards.domains of `rollenv train`."""
    if not resume and all(map(is_setting, data)):
        raise UsageError("name the data to compare: stored episodes, or rows with chosen and rejected")
    path = train.start("reward-model", settings_of(data), train.RunOptions(resume=resume))
    assert path
    from rollenv.trainers.run_dir import RunDir, read_rows

    numbers = read_rows(RunDir(path).metrics_file)[-1]
    accuracy, pairs = numbers.get("eval/accuracy", 1.0), numbers.get("eval/pairs", 0.0)
    if accuracy <= 0.5:
        console.print(
            f"[bold]no better than chance on held-out tasks ({accuracy:.2f} of {pairs:.0f} pairs)[/]: "
            "raise epochs or lr, or give more pairs"
        )
    console.print(f'use it with: rewards.domains=[{{kind="learned", path="{path}"}}] rewards.own=0', markup=False)


#: Sections of the keys that this command takes without one.
_SECTIONS = {
    "batches": ("where", "size", "epochs", "held_out", "unusable"),
    "optimizer": ("lr", "max_grad_norm", "micro_batch_tokens"),
    "algorithm": ("smoothing", "margin", "centre"),
}


def settings_of(words: Sequence[str]) -> list[str]:
    """Return paths and settings as settings of the recipe."""
    sources, settings = [word for word in words if not is_setting(word)], list[str]()
    if sources:
        settings.append(f"batches.data={json.dumps(sources)}")
    sections = {key: section for section, keys in _SECTIONS.items() for key in keys}
    for word in filter(is_setting, words):
        key, _, value = word.partition("=")
        settings.append(f"{sections[key]}.{word}" if key in sections else word)
        if key == "checkpoint_every":
            settings.append(f"eval.every={value}")
        if key == "iterations":  # instead of epochs
            settings.append("batches.epochs=0")
    return settings
