"""The ``rollenv`` command: each subcommand has a file of its own.

Other packages add subcommands through the entry point group ``rollenv.commands``, each entry naming a function with
typer's parameters.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import io
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from rollenv.cli import (
    bench,
    check,
    completion,
    episode,
    eval,
    explain,
    export,
    gateway,
    health,
    info,
    list,
    new,
    panel,
    play,
    probe,
    regrade,
    reward_model,
    serve,
    sft,
    skills,
    train,
    view,
)
from rollenv.cli.common import console, error_console, set_output
from rollenv.cli.options import option, with_options
from rollenv.core.errors import MissingExtra, RollenvError
from rollenv.core.interrupt import Terminated, Termination
from rollenv.core.needs import install_hint
from rollenv.core.plugins import load_all
from rollenv.core.version import __version__

GROUP = "rollenv.commands"

app = typer.Typer(
    name="rollenv",
    help="The hub where language-model agents meet environments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True)
class OutputOptions:
    """Options of all commands."""

    verbose: int = option(
        "--verbose", "-v", default=0, count=True, help="Show log messages; twice for more.", show_default=False
    )
    quiet: bool = option("--quiet", "-q", default=False, help="Show no progress, only results and errors.")


@dataclass(frozen=True)
class ResultOptions(OutputOptions):
    """Options of commands that end with a result."""

    json: bool = option(
        "--json", default=False, help="Print the result as JSON on standard output, the rest on standard error."
    )


#: Commands that run until they are stopped, and have no result.
_ENDLESS = ("play", "serve", "gateway")


def _prepared(command: Callable[..., None], kind: type[OutputOptions] = ResultOptions) -> Callable[..., None]:
    """Add the options of all commands; turn rollenv's errors, Ctrl-C and SIGTERM into a message and an exit code."""
    flat = with_options(command)  # within, as options that do not go together raise

    @functools.wraps(command)
    def run(*, _output: OutputOptions, **kwargs: Any) -> None:
        set_output(**vars(_output))
        termination = Termination()
        try:
            with termination.handled():
                flat(**{k: v.expanduser() if isinstance(v, Path) else v for k, v in kwargs.items()})
        except (KeyboardInterrupt, Terminated) as stop:
            terminated = termination.asked or isinstance(stop, Terminated)
            error_console.print("terminated" if terminated else "stopped")
            raise Terminated if terminated else typer.Exit(130) from None
        except Exception as error:
            told = _missing_extra(error) or error
            if not isinstance(told, RollenvError) and not _is_of_a_sandbox(told):
                raise
            _print_error(str(told))
            raise typer.Exit(told.exit_code) from None  # type: ignore[attr-defined]
        finally:
            set_output(0, False)  # for callers in this process

    signature = inspect.signature(flat)
    more = inspect.Parameter("_output", inspect.Parameter.KEYWORD_ONLY, annotation=kind)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), more])  # type: ignore[attr-defined]
    return with_options(run)


def _missing_extra(error: Exception) -> MissingExtra | None:
    """Return what to install if an extra has the module that could not be imported."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    for requirement in importlib.metadata.requires("rollenv") or () if name else ():
        package, condition = re.match(r"([\w-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
        if package.replace("-", "_") == name and (extra := re.search(r'extra == "([\w-]+)"', condition)):
            return MissingExtra(f"this needs {name}, which is not installed: {install_hint(extra[1])}")
    return None


def _has_json(command: Callable[..., None]) -> bool:
    """Return whether a command of a plug-in has an option --json of its own."""
    alone = typer.Typer()
    alone.command()(with_options(command))
    return any(each.name == "json" or "--json" in each.opts for each in typer.main.get_command(alone).params)


def _is_of_a_sandbox(error: Exception) -> bool:
    errors = sys.modules.get("rollenv.sandbox.errors")  # few commands need sandboxes
    return errors is not None and isinstance(error, errors.BaseSandboxError)


def _print_error(text: str) -> None:
    error_console.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)


_COMMANDS = {
    "train": train, "sft": sft, "reward-model": reward_model, "eval": eval, "probe": probe, "episode": episode,
    "bench": bench, "health": health, "play": play, "serve": serve, "gateway": gateway, "list": list, "info": info,
    "check": check, "view": view, "explain": explain, "regrade": regrade, "export": export, "new": new,
    "skills": skills,
}  # fmt: skip
for _name, _module in _COMMANDS.items():
    app.command(_name)(_prepared(_module.command, OutputOptions if _name in _ENDLESS else ResultOptions))
for _name, _function in panel.commands().items():
    panel.app.command(_name)(_prepared(_function))
app.add_typer(panel.app, name="panel")
for _name, _function in load_all(GROUP, {*_COMMANDS, "panel"}).items():
    try:
        _prepared_one = _prepared(_function, OutputOptions if _has_json(_function) else ResultOptions)
    except Exception as _error:  # typer's have no common base
        warnings.warn(f"the command {_name} of {GROUP} is left out, as it cannot be read: {_error}", stacklevel=1)
    else:
        app.command(_name)(_prepared_one)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 to 6 as errors say, 130 Ctrl-C, 143 SIGTERM."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # signs that the terminal's encoding lacks
    completion.run(_main)


def _main() -> None:
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C outside a command
            sys.exit(130)
        if not hasattr(error, "format_message"):  # usage errors of typer have it, with any version of click
            raise
        _explain(error)
        code = error.exit_code  # type: ignore[attr-defined]
    sys.exit(code)


def _explain(error: Any) -> None:
    """Print a usage error on one line, and the command that shows help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    text = " ".join(error.format_message().split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    _print_error(f"{text}; see `{context.command_path if context else 'rollenv'} --help`")
