"""The command line: what a person types, sees, and gets as an exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import typer

import rollenv
from rollenv.cli.main import app

NARROW = {**os.environ, "COLUMNS": "80"}


@pytest.mark.integration
def test_a_card_tells_the_contract_and_an_example(rollenv_process):
    shown = rollenv_process("info", "game:Sokoban-v0-easy", "max_turns=7", env=NARROW).stdout
    for text in ("Push every box", "at most 7", "reward", "oracle", "a base install", "\\boxed{up}", "env:Sokoban"):
        assert text in shown
    card = json.loads(rollenv_process("info", "webshop:mini", "--json").stdout)
    assert "\nWebShop" in card["prompt"]
    shown = rollenv_process("info", "webshop:mini", env=NARROW).stdout
    assert "'rollenv[webshop]'" in shown  # square brackets are no markup
    assert max(map(len, shown.splitlines())) <= 80


def test_file_names_that_the_locale_cannot_write_stop_nothing(rollenv_process):
    """Debian has certificates of such names; they are in the root of a machine, which `list` tries."""
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = rollenv_process("list", env=plain)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
def test_groups_fit_a_terminal_and_say_what_is_missing(rollenv_process):
    done = rollenv_process("list", env={k: v for k, v in NARROW.items() if k != "ROLLENV_DATA"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "data below $ROLLENV_DATA: hotpotqa" in done.stdout
    here = rollenv_process("list", "--here").stdout.splitlines()
    assert here
    assert not any(line.startswith("-") for line in here)


@pytest.mark.slow
def test_the_module_is_the_command(tmp_path):
    done = subprocess.run([sys.executable, "-m", "rollenv", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == rollenv.__version__


@pytest.mark.slow
def test_list_and_version(rollenv_command):
    listed = json.loads(rollenv_command("list", "sokoban", "--json").stdout)
    assert {"game:Sokoban-v0-easy", "game:Sokoban-v0-hard"} <= {row["id"] for row in listed}
    shown = rollenv_command("list", "--all").stdout
    assert all(s.id in shown for s in rollenv.list_envs())
    assert "any environment registered in Gymnasium" in rollenv_command("list", "gymnasium:").stdout
    assert rollenv_command("--version").stdout.strip() == rollenv.__version__


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("eval", "game:Sokobann-v0-easy"), 2, "did you mean game:Sokoban-v0-easy"),
        (("eval", "game:Sokoban-v0-easy", "max_turn=3"), 2, "did you mean 'max_turns'"),
        (("eval", "game:Sokoban-v0-easy", "max_turns=no"), 2, "max_turns takes int | None, not 'no'"),
        (("eval", "game:Sokoban-v0-easy", "-a", "wizard"), 2, "there is no agent 'wizard'"),
        (("eval", "game:Sokoban-v0-easy", "-a", "noisy:2"), 2, "share between 0 and 1"),
        (("eval", "game:Sokoban-v0-easy", "-a", "local:nowhere"), 2, "there is no folder 'nowhere'"),
        (("eval", "game:Sokoban-v0-easy", "-n", "0"), 2, "-n"),
        (("play", "game:Nothing-v0"), 2, "no environment is registered"),
        (("serve", "--port", "0", "--host", "no..where"), 2, "cannot listen on no..where"),
        (("serve", "--port", "0", "--certificate", "none", "--key", "none"), 2, "TLS certificate none"),
        (("check",), 2, "name the ids"),
        (("check", "nope:X-v0"), 2, "no environment is registered"),
        (("view", "nowhere"), 2, "no metrics.jsonl"),
        (("train", "sokobam"), 2, "there is no recipe 'sokobam'"),
        (("train", "sokobam.toml"), 2, "did you mean 'sokoban'"),
        (("eval", "sokoban-tiny-501"), 2, "did you mean sokoban-tiny-500"),
        (("train", "sokoban", "--resume"), 2, "there is no run of 'sokoban'"),
        (("train", "sokoban", "run_dir=absent", "--resume"), 2, "cannot resume absent"),
        (("train", "run_dir=absent", "--resume"), 2, "cannot resume absent"),
        (("train", "iterations=3", "--resume"), 2, "name the run to continue"),
        (("train", "run_dir=absent"), 2, "name a recipe"),
        (("train", "sokoban", "algorithm.nme=gigpo"), 2, "did you mean 'algorithm.name'"),
        (("train", "sokoban", "seed=x"), 2, "seed: "),
        (("train", "sokoban", "run_dir=/proc/none/run"), 4, "cannot write the run directory"),
        (("train", "sokoban", "run_dir=/proc/none/run", "--seeds", "2"), 2, "cannot write /proc/none"),
        (
            ("catalogue", "game:Sokoban-v0-easy", "--page", "/proc/none/page.html"),
            2,
            "cannot write /proc/none/page.html",
        ),
        (("forge", "six", "--out", "/proc/none/tasks"), 2, "cannot write /proc/none"),
        (("train", "sokoban", "lr=1e-4"), 2, "did you mean 'optimizer.lr'"),
        (("eval", "game:Sokoban-v0-easy", "-n", "all"), 2, "without end; say how many with -n"),
        (("eval", "game:Sokoban-v0-easy", "-o", "/etc/passwd"), 2, "is a file"),
        (("eval", "game:Sokoban-v0-easy", "--system", "hi"), 2, "--system is for a chat agent"),
        (("eval", "game:Sokoban-v0-easy", "-a", "chat:m", "--threads", "2"), 2, "--threads is for a local model"),
        (("eval", "game:Sokoban-v0-easy", "-a", "chat:m", "--precision", "x"), 2, "--precision is for a local model"),
        (("play", "game:Sokoban-v0-easy", "--seed", "-1"), 2, "greater than or equal to 0"),
        (("play", "game:Sokoban-v0-easy", "--seed", "x"), 2, "valid integer"),
        (("info", "game:Sokoban-v0-eas"), 2, "did you mean game:Sokoban-v0-easy"),
        (("list", "nothing-like-it"), 2, "no id contains 'nothing-like-it'"),
        (("frobnicate",), 2, "frobnicate"),
        (("eval", "game:Sokoban-v0-easy", "-w", "many"), 2, "there are no workers 'many'"),
        (("eval", "game:Sokoban-v0-easy", "-w", "ray:0"), 2, "there are no workers 'ray:0'"),
        (("eval", "game:Sokoban-v0-easy", "-a", "chat:gpt"), 2, "needs --base-url"),
        (("health", "nowhere"), 2, "cannot read nowhere"),
    ],
)
def test_bad_input_is_explained(rollenv_command, command, code, says):
    done = rollenv_command(*command)
    assert says in " ".join(done.stderr.split())
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(("agent", "low", "high"), [("oracle", 1.0, 1.0), ("random", 0.0, 0.5)])
def test_eval_reports_success(rollenv_command, agent, low, high):
    done = rollenv_command("eval", "game:Sokoban-v0-easy", "-a", agent, "-n", "40", "-s", "7", "--json")
    result = json.loads(done.stdout)
    assert low <= result["success"] <= high
    assert result["low"] <= result["success"] <= result["high"]
    again = rollenv_command("eval", "game:Sokoban-v0-easy", "-a", agent, "-n", "40", "-s", "7", "--json")
    assert json.loads(again.stdout) | {"seconds": 0} == result | {"seconds": 0}


def test_play_to_the_end_with_hints(rollenv_command):
    hints = ":hint\n" * 20
    typed = f"nonsense:\n:what\n:again\n{hints}:quit\n"
    done = rollenv_command("play", "game:Sokoban-v0-easy", "--seed", "3", input=typed)
    assert done.returncode == 0, done.stderr
    assert "solved" in done.stdout


def test_play_accepts_first_letters(rollenv_command):
    done = rollenv_command("play", "game:Sokoban-v0-easy", "--seed", "3", input="u\nd\nleft\n")
    assert done.returncode == 0
    assert "Turn 3" in done.stdout
    assert "not a valid action" not in done.stdout


@pytest.mark.slow
def test_check_is_green_for_what_comes_with_rollenv_and_red_for_what_is_broken(rollenv_command, tmp_path):
    done = rollenv_command("check", "game:Sokoban-v0-tiny", "roll:FrozenLake-v0", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 environments" in done.stdout
    (tmp_path / "broken_env.py").write_text(
        "import random, rollenv\n"
        "class Dice(rollenv.Env):\n"
        "    def _reset(self, options): return 'roll', {}\n"
        "    def _step(self, action): return str(random.random()), 0.0, True, False, {}\n"
        "if __name__ == '__main__':\n"
        "    rollenv.register('bad:Dice-v0', 'broken_env:Dice')\n"
        "    from rollenv.cli.main import main; main()\n"
    )
    broken = subprocess.run(
        [sys.executable, "broken_env.py", "check", "bad:Dice-v0"], cwd=tmp_path, capture_output=True, text=True
    )
    assert broken.returncode == 1
    assert "global rng" in broken.stdout
    assert "self.np_random" in " ".join(broken.stdout.split())


def test_no_help_has_brackets_that_rich_would_read_as_marks():
    def texts(command, name):
        yield name, command.help
        yield from ((f"{name} {each.name}", getattr(each, "help", None)) for each in command.params)
        for below, one in getattr(command, "commands", {}).items():
            yield from texts(one, f"{name} {below}")

    marked = [
        name for name, text in texts(typer.main.get_command(app), "rollenv") if re.search(r"\[[a-z/#@]", text or "")
    ]
    assert marked == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["info", "check", "accept"])
def test_commands_take_a_file_of_questions_for_an_id(command, rollenv_command, tmp_path):
    (tmp_path / "own.jsonl").write_text('{"question": "Who?", "answer": "Ada"}\n' * 2)
    done = rollenv_command(command, "own.jsonl")
    assert "data:" in done.stdout
    assert done.returncode < 2, done.stderr
