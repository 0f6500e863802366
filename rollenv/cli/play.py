"""``rollenv play``"""

from __future__ import annotations

import codecs
import contextlib
import os
import random
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import typer
from rich.text import Text

from rollenv.cli import completion
from rollenv.cli.common import console, id_of, key_values
from rollenv.core.drawing import PIECES, ansi, draw
from rollenv.core.env import Env
from rollenv.core.errors import Broken, MissingExtra, Unsolvable
from rollenv.core.human_input import ActionReader, reader
from rollenv.core.pictures import Picture, pictures
from rollenv.core.plugins import users_code
from rollenv.core.registry import make

#: Escape codes of arrow keys in both terminal modes, and vi's keys.
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
VI = {"h": "left", "j": "down", "k": "up", "l": "right"}

_END, _BACKSPACE, _KILL = "\x04", "\x08\x7f", "\x15"
#: Seconds to wait for the rest of an arrow key's escape sequence.
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
        """Read keys one by one, without echo, until the block ends."""
        before = termios.tcgetattr(self.fd)
        tty.setcbreak(self.fd, termios.TCSADRAIN)
        try:
            yield self
        finally:
            termios.tcsetattr(self.fd, termios.TCSADRAIN, before)

    def ask(self, prompt: str, moves: Mapping[str, str], letters: Mapping[str, str]) -> str | None:
        """Return a line, or the move of a key; None at the end of the input.

        Args:
            moves: actions of ``up``, ``down``, ``left`` and ``right``; missing ones are ignored.
            letters: directions of letters that act at once, at the beginning of a line.
        """
        self._echo(prompt)
        line = ""
        while True:
            key = self._key()
            direction = ARROWS.get(key.removeprefix("\x1b")) if key.startswith("\x1b") else letters.get(key)
            if not line and direction is not None and direction in moves:
                self._echo(f"{direction}\n")
                return moves[direction]
            if key == "" or (key == _END and not line):
                self._echo("\n")
                return None
            if key in "\r\n":
                self._echo("\n")
                return line
            if key in _BACKSPACE:
                self._echo("\b \b" if line else "")
                line = line[:-1]
            elif key == _KILL:
                self._echo("\b \b" * len(line))
                line = ""
            elif key.isprintable():
                self._echo(key)
                line += key

    def _key(self) -> str:
        """Return a character, or ESC and the letter of an arrow key; empty at the end of the input."""
        first = self._next()
        if first != "\x1b" or not self._more():
            return first
        if self._next() not in "[O" or not self._more():
            return first
        last = self._next()
        while last and not last.isalpha() and last != "~" and self._more():  # modifier keys add to the sequence
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


COMMANDS = {
    ":hint": "play the expert's action",
    ":random": "play a random action",
    ":undo": "take the last action back",
    ":restart": "start this episode again",
    ":new": "start another episode",
    ":say TEXT": "send TEXT exactly as it is",
    ":help": "show this",
    ":quit": "leave (or Ctrl-D)",
}
#: Aliases of commands.
_SAME = {":again": ":new", ":q": ":quit", ":exit": ":quit", ":h": ":help", ":u": ":undo", ":?": ":help"}
#: Largest seed that is drawn if none is given.
_SEEDS = 10_000


def command(
    env: str = typer.Argument(help="Environment id; see `rollenv list`.", autocompletion=completion.ids),
    settings: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Arguments of the environment."),
    seed: int | None = typer.Option(None, min=0, help="Seed of the first episode. Default: a random one."),
) -> None:
    """Play an environment yourself, in the terminal.

    Type an answer; what an agent would have to write around it is added. Arrow keys move in grids.
    :help shows the commands.
    """
    given = key_values(settings or ())
    with users_code(env, Broken), contextlib.closing(make(id_of(env), **given)) as game, _asker() as ask:
        while TerminalPlayer(game, random.randrange(_SEEDS) if seed is None else seed, ask).play():
            seed = None


def letters(reader: ActionReader) -> dict[str, str]:
    """Return vi's keys; none where a word may begin with one, which could not be typed."""
    typed_whole = not reader.few or any(word[:1].lower() in VI for word in reader.words)
    return {} if typed_whole else VI


