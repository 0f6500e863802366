"""Terminus-2's interface around an environment with a shell: keystrokes in, screen out."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

from rollenv.core.env import ResetResult, StepResult, Wrapper
from rollenv.core.errors import UsageError
from rollenv.core.parsing import cut_middle
from rollenv.envs.terminal.base import TerminalEnv
from rollenv.envs.terminal.shell import sendable
from rollenv.sandbox import NotFound, SandboxDied
from rollenv.sandbox.errors import SandboxFileError
from rollenv.sandbox.types import CommandResult

_HELP = """You are at a terminal of {columns} columns and {rows} rows. Answer with JSON, and nothing else:
{{"analysis": "what you see", "plan": "what you do next",
  "commands": [{{"keystrokes": "ls -la\\n", "duration": 0.1}}], "task_complete": false}}
Keystrokes are typed as they are: end a command with \\n. A whole entry may be one of tmux's names for a key, such as
C-c or C-d. Then the terminal is left alone for the duration (seconds, at most {wait:g}). Say "task_complete": true once
the task is done; you will be asked to confirm it."""
_CONFIRM = (
    "Are you sure that the task is done? What is there will be graded, and nothing can be changed afterwards. If so, "
    'answer with "task_complete": true again.'
)
#: tmux's names for keys, as bytes.
_KEYS = {
    "Enter": "\r", "Escape": "\x1b", "Tab": "\t", "BSpace": "\x7f", "Space": " ", "Up": "\x1b[A", "Down": "\x1b[B",
    "Right": "\x1b[C", "Left": "\x1b[D", "Home": "\x1b[H", "End": "\x1b[F", "DC": "\x1b[3~", "PageUp": "\x1b[5~",
    "PageDown": "\x1b[6~", "PgUp": "\x1b[5~", "PPage": "\x1b[5~", "PgDn": "\x1b[6~", "NPage": "\x1b[6~",
    "IC": "\x1b[2~", "BTab": "\x1b[Z", "C-Space": "\0", "C-@": "\0",
    **{f"C-{letter}": chr(ord(letter) - 96) for letter in "abcdefghijklmnopqrstuvwxyz"},
    **{f"C-{sign}": chr(27 + n) for n, sign in enumerate("[\\]^_")},
}  # fmt: skip
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Za-z]|\x1b[=>78cDEHM]")


class Keystrokes(Wrapper):
    """An environment with a shell, used through a terminal: actions are JSON with keystrokes, observations are text.

    The terminal runs a login shell in tmux, and the observation is the screen or its new part; without tmux on the
    machine, it is the output of a login shell. A malformed action types nothing and is answered with the error. The
    task is submitted when ``task_complete`` was true twice in a row.

    Args:
        output_bytes: maximum length of an observation; the middle of longer ones is left out.
        longest_wait: maximum number of seconds to wait after one entry of keystrokes.
    """

    def __init__(
        self, env: Any, *, rows: int = 40, columns: int = 160, output_bytes: int = 10_000, longest_wait: float = 60.0
    ):
        super().__init__(env)
        if not isinstance(env.unwrapped, TerminalEnv):
            raise UsageError(f"{env} has no terminal: Keystrokes goes around an environment with a shell")
        self.rows, self.columns, self.most, self.longest = rows, columns, output_bytes, longest_wait
        self._screen: _Screen | None = None
        self._confirming = False

    @property
    def _inner(self) -> TerminalEnv:
        inner = self.env.unwrapped
        assert isinstance(inner, TerminalEnv)
        return inner

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None, **given: Any) -> ResetResult:
        """Start an episode; the observation is the instruction, the action format, and the terminal."""
        _, info = super().reset(seed, options=options, **given)
        info = {name: value for name, value in info.items() if name not in ("tools", "submit")}
        self._confirming = False
        self._screen = _Screen(self._inner, self.rows, self.columns)
        how = _HELP.format(columns=self.columns, rows=self.rows, wait=self.longest)
        return f"{self._inner.instruction}\n\n{how}\n\n{self._screen.current()}", info

    def step(self, action: str) -> StepResult:
        if not isinstance(action, str):
            raise TypeError(f"{self}: an action must be a str, not {type(action).__name__}")
        try:
            commands, done = self._parse_keystrokes(action)
        except ValueError as error:
            self._confirming = False
            return self._inner.say(f"Previous response had parsing errors:\nERROR: {error}", valid=False)
        try:
            assert self._screen is not None
            for keys, seconds in commands:
                self._screen.type(sendable(keys))
                self._inner.wait(seconds)
            screen = cut_middle(self._screen.new(), self.most)
        except SandboxDied:
            return self._inner.say("", died=True)
        if done and self._confirming:
            return self._inner.say(screen, ends=True)
        self._confirming = done
        return self._inner.say(f"{screen}\n\n{_CONFIRM}" if done else screen)

    def _parse_keystrokes(self, action: str) -> tuple[list[tuple[str, float]], bool]:
        """Parse keystrokes with the seconds to wait after them, and whether the agent declares the task complete."""
        begin, end = action.find("{"), action.rfind("}")
        if begin < 0 or end < begin:
            raise ValueError("there is no JSON object in it")
        try:
            fields = json.loads(action[begin : end + 1], strict=False)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON: {error}") from None
        entries = fields.get("commands", [])
        if not isinstance(entries, list):
            raise ValueError('"commands" must be a list')
        commands = []
        for entry in entries:
            keys = entry.get("keystrokes") if isinstance(entry, dict) else None
            if not isinstance(keys, str):
                raise ValueError('each of "commands" must be an object with "keystrokes", a text')
            seconds = entry.get("duration", 1.0)
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds >= 0:
                raise ValueError(f'"duration" must be a number of seconds, got {seconds!r}')
            commands.append((keys, float(min(seconds, self.longest))))
        return commands, fields.get("task_complete") is True

    def oracle_action(self) -> str:
        """Return the keystrokes of the solution's next command."""
        inner = self._inner
        if self._confirming:
            return json.dumps({"commands": [], "task_complete": True})
        command = inner.next_of_solution()
        if command is None:
            return json.dumps({"analysis": "", "plan": "", "commands": [], "task_complete": True})
        inner.run_whole(command)
        return json.dumps({"analysis": "", "plan": "", "commands": [], "task_complete": False})

    def sample_random_action(self) -> str:
        """Return the keystrokes of a harmless command."""
        rng = self._inner.action_rng
        keys = ("ls\n", "pwd\n", "echo hello\n", "C-c", "cat\n", "")[rng.randrange(6)]
        return json.dumps({"commands": [{"keystrokes": keys, "duration": 0.05}], "task_complete": rng.random() < 0.1})


