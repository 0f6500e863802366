"""What programs and coding agents count on: JSON results, exit codes, and skills whose commands exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

from rollenv.cli.common import print_result, set_output
from rollenv.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/commands.md").read_text("utf-8")
TEXTS = ROOT / "rollenv/cli"
SKILLS = sorted(TEXTS.glob("skill_texts/*/SKILL.md"))
GUIDES = [*SKILLS, TEXTS / "new_package/AGENTS.md.txt", TEXTS / "new_package/README.md.txt", ROOT / "AGENTS.md"]
#: Commands that run until they are stopped.
ENDLESS = {"play", "serve", "gateway"}


def commands(group=None, before=""):
    """All commands by name, subcommands too."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield f"{before}{name}", command


def test_the_table_of_exit_codes_is_that_of_the_code():
    shown = {
        int(code): set(re.findall(r"`(\w+)`", errors))
        for code, errors in re.findall(r"^\| (\d+) \|.*\|(.*)\|$", PAGE, re.M)
    }
    found: dict[int, set[str]] = {0: set()}
    sources = [
        file
        for room in ("rollenv", "agents", "trainers", "sandbox", "envs", "plugins")
        for file in (ROOT / room).rglob("*.py")
    ]
    for file in {file.resolve() for file in sources}:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "exit_code":
                        found.setdefault(ast.literal_eval(each.value), set()).add(node.name)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit") and node.args:
                code = getattr(node.args[0], "value", None)
                found |= {} if not isinstance(code, int) or code in found else {code: set()}
    from rollenv.core.interrupt import EXIT_CODE

    assert shown == found | {EXIT_CODE: set()}


def test_every_command_with_a_result_prints_it_as_json_and_the_page_names_it():
    table = PAGE.partition("## Results as JSON")[2]
    for name, command in commands():
        takes = any("--json" in parameter.opts for parameter in command.params)
        assert takes == (name not in ENDLESS), name
        assert f"`{name}`" in table, name


@pytest.mark.parametrize(
    ("words", "code", "keys"),
    [
        (["new", "my-game"], 0, {"folder", "package", "id"}),
        (["skills", "--to", "skills"], 0, {"skills", "written"}),
        (["check", "game:GuessTheNumber-v0", "-n", "1"], 0, {"environments"}),
        (["train", "sokoban", "--dry-run"], 0, {"settings"}),
        (["train", "sokoban", "--write-recipe", "mine.toml"], 0, {"recipe"}),
    ],
)
@pytest.mark.slow
def test_the_result_is_one_json_object(words, code, keys, rollenv_command):
    done = rollenv_command(*words, "--json")
    assert (done.returncode, json.loads(done.stdout).keys()) == (code, keys), done.stderr


def test_tables_step_aside_for_json_and_q_silences_them(rollenv_command):
    words = ["eval", "game:GuessTheNumber-v0-easy", "-a", "oracle", "-n", "2", "--json"]
    told, silent = rollenv_command(*words), rollenv_command(*words, "-q")
    assert "played by oracle" in told.stderr
    assert not silent.stderr
    assert json.loads(told.stdout)["success"] == json.loads(silent.stdout)["success"] == 1.0
    assert "played by oracle" in rollenv_command(*words[:-1], "-q").stdout  # the console is as before


LOUD = """
import os

import rollenv


class Loud(rollenv.Env):
    def _reset(self, options):
        os.write(1, b"as a C library prints")
        return "Say yes.", {}

    def _step(self, action):
        return "", float(action == "yes"), True, False, {"success": action == "yes"}
"""


@pytest.mark.slow
def test_what_c_code_prints_is_not_in_the_result(rollenv_process, tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    done = rollenv_process("eval", "loud.py:Loud", "-a", "constant:yes", "-n", "2", "--json")
    assert json.loads(done.stdout)["success"] == 1.0
    assert "as a C library prints" in done.stderr


def test_every_algorithm_is_listed_as_json(rollenv_command):
    pytest.importorskip("torch")
    found = json.loads(rollenv_command("train", "--list-algorithms", "--json").stdout)["algorithms"]
    assert {"grpo", "gigpo"} <= {each["name"] for each in found}


def test_an_error_leaves_standard_output_empty(rollenv_command):
    done = rollenv_command("check", "game:Nothing-v0", "--json")
    assert (done.returncode, done.stdout) == (2, "")


def lines_of(file: Path) -> list[str]:
    """The commands of a text: lines of blocks, and what tables put into backticks."""
    text = file.read_text("utf-8").replace("{package}:{title}", "my_game:MyGame").replace("{package}", "my_game")
    found = re.findall(r"^ *((?:\.venv/bin/)?rollenv .*)$|`((?:\.venv/bin/)?rollenv [^`\n]*)`", text, re.M)
    return [line.removeprefix(".venv/bin/") for pair in found for line in pair if line]


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_commands_that_guides_for_agents_name_exist_with_their_options(file):
    found = lines_of(file)
    assert found
    root, known = typer.main.get_command(app), dict(commands())
    for line in found:
        _, *words = shlex.split(line)
        assert words[0] in known, line
        if len(words) > 1:  # a name alone is prose
            known[words[0]].make_context(words[0], words[1:], parent=root.context_class(root))


@pytest.mark.parametrize("file", SKILLS, ids=lambda file: file.parent.name)
def test_a_skill_has_the_common_form_and_fits_a_screen(file):
    _, front, body = file.read_text("utf-8").split("---\n", 2)
    keys = dict(line.split(": ", 1) for line in front.splitlines())
    assert keys.keys() == {"name", "description"}
    assert keys["name"] == file.parent.name
    assert 20 < len(keys["description"]) < 1024
    assert len(body.splitlines()) < 60


def test_skills_are_written_again_but_never_over_another_text(rollenv_command, tmp_path):
    for _ in range(2):
        done = rollenv_command("skills", "--to", "skills", "--json")
        assert [Path(file).parent.name for file in json.loads(done.stdout)["written"]] == [
            f.parent.name for f in SKILLS
        ]
    mine = tmp_path / "skills/start-run/SKILL.md"
    mine.write_text("mine")
    done = rollenv_command("skills", "--to", "skills")
    assert done.returncode == 2
    assert mine.read_text() == "mine"


def test_rules_are_those_of_the_checker_and_of_the_guide():
    from rollenv.core.checker import CHECKS
    from rollenv.plugins.publishing.accept import RULES

    page = (ROOT / "docs/guides/accept.md").read_text("utf-8")
    assert CHECKS.keys() <= RULES.keys()
    for name, rule in RULES.items():
        assert rule.keys() == {"promise", "do"}
        assert f"| `{name}` | {rule['promise']} |" in page
    table = page.partition("## The rules")[2].partition("##")[0]
    assert table.count("\n| `") == len(RULES)


def test_results_with_numbers_of_numpy_stay_numbers(capsys):
    set_output(0, quiet=False, json=True)
    try:
        print_result({"rate": np.float32(0.5), "rows": np.array([1.0, np.nan])})
    finally:
        set_output(0, quiet=False)
    assert json.loads(capsys.readouterr().out) == {"rate": 0.5, "rows": [1.0, None]}
