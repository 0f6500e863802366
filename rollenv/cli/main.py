"""The ``rollenv`` command: each subcommand has a file of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape

from rollenv import __version__
from rollenv.cli import check, eval, health, list, new, play, train, view
from rollenv.cli.common import console, error_console
from rollenv.core import RollenvError

app = typer.Typer(
    name="rollenv",
    help="The hub where language-model agents meet environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _with_exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    """Turn rollenv's own errors and Ctrl-C into a message and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except RollenvError as error:
            error_console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            error_console.print("stopped")
            raise typer.Exit(130) from None

    return run


_COMMANDS = {
    "train": train,
    "eval": eval,
    "health": health,
    "play": play,
    "list": list,
    "check": check,
    "view": view,
    "new": new,
}
for _name, _module in _COMMANDS.items():
    app.command(_name)(_with_exit_codes(_module.command))


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 to 5 as the errors say, 130 Ctrl-C."""
    app()
