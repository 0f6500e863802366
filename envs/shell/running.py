"""Checks of processes, services, and scripts, which are run on inputs that the agent did not see."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rollenv.envs.shell.checks import lines_of
from rollenv.envs.shell.workspace import Workspace

#: Prints a line for each process but itself: id, state, and in base64 program and words.
_PROCESSES = r"""
for one in /proc/[0-9]*; do
    [ "${one#/proc/}" = "$$" ] && continue
    { IFS= read -r -d '' state < "$one/stat"; } 2>/dev/null
    words=$( { head -c 4096 "$one/cmdline" | base64 -w0; } 2>/dev/null)
    program=$( { readlink -n "$one/exe" | base64 -w0; } 2>/dev/null)
    state=${state##*) }
    [ -n "$words" ] && printf '%s %s %s %s\n' "${one#/proc/}" "${state%% *}" "${program:--}" "$words"
done; true
"""
#: Sends each piece of data to a port on its own connection, and prints the answers in base64. It waits some seconds for
#: a server that is still starting, and as long for all answers.
_ASK = r"""
import base64, socket, sys, time
port, whole, ends = int(sys.argv[1]), sys.argv[2] == "whole", time.monotonic() + 3
while True:
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        break
    except OSError:
        if time.monotonic() > ends:
            sys.exit(1)
        time.sleep(0.1)
ends = time.monotonic() + 6
for data in map(base64.b64decode, sys.argv[3:]):
    got = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as link:
            link.settimeout(2)
            link.sendall(data)
            while len(got) < 200000 and time.monotonic() < ends and (piece := link.recv(65536)):
                got += piece
                if not whole and got.count(b"\n") >= data.count(b"\n"):
                    break
    except OSError:
        pass
    print(base64.b64encode(got).decode())
"""


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return ""


def processes(workspace: Workspace) -> list[tuple[str, ...]]:
    """Return the words of the running Python programs, without zombies.

    Wrappers that start another program, such as timeout or tmux, have its words too.
    """
    found = []
    for line in workspace.run(_PROCESSES).stdout.splitlines():
        parts = line.split(" ")
        if len(parts) == 4 and parts[1] not in ("Z", "X") and "/python" in _decoded(parts[2]):
            found.append(tuple(_decoded(parts[3]).rstrip("\0").split("\0")))
    return found


@dataclass(frozen=True)
class Runs:
    """Checks the number of Python processes with these consecutive words in their command."""

    words: tuple[str, ...]
    count: int

    def __call__(self, workspace: Workspace) -> str:
        return _soon(lambda: self._now(workspace))

    def _now(self, workspace: Workspace) -> str:
        number = sum(self._fits(command) for command in processes(workspace))
        return "" if number == self.count else f"{number} processes run {' '.join(self.words)}"

    def _fits(self, command: tuple[str, ...]) -> bool:
        length = len(self.words)
        starts = range(len(command) - length + 1)
        return any(all(map(_names, command[at : at + length], self.words)) for at in starts)


def _soon(look: Callable[[], str]) -> str:
    """Return an error that persists for a moment: starting and stopping takes some time."""
    for _ in range(4):
        if not (wrong := look()):
            return ""
        time.sleep(0.25)
    return wrong


def _names(actual: str, word: str) -> bool:
    """Return whether a word of a command is the wanted one, possibly with a path before it."""
    return actual == word or actual.endswith(f"/{word}")


def ask(workspace: Workspace, port: int, messages: Sequence[str], whole: bool) -> list[str]:
    """Return the answers of a server on several connections; an empty list if there is no server.

    Args:
        whole: whether an answer ends when the server closes the connection; else it has as many lines as were sent.
    """
    data = (base64.b64encode(one.encode()).decode() for one in messages)
    words = ["python3", "-I", "-S", "-c", _ASK, str(port), "whole" if whole else "lines", *data]
    answers = [_decoded(line) for line in workspace.run(shlex.join(words), timeout=15).stdout.split()]
    return answers if len(answers) == len(messages) else []


@dataclass(frozen=True)
class Web:
    """Checks the answers of a web server to GET requests."""

    port: int
    pages: Mapping[str, str | None]
    """Text of the page by path; None for status 404."""

    def __call__(self, workspace: Workspace) -> str:
        requests = [f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n" for path in self.pages]
        answers = ask(workspace, self.port, requests, whole=True)
        if not answers:
            return f"nothing answers on port {self.port}"
        both = zip(self.pages.items(), answers, strict=True)
        wrong = [path for (path, text), answer in both if not _is_page(answer, text)]
        return f"port {self.port} answers otherwise for {', '.join(wrong)}" if wrong else ""


def _is_page(answer: str, text: str | None) -> bool:
    head, _, body = answer.replace("\r\n", "\n").partition("\n\n")
    status = re.match(r"HTTP/1\.[01] ([0-9]{3})\b", head)
    if status is None or text is None:
        return status is not None and status[1] == "404"
    return status[1] == "200" and body.rstrip() == text.rstrip()


@dataclass(frozen=True)
class Talk:
    """Checks that a server answers each line with a line, on one connection and on several."""

    port: int
    lines: tuple[str, ...]
    answers: tuple[str, ...]

    def __call__(self, workspace: Workspace) -> str:
        texts = ask(
            workspace, self.port, ["".join(f"{line}\n" for line in self.lines), f"{self.lines[0]}\n"], whole=False
        )
        right = [lines_of(text) for text in texts] == [list(self.answers), [self.answers[0]]]
        return "" if right else f"port {self.port} answers otherwise"


@dataclass(frozen=True)
class Silent:
    """Checks that nothing listens on a port."""

    port: int

    def __call__(self, workspace: Workspace) -> str:
        return _soon(lambda: self._now(workspace))

    def _now(self, workspace: Workspace) -> str:
        done = workspace.run(f"exec 3<>/dev/tcp/127.0.0.1/{self.port}", timeout=5)
        return f"something listens on port {self.port}" if done.exit_code == 0 else ""


@dataclass(frozen=True)
class Script:
    """Checks the output of a command in the working folder, with unseen files in a fresh folder ``$D``."""

    command: str
    """Command for bash; ``$APP`` is the working folder."""
    output: str
    stdin: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Contents by name."""
    exit_code: int | None = None
    """Expected exit status; None for any."""

    def __call__(self, workspace: Workspace) -> str:
        written = "".join(
            f'printf %s {base64.b64encode(text.encode()).decode()} | base64 -d > "$D"/{shlex.quote(name)}; '
            for name, text in self.files.items()
        )
        stdin = base64.b64encode(self.stdin.encode()).decode()
        fresh = 'export APP="$PWD" D; D=$(mktemp -d) && trap \'rm -rf "$D"\' EXIT || exit 99; '
        done = workspace.run(f"{fresh}{written} ( {self.command} ) < <(printf %s {stdin} | base64 -d)", timeout=5)
        if self.exit_code is not None and done.exit_code != self.exit_code:
            return f"{self.command} ends with {done.exit_code}"
        if lines_of(done.stdout) == lines_of(self.output):
            return ""
        return f"{self.command} prints something else"
