"""``rollenv new``"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import typer

from rollenv.cli.common import console
from rollenv.core.errors import UsageError

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "An environment for language-model agents."
requires-python = ">=3.11"
dependencies = ["rollenv"]

[project.entry-points."rollenv.envs"]
{package} = "{package}:register_envs"

[tool.setuptools.packages.find]
where = ["src"]
"""

INIT = '''\
"""{title}: environments for rollenv."""

import rollenv


def register_envs() -> None:
    """Called by rollenv when an id is looked up."""
    rollenv.register("{package}:{title}-v0", "{package}.env:{title}", abilities=rollenv.ABILITIES)
'''

ENV = '''\
"""The environment {title}."""

import rollenv
from rollenv.core.parsing import last_boxed


class {title}(rollenv.Env):
    """Find a number below ``top``; the answer says whether it is higher or lower."""

    def __init__(self, top: int = 10, max_turns: int = 4):
        self.top, self.max_turns = top, max_turns
        self._begin(secret=0)

    def _begin(self, secret):
        self.secret, self.turn, self.low, self.high = secret, 0, 0, self.top - 1

    def _reset(self, options):
        self._begin(self.randint(self.top))
        return f"Guess a number from 0 to {{self.high}}, as in \\\\boxed{{{{3}}}}.", {{}}

    def _step(self, action):
        self.turn += 1
        text = last_boxed(action) or ""
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            return "Write a number in a box.", -0.1, True, False, {{"valid": False, "success": False}}
        guess, over = int(text), self.turn == self.max_turns
        if guess == self.secret:
            return "Right.", 1.0, True, False, {{"valid": True, "success": True}}
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        hint = f"The number is from {{self.low}} to {{self.high}}."
        return hint, 0.0, False, over, {{"valid": True, "success": False}}

    def render(self):
        return f"{{self.low}} <= ? <= {{self.high}}"

    def sample_random_action(self):
        return "\\\\boxed{{%d}}" % self.action_rng.randrange(self.top)

    def oracle_action(self):
        return "\\\\boxed{{%d}}" % ((self.low + self.high) // 2)

    def state_key(self):
        return f"{{self.low}} <= {{self.secret}} <= {{self.high}}"

    def _get_state(self):
        return {{"secret": self.secret, "turn": self.turn, "low": self.low, "high": self.high}}

    def _set_state(self, state):
        self.secret, self.turn, self.low, self.high = (state[k] for k in ("secret", "turn", "low", "high"))
'''

TEST = """\
import rollenv


def test_it_keeps_its_promises():
    rollenv.check_env("{package}:{title}-v0")


def test_a_right_guess_ends_the_episode_with_a_reward_of_one():
    env = rollenv.make("{package}:{title}-v0", seed=1)
    env.reset()
    _, reward, terminated, _, info = env.step("\\\\boxed{{%d}}" % env.secret)
    assert (reward, terminated, info["success"]) == (1.0, True, True)
"""

RECIPE = """\
# rollenv train train.toml: a tiny model imitates a clumsy expert, then learns by GRPO. Two minutes on one core.
# Made by `rollenv train {package}:{title}-v0 --write-recipe train.toml`, also after changes of the environment.
iterations = 40
env.id = "{package}:{title}-v0"

[model.size]
hidden = 64
layers = 2
heads = 2
intermediate = 160
context = 64
vocabulary = 600

[model.warm_up]
noise = 0.85                 # the share of random actions in what is imitated
episodes = 3000
steps = 900
batch_size = 64
lr = 0.003

[prompt]
template = "{{state}}"         # info["suffix"], or else the observation
chat = false

[rollout]
max_new_tokens = 8

[loss]
entropy = 0.01
final_entropy = 0.1

[optimizer]
lr = 0.001
final_lr = 0.2
minibatch_sequences = 64
epochs = 2

[eval]
episodes = 200
every = 10
"""

README = """\
# {title}

    pip install -e .
    rollenv check {package}:{title}-v0
    rollenv play {package}:{title}-v0
    rollenv train train.toml
    pytest
"""


def command(
    name: str = typer.Argument(help="Name of the package, such as my-game."),
    folder: Path = typer.Option(Path("."), "--in", help="Folder in which to write the package."),
) -> None:
    """Write an installable package with one environment, its tests, a recipe to train on it and its entry point."""
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package) or keyword.iskeyword(package) or package == "rollenv":
        raise UsageError(f"{name!r} cannot name a package: use lower-case letters, digits and dashes, as in my-game")
    root = folder / name
    if root.exists():
        raise UsageError(f"{root} exists; choose another name, or another folder with --in")
    title = "".join(part.capitalize() for part in package.split("_"))
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        "train.toml": RECIPE,
        f"src/{package}/__init__.py": INIT,
        f"src/{package}/env.py": ENV,
        "tests/test_env.py": TEST,
    }
    for path, text in files.items():
        target = root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text.format(name=name, package=package, title=title), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    done = f"wrote {root}; next: cd {root} && pip install -e . && rollenv check {package}:{title}-v0"
    console.print(done, markup=False)