Ask = Callable[[str, ActionReader], str | None]


@contextlib.contextmanager
def _asker() -> Iterator[Ask]:
    """Yield a reader: of keys and lines for a terminal, of lines for anything else."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        with Keyboard(sys.stdin.fileno()).held() as keyboard:
            yield lambda prompt, reader: keyboard.ask(prompt, reader.moves, letters(reader))
    else:
        yield _line


def _line(prompt: str, reader: ActionReader) -> str | None:
    """Return a line; None at the end of the input."""
    try:
        return console.input(prompt, markup=False).strip()
    except EOFError:
        console.print()
        return None


@dataclass
class Moment:
    """A moment of an episode."""

    observation: str
    info: dict[str, Any]
    total: float
    state: dict[str, Any] | None
    """State for undo; None if the environment cannot save and restore one."""


@dataclass
class TerminalPlayer:
    """One episode, played by the user."""

    game: Env
    seed: int
    ask: Ask
    past: list[Moment] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    over: bool = False

    def play(self) -> bool:
        """Play until the user quits or wants another episode; return whether another one is wanted."""
        self.restart()
        self.reader = self.learned = reader(self.game, self.past[0].observation, self.past[0].info)
        console.print(self._introduction(), style="dim", markup=False)
        self.show()
        while True:
            typed = self.ask("play again? Enter, or :quit > " if self.over else "> ", self.reader)
            typed = typed.strip() if typed is not None else ":quit"
            name = _SAME.get(typed, typed)
            if name == ":quit":
                return False
            if name == ":new" or (self.over and not name.startswith(":")):
                return True
            if name == ":restart":
                self.restart()
                self.show()
            elif name == ":undo":
                self.undo()
            elif name in (":hint", ":random"):
                self._help_out("oracle_action" if name == ":hint" else "sample_random_action")
            elif name.startswith(":say "):
                self.step(name.removeprefix(":say "))
            elif name.startswith(":"):
                self._print_help(name)
            elif name:
                action = self.reader.action(name)
                if action != name:
                    console.print(action, markup=False, style="dim")
                self.step(action)

    def restart(self) -> None:
        """Begin the episode with its seed."""
        observation, info = self.game.reset(self.seed)
        self.past, self.actions, self.over = [], [], False
        self._note(observation, info, 0.0)

    def step(self, action: str) -> None:
        """Play an action and show the result."""
        if self.over:
            console.print("the episode is over: :undo, :restart or Enter", style="yellow")
            return
        observation, reward, terminated, truncated, info = self.game.step(action)
        self.actions.append(action)
        self.over = terminated or truncated
        self._note(observation, info, self.past[-1].total + reward)
        self.show()
        won: Any = info.get("success")
        if self.over and hasattr(won, "__len__"):  # several players, all of which are played here
            names = " and ".join(f"player {seat}" for seat, wins in enumerate(won) if wins) or "nobody"
            console.print(f"[bold]The game is over[/], won by {names}.")
        elif self.over:
            verdict = "solved" if won else "over"
            console.print(f"[bold]The episode is {verdict}[/], total reward {self.past[-1].total:g}.")

    def undo(self) -> None:
        """Undo one action by restoring the previous state, or by replaying the earlier actions."""
        if not self.actions:
            console.print("there is nothing to undo", style="yellow")
            return
        self.actions.pop()
        self.past.pop()
        before = self.past[-1]
        if before.state is not None:
            self.game.set_state(before.state)
        else:
            self.game.reset(self.seed)
            for action in self.actions:
                self.game.step(action)
        self.over = False
        self.show()

    def _note(self, observation: str, info: dict[str, Any], total: float) -> None:
        state = self.game.get_state() if hasattr(self.game, "get_state") and hasattr(self.game, "set_state") else None
        self.past.append(Moment(observation, info, total, state))

    def _help_out(self, method: str) -> None:
        """Play actions of the oracle, or random ones."""
        if self.over:
            console.print("the episode is over: :undo, :restart or Enter", style="yellow")
            return
        try:
            action = str(getattr(self.game, method)())
        except (NotImplementedError, Unsolvable) as reason:
            console.print(str(reason), markup=False, style="yellow")
            return
        console.print(action, markup=False, style="dim")
        self.step(action)

    # -- what is shown -----------------------------------------------------------------------------------------------

    def show(self) -> None:
        """Show the last observation, and the board as a drawing if the terminal supports it."""
        now = self.past[-1]
        suffix, board = str(now.info.get("suffix", "")), self.game.render()
        drawing = draw(self.game.picture, board) if console.is_terminal else None
        images = pictures(now.info)
        console.print(now.observation, markup=False)
        before = self.reader
        if not self.over:
            self.reader = self.learned.now(self.game, now.info)
        if self.reader.words and self.reader != before:
            console.print(f"actions: {', '.join(self.reader.words)}", markup=False, style="dim")
        if drawing is None:
            if suffix and not now.observation.endswith(suffix):
                console.print(suffix, markup=False)
            for image in images:
                self._show_picture(image)
            return
        console.print(Text.from_ansi(ansi(drawing)))
        if images:
            console.print(f"an agent sees {_about(images[0])}", style="dim")
        elif "".join(board.split()) not in "".join(suffix.split()):
            console.print(f"an agent reads: {' / '.join(suffix.split())}", markup=False, style="dim")

    def _show_picture(self, image: Picture) -> None:
        """Show a picture in colours, two pixels in each character, if the terminal and what is installed can."""
        try:
            if console.is_terminal and console.color_system:
                console.print(Text.from_ansi(half_blocks(image.array(), console.width)))
        except MissingExtra:
            pass
        console.print(_about(image), style="dim")

    def _introduction(self) -> str:
        lines = [f"seed {self.seed}. {self._how()}  :help shows the commands."]
        drawing = draw(self.game.picture, self.game.render()) if console.is_terminal else None
        if drawing:
            pieces = dict.fromkeys(piece for row in drawing.rows for cell in row for piece in cell.pieces)
            lines.append("   ".join(f"{PIECES[piece][1]} {piece}" for piece in pieces))
        lines.append(getattr(self.game.unwrapped, "legend", ""))
        return "\n".join(filter(None, lines))

    def _how(self) -> str:
        reader = self.reader
        if words := list(reader.words):
            keys = "A first letter is enough where it is the only one."
            if self.ask is not _line and reader.moves:
                keys = "Arrow keys or h j k l move." if letters(reader) else "Arrow keys move."
            return f"Type {', '.join(words)}. {keys}"
        return "Type an answer." + (f" {reader.template % '...'} is added." if reader.template != "%s" else "")

    def _print_help(self, typed: str) -> None:
        if typed != ":help":
            console.print(f"there is no command {typed}", markup=False, style="yellow")
        console.print(self._how(), markup=False)
        for name, text in COMMANDS.items():
            console.print(f"  {name:<10} {text}", markup=False)
        if legend := getattr(self.game.unwrapped, "legend", ""):
            console.print(legend, markup=False)


def _about(image: Picture) -> str:
    return f"a picture of {image.width} x {image.height} pixels, {image.sha256[:12]}"


def half_blocks(pixels: np.ndarray[Any, np.dtype[np.uint8]], columns: int) -> str:
    """Return a picture in a terminal's colours, two pixels in each character.

    Args:
        pixels: (height, width, 3); made smaller by a whole factor if it is wider than ``columns``.
    """
    by = max(1, -(-pixels.shape[1] // columns))
    height, width = (max(1, side // by) for side in pixels.shape[:2])
    by_y, by_x = min(by, pixels.shape[0]), min(by, pixels.shape[1])
    cut = pixels[: height * by_y, : width * by_x].astype(float)
    small = cut.reshape(height, by_y, width, by_x, 3).mean((1, 3)).round().astype(int)
    small = np.concatenate([small, small[-1:]]) if height % 2 else small
    lines = []
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        pairs = zip(upper, lower, strict=True)
        cells = [f"\x1b[38;2;{r};{g};{b};48;2;{x};{y};{z}m▀" for (r, g, b), (x, y, z) in pairs]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)
