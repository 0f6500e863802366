"""Pages whose snippets belong together are followed from top to bottom, in one folder, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "guides"
PAGES = [GUIDES / f"{name}.md" for name in ("own_data", "own_reward", "own_algorithm", "own_loop", "extend")]

#: Training is cut to one short iteration, and a model of the tests takes the place of the one that is downloaded.
SHORT = """
rollenv() {
  if [ "$1" = train ] && [[ "$*" != *--dry-run* ]]; then
    case "$*" in *model=*) warm=();; *) warm=(model.warm_up.steps=20 model.warm_up.episodes=50);; esac
    set -- "${@//smollm2-135m/$MODEL}" iterations=1 eval.every=1 rollout.groups_per_batch=2 rollout.group_size=2
    command rollenv "$@" rollout.max_new_tokens=4 eval.episodes=4 "${warm[@]}"
  else
    command rollenv "${@//smollm2-135m/$MODEL}"
  fi
}
python() { sed -i 's/, 40)/, 1)/; s/range(200)/range(8)/; s/range(8)]/range(2)]/' "$1"; command python "$@"; }
pip() { :; }
"""
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def steps(page: Path) -> list[tuple[str, str]]:
    """Kind and text of each snippet that is not only to be read."""
    found = re.findall(r"^```(python|bash|toml)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return found


def follow(page: Path, folder: Path, prelude: str = "", **variables: str) -> None:
    """Write the files of a page and run the rest, in order."""
    there = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    for kind, code in steps(page):
        named = re.match(r"# (\S+\.(?:py|toml))\n", code)
        if named:
            (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / named[1]).write_text(code)
            continue
        assert kind != "toml", "a recipe begins with its name"
        command = ["bash", "-euc", prelude + code] if kind == "bash" else [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=900, env={**os.environ, **there}
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["What is 2 + 3? Answer with the number alone. 5"] * 9, 300)
    tokenizer.chat_template = CHAT
    LocalAgent(build_model(TinySize(hidden=16, layers=1, heads=2, intermediate=16), tokenizer, 0), tokenizer).save(path)
    return path


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_can_be_followed(page, model, tmp_path):
    follow(page, tmp_path, SHORT, MODEL=str(model))


def test_the_pages_name_every_door():
    text = (GUIDES / "extend.md").read_text().lower()
    for door in (
        "environment", "wrapper", "tool", "reward", "judge", "advantage", "loss", "task source", "agent", "harness",
        "tracker", "protocol", "command",
    ):  # fmt: skip
        assert f"## {door}" in text, door
