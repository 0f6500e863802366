"""``rollenv explain``"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from rollenv.cli.common import console, print_result


def command(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run, or file of episodes, such as a gateway's record."),
) -> None:
    """Say what happened in a training run or an evaluation, each sentence with a link to what it was read from."""
    from rollenv.report.explain import explain, markdown
    from rollenv.report.story import read_story
    from rollenv.trainers.alarms import alarms

    story = read_story(run, alarms)
    said = explain(story)
    if not print_result({"run": str(run), "kind": story.kind, "sentences": [asdict(each) for each in said]}):
        console.print(markdown(story, said), soft_wrap=True, markup=False, highlight=False)
