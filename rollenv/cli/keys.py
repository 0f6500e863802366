"""Single keys and lines from a terminal."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

#: What arrow keys send, in both of the modes that terminals have, and vi's keys for the same.
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
VI = {"h": "left", "j": "down", "k": "up", "l": "right"}

_END, _BACKSPACE, _KILL = "\x04", "\x08\x7f", "\x15"
_utf8 = codecs.getincrementaldecoder("utf-8")
#: Seconds in which the rest of what an arrow key sends arrives.
_REST = 0.05


@dataclass
class Keyboard:
    """Reads what is typed at a terminal: a move as soon as its key is down, anything else as a line.

    While :meth:`held`, keys come one by one and the terminal does not echo them.
    """

    fd: int
    _waiting: list[str] = field(default_factory=list)
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    @contextlib.contextmanager
    def held(self) -> Iterator[Keyboard]:
        """Until the block ends, keys come one by one and are not echoed."""
        before = termios.tcgetattr(self.fd)
        tty.setcbreak(self.fd, termios.TCSADRAIN)
        try:
            yield self
        finally:
            termios.tcsetattr(self.fd, termios.TCSADRAIN, before)

    def ask(self, prompt: str, moves: Mapping[str, str]) -> str | None:
        """A line, or the move that a key stands for; None at the end of the input.

        Args:
            moves: what ``up``, ``down``, ``left`` and ``right`` stand for; those that are missing are no moves.
        """
        self._echo(prompt)
        line = ""
        while True:
            key = self._key()
            direction = ARROWS.get(key.removeprefix("\x1b")) if key.startswith("\x1b") else VI.get(key)
            if not line and direction is not None and direction in moves:
                self._echo(f"{direction}\n")
                return moves[direction]
            if key == "" or (key == _END and not line):
                self._echo("\n")
                return None
            if key in "\r\n":
                self._echo("\n")
                return line
            line = self._edited(line, key)

    def _edited(self, line: str, key: str) -> str:
        if key in _BACKSPACE:
            self._echo("\b \b" if line else "")
            return line[:-1]
        if key == _KILL:
            self._echo("\b \b" * len(line))
            return ""
        if key.isprintable():
            self._echo(key)
            return line + key
        return line

    def _key(self) -> str:
        """A character; of an arrow key ESC and its letter; empty at the end of the input."""
        first = self._next()
        if first != "\x1b" or not self._more():
            return first
        if self._next() not in "[O" or not self._more():
            return first
        last = self._next()
        while last and not last.isalpha() and last != "~" and self._more():  # keys held with others send more
            last = self._next()
        return first + last

    def _more(self) -> bool:
        return bool(self._waiting or select.select([self.fd], [], [], _REST)[0])

    def _next(self) -> str:
        while not self._waiting:
            try:
                data = os.read(self.fd, 1024)
            except OSError:  # the terminal is gone
                data = b""
            if not data:
                return ""
            self._waiting += self._decoder.decode(data)
        return self._waiting.pop(0)

    @staticmethod
    def _echo(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