class _Screen:
    """A login shell at a terminal of a machine, which is replaced when it exits."""

    def __init__(self, env: TerminalEnv, rows: int, columns: int):
        self.machine, self.user, self.cwd, self.rows, self.columns = env.machine, env.user, env.cwd, rows, columns
        self.tmux = self.machine.run("command -v tmux", user=self.user, cwd="/").exit_code == 0
        self.before, self.text, self.ended = "", bytearray(), False
        self._start(self.cwd)

    def _start(self, cwd: str) -> None:
        shell = ["bash", "--login"]
        size = ["-x", str(self.columns), "-y", str(self.rows)]
        if self.tmux:
            made = self._tmux("new-session", "-d", "-s", "main", *size, *shell, cwd=cwd)
            self.tmux = made.exit_code == 0
        if not self.tmux:
            self.terminal = self.machine.terminals.start(
                shell,
                rows=self.rows,
                columns=self.columns,
                cwd=cwd,
                user=self.user,
                timeout=1e6,
                on_data=self.text.extend,
            )
        time.sleep(0.2)

    def _renew(self) -> None:
        """Start a new shell if the last one has exited."""
        if not (self._tmux("has-session", "-t", "main").exit_code == 0 if self.tmux else self.terminal.running):
            self.ended, self.before = True, ""
            folder = None
            with contextlib.suppress(SandboxFileError):
                folder = self.machine.files.info(self.cwd)
            self._start(self.cwd if folder and folder.type == "dir" else "/")

    def _tmux(self, *words: str, cwd: str = "/") -> CommandResult:
        socket = ["tmux", "-L", "rollenv", "-f", "/dev/null"]
        try:
            return self.machine.run(
                [*socket, *words], user=self.user, cwd=cwd, env={"TERM": "xterm-256color"}, timeout=10
            )
        except NotFound:  # an agent may remove it
            return CommandResult("", "tmux is gone", 127, None, 0.0)

    def type(self, keys: str) -> None:
        """Type keys."""
        text = _KEYS.get(keys, keys.replace("\n", "\r"))
        self._renew()
        if not self.tmux:
            with contextlib.suppress(NotFound):  # it has just exited
                self.terminal.send(text)
            return
        if text == "\0":
            self._tmux("send-keys", "-t", "main", "C-Space")
            return
        for at in range(0, len(text), 4000):
            piece = text[at : at + 4000]
            if piece.endswith(";"):  # the end of a command for tmux
                piece = f"{piece[:-1]}\\;"
            self._tmux("send-keys", "-t", "main", "-l", "--", piece)

    def current(self) -> str:
        """Return the screen."""
        self.before = self._history()
        return f"Current Terminal Screen:\n{self._visible()}"

    def new(self) -> str:
        """Return the new output, or the whole screen if all of it has changed."""
        self._renew()
        if self.ended:
            self.ended = False
            return f"The shell has ended; this is a new one.\n{self.current()}"
        now = self._history()
        before, self.before = self.before.rstrip(), now
        if before and now.startswith(before):
            return f"New Terminal Output:\n{now[len(before) :].strip()}"
        return f"Current Terminal Screen:\n{self._visible()}"

    def _visible(self) -> str:
        if self.tmux:
            return self._tmux("capture-pane", "-p", "-t", "main").stdout.rstrip()
        return self._plain()[-4000:]

    def _history(self) -> str:
        if not self.tmux:
            return self._plain()
        return self._tmux("capture-pane", "-p", "-S", "-", "-t", "main").stdout.rstrip()

    def _plain(self) -> str:
        text = _CONTROL.sub("", bytes(self.text).decode("utf-8", "replace"))
        return text.replace("\r\n", "\n").replace("\r", "\n").rstrip()
