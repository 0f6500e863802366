"""``rollenv skills``"""

from __future__ import annotations

import re
from pathlib import Path

import typer

from rollenv.cli.common import console, print_result, print_table
from rollenv.core.errors import UsageError, writes

#: A folder for each skill, with its SKILL.md.
_TEXTS = Path(__file__).with_name("skill_texts")


def command(
    to: Path = typer.Option(None, "--to", metavar="FOLDER", help="Write them there, as NAME/SKILL.md."),
) -> None:
    """List instructions for coding agents (skills), or write them to a folder where your agent looks for them."""
    found = {file.parent.name: file.read_text("utf-8") for file in sorted(_TEXTS.glob("*/SKILL.md"))}
    about = {name: re.search(r"^description: (.*)$", text, re.MULTILINE)[1] for name, text in found.items()}  # type: ignore[index]
    written = []
    for name, text in found.items() if to else ():
        target = to / name / "SKILL.md"
        with writes(target):
            if target.exists() and target.read_text("utf-8", "replace") != text:
                raise UsageError(f"{target} has other contents; remove it, or choose another folder with --to")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        written.append(str(target))
    print_result({"skills": [{"name": name, "description": text} for name, text in about.items()], "written": written})
    print_table(["skill", "what for"], [[name, text] for name, text in about.items()])
    if written:
        console.print(f"written to {to}", soft_wrap=True, markup=False)
