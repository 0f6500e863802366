"""Playing at a terminal: a pseudo-terminal is one."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from rollenv.cli.play import half_blocks

pty = pytest.importorskip("pty")


def play(*args: str, keys: list[str], start: Sequence[str] = ("-m", "rollenv")) -> tuple[str, int]:
    """What a terminal shows, with each of the keys pressed once it waits for one; and the exit code."""
    ours, theirs = pty.openpty()
    command = [sys.executable, *start, "play", *args]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    shown = ""
    try:
        for key in keys:
            shown += until(ours, "> ")
            os.write(ours, key.encode())
        shown += until(ours, None)
        return shown.replace("\r\n", "\n"), process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def until(terminal: int, end: str | None) -> str:
    """What comes up to a prompt, or to the end."""
    shown = b""
    while end is None or not shown.endswith(end.encode()):
        assert select.select([terminal], [], [], 60)[0], shown.decode(errors="replace")
        try:
            data = os.read(terminal, 4096)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        shown += data
    return shown.decode(errors="replace")


def test_the_actions_of_each_turn_are_shown(tmp_path):
    (tmp_path / "till.py").write_text(
        "import rollenv\n\nclass Till(rollenv.Env):\n    def _reset(self, options):\n"
        "        return 'a till', {'actions': ['buy', 'go', 'many\\nlines']}\n\n    def _step(self, action):\n"
        "        return action, 0.0, False, False, {'actions': ['sell']}\n"
    )
    shown, code = play(f"{tmp_path}/till.py:Till", keys=["b\r", ":random\r", ":quit\r"])
    assert code == 0
    assert "lines" not in shown  # nobody types a program
    assert shown.index("Type buy, go.") < shown.index("actions: sell") < shown.rindex("sell")


def test_keys_move_in_a_grid_and_commands_go_back_and_on():
    keys = ["\x1b[A", "\x1b[C", "\x1bOB", ":hint\r", ":undo\r", ":nope\r", ":help\r", ":restart\r", "up\r", ":quit\r"]
    shown, code = play("game:Sokoban-v0-easy", "--seed", "3", keys=keys)
    assert code == 0
    turns = [line.split(":")[0] for line in shown.splitlines() if line.startswith("Turn ")]
    assert turns == ["Turn 1", "Turn 2", "Turn 3", "Turn 4", "Turn 3", "Turn 1"]  # up right down hint undo; restart, up
    assert shown.count("This is Sokoban") == 2
    assert "there is no command :nope" in shown
    assert "\x1b[" in shown  # colours


CAVE = """
import rollenv

class Cave(rollenv.Env):
    def _reset(self, options):
        return "a dark cave", {}

    def _step(self, action):
        return f"you said {action}", 0.0, False, False, {}

    def sample_random_action(self):
        return str(self.np_random.choice(["north", "south", "west", "east", "listen", "dig"]))

rollenv.register("test:Cave-v0", Cave, abilities=("random_action",))
"""


def test_letters_do_not_move_where_words_begin_with_them(tmp_path):
    (tmp_path / "cave.py").write_text(CAVE + "from rollenv.cli.main import main\nmain()\n")
    shown, code = play("test:Cave-v0", keys=["listen\r", "d\r", "\x1b[D", ":q\r"], start=[str(tmp_path / "cave.py")])
    assert code == 0
    assert [line for line in shown.splitlines() if line.startswith("you said")] == [
        "you said listen",
        "you said dig",
        "you said west",
    ]
    assert all(word in shown.partition("a dark cave")[0] for word in ("north", "listen", "dig"))


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(("last", "ends"), [("\x04", "play again?"), (":q\r", "play again?")])
def test_a_bare_answer_is_enough(last, ends):
    shown, code = play("game:GuessTheNumber-v0-easy", "max_turns=1", "--seed", "1", keys=["1\x7f9\r", last])
    assert code == 0
    assert "\\boxed{9}" in shown
    assert ends in shown


def test_one_person_plays_all_seats_and_is_told_who_won():
    shown, code = play("multi:Nim-v0-seats", keys=["take 1 from pile 1\r", "nonsense\r", ":quit\r"])
    assert code == 0
    assert "You are player 2" in shown
    assert "won by player 0" in shown


def test_what_an_agent_sees_is_said():
    shown, code = play("game:Sokoban-v0-easy", "images=only", keys=["up\r", ":quit\r"])
    assert code == 0
    assert shown.count("an agent sees a picture of 168 x 168 pixels") == 2
    assert "targets red rings" in shown


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 3, 3), (7, 500, 3), (300, 20, 3)])
def test_pictures_are_half_blocks(shape):
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    lines = half_blocks(pixels, 40).split("\n")
    widths = {re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines}
    assert len(widths) == 1
    assert 0 < len(widths.pop()) <= 40
    assert half_blocks(np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8), 40) == (
        "\x1b[38;2;255;0;0;48;2;0;0;255m▀\x1b[0m"
    )


@pytest.mark.parametrize("raised", ["sys.exit(0)", "sys.exit(3)", "int('x')"])
@pytest.mark.parametrize(("command", "code"), [("play", 1), ("info", 0)])
def test_an_environment_that_exits_or_raises_is_told(command, code, raised, rollenv_command, tmp_path):
    (tmp_path / "own.py").write_text(
        f"import sys, rollenv\nclass Game(rollenv.Env):\n    def _reset(self, options):\n        {raised}\n"
    )
    done = rollenv_command(command, "own.py:Game", input="yes\n")
    assert done.returncode == code
    assert ("ValueError" if "int" in raised else "SystemExit") in done.stdout + done.stderr
