"""The record of a harness: its installation, endpoint settings and command line.

Other packages add harnesses through the entry point group ``rollenv.harnesses``, each entry naming a :class:`Harness`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.plugins import entry_points, load

GROUP = "rollenv.harnesses"

#: A variable of a template. Other braces are literal.
_NAMED = re.compile(r"\{([a-z_]+)\}")
Dialect = Literal["chat", "responses", "messages"]


@dataclass(frozen=True)
class Harness:
    """A program that plays a task with a model.

    Its texts are templates: ``{base_url}`` (without ``/v1``), ``{key}``, ``{model}``, ``{instruction}``,
    ``{max_turns}``, ``{context}`` (the model's context length in tokens), ``{home}`` (a temporary folder for its own
    files), ``{runtime}`` (its installation folder), ``{programs}`` (rollenv's programs), ``{scripts}`` and ``{arch}``.

    Attributes:
        name: its name on command lines.
        version: version of the program, which its requirements include too.
        dialect: its API: chat completions, Responses or Messages.
        command: the command line, split like a shell's before templates are filled.
        pip: requirements for the machine's Python.
        npm: packages, installed without scripts.
        python: the oldest supported Python, such as ``3.12``.
        env: additional environment variables.
        files: files to write: paths, and texts or data for JSON.
        scripts: folder of this host with programs for the command, which is ``{scripts}`` in the machine.
        stdin: its standard input.
        transcript: shell pattern of its own record.
        prompt_tokens: approximate tokens of its first call without the task, a minimum for the context length.
        mcp: additional arguments for an MCP server at ``{mcp_url}``; empty without MCP support.
        mcp_env: additional environment variables with an MCP server.
        installed_as: the name of its runtime, if not its own.
    """

    name: str
    version: str
    dialect: Dialect
    command: str
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    python: str = "3.11"
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    scripts: str = ""
    stdin: str = ""
    transcript: str = ""
    prompt_tokens: int = 0
    mcp: str = ""
    mcp_env: Mapping[str, str] = field(default_factory=dict)
    installed_as: str = ""

    @property
    def folder(self) -> str:
        """The name of its runtime, which may be shared."""
        return self.installed_as or self.name


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Fill a template, or all templates in lists and dicts; a text with only a variable becomes its value."""
    if isinstance(template, Mapping):
        return {filled(name, values): filled(value, values) for name, value in template.items()}
    if isinstance(template, list | tuple):
        return [filled(each, values) for each in template]
    if not isinstance(template, str):
        return template
    if (whole := _NAMED.fullmatch(template)) and whole[1] in values:
        return values[whole[1]]

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise UsageError(f"{match[0]} is no variable of a harness; there are {', '.join(sorted(values))}")
        return str(values[match[1]])

    return _NAMED.sub(value, template)


#: The command that runs a module or file with the packages from pip.
PYTHON = "python3 -I {programs}/start.py {runtime}"
#: The command that runs a program with the Node.js of :data:`NODE_PACKAGE`.
NODE = "{runtime}/node_modules/node-linux-{arch}/bin/node"
NODE_PACKAGE = "node-linux-{arch}@22.23.3"
#: The endpoint for clients of OpenAI's API.
OPENAI = {"OPENAI_BASE_URL": "{base_url}/v1", "OPENAI_API_KEY": "{key}"}


def harnesses() -> tuple[str, ...]:
    """Return the names of all harnesses, sorted."""
    return tuple(sorted(entry_points(GROUP, frozenset({"command"}))))


def find_harness(name: str) -> Harness:
    """Return the harness of an entry point, or of the form ``command:WORDS`` without installation.

    The words are templates. The command gets OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY,
    HARNESS_MODEL and, unless the words include it, the task on standard input.
    """
    kind, _, words = name.partition(":")
    if kind == "command" and words.strip():
        try:
            shlex.split(words)
        except ValueError as error:
            raise UsageError(f"{name}: these are no words of a shell: {error}") from None
        env = {**OPENAI, "ANTHROPIC_BASE_URL": "{base_url}", "ANTHROPIC_API_KEY": "{key}", "HARNESS_MODEL": "{model}"}
        stdin = "" if "{instruction}" in words else "{instruction}"
        return Harness("command", "", "chat", words, env=env, stdin=stdin)
    if name not in harnesses():
        hint = did_you_mean(name, harnesses())
        hint = f"; {hint}" if hint else "."
        raise UsageError(f"there is no harness {name!r}{hint} There are {', '.join(harnesses())}, and command:WORDS")
    return load(GROUP, name, Harness)  # type: ignore[no-any-return]
