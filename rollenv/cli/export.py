"""``rollenv export``"""

from __future__ import annotations

from pathlib import Path

import typer

from rollenv.cli.common import console, print_result, progress_console
from rollenv.core.trust import TRUST_HELP

WHERE_HELP = (
    "Condition on episodes, such as 'success and turns < 8': names (success, reward, turns, tokens, status, env_id, "
    "seed, iteration, ..., metrics), numbers, texts, comparisons, in, and, or, not, + - * / // %."
)


def command(
    run: Path = typer.Argument(help="Folder of a run, evaluation or benchmark; file of episodes; record of a gateway."),
    to: Path = typer.Option(..., "--to", metavar="FILE", help="New file, .jsonl or .parquet."),
    where: str = typer.Option("complete", "--where", help=WHERE_HELP),
    form: str = typer.Option(
        "",
        "--format",
        help="own (exact tokens), chat, completions, pairs, verl or atif. Default: as in NAME.chat.jsonl, or own.",
    ),
    split: float = typer.Option(0.0, help="Share of the tasks that is written to NAME.test instead."),
    trust: bool = typer.Option(False, "--trust", help=TRUST_HELP),
) -> None:
    """Write stored episodes as training data: exact tokens for rollenv, or chats and pairs for other trainers."""
    from rollenv.rollout.exports import export

    with progress_console.status("reading episodes"):
        card = export(run, to, where=where, form=form, split=split, trust=trust)
    if print_result(card):
        return
    solved = "" if card["success"] is None else f"{100 * card['success']:.1f} % solved, "
    console.print(f"{card['episodes']} episodes of {card['tasks']} tasks, {solved}mean reward {card['reward']:.6g}")
    for file, counts in card["files"].items():
        left = ", ".join(f"{n} {name}" for name, n in counts.items() if name not in ("rows", "episodes") and n)
        console.print(
            f"{file}: {counts.get('rows', 0)} rows{f' ({left})' if left else ''}", markup=False, soft_wrap=True
        )
    if card["format"] == "own" and card["episodes_without_prompts"]:
        console.print(
            f"{card['episodes_without_prompts']} episodes have answers without the tokens of their prompts, which "
            "large evaluations leave out: they cannot be trained on",
            style="yellow",
        )
