"""``rollenv sft`` and ``rollenv reward-model`` from the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parents[1] / "trainers"))
import tiny_runs

from rollenv import UsageError
from rollenv.agents.base import OracleAgent
from rollenv.cli.common import advice_on_epochs
from rollenv.cli.main import app
from rollenv.cli.reward_model import settings_of
from rollenv.cli.sft import recipe_of
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.records.storage import write

CHAT = {"messages": [{"role": "user", "content": "2 + 3"}, {"role": "assistant", "content": "5"}]}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps(CHAT) + "\n")
    return "rows.jsonl"


@pytest.mark.parametrize(
    ("sources", "env", "settings", "recipe", "wanted"),
    [
        (["game:Sokoban-v0-tiny"], "", [], "game:Sokoban-v0-tiny", {"batches.data=oracle", "optimizer.lr=0.001"}),
        (["rows.jsonl"], "", [], "sft", {'batches.data=["rows.jsonl"]', "optimizer.lr=2e-05", "batches.epochs=3"}),
        (["rows.jsonl"], "", ["model.lora.rank=8"], "sft", {"optimizer.lr=0.0002"}),
        (["rows.jsonl"], "game:Sokoban-v0-tiny", ["model=x"], "game:Sokoban-v0-tiny", {"optimizer.lr=2e-05"}),
    ],
)
def test_a_run_is_chosen_by_what_is_imitated(rows, sources, env, settings, recipe, wanted):
    chosen, own = recipe_of(sources, env, settings)
    assert chosen == recipe
    assert wanted <= set(own)
    assert "batches.epochs=3" not in recipe_of(sources, env, [*settings, "iterations=5"])[1]


@pytest.mark.parametrize(
    ("sources", "env"), [(["absent.jsonl"], ""), (["rows.jsonl", "game:Sokoban-v0-tiny"], ""), (["a:b"], "c:d")]
)
def test_what_cannot_be_imitated_is_refused(rows, sources, env):
    with pytest.raises(UsageError):
        recipe_of(sources, env, [])


@pytest.mark.parametrize(
    "words",
    [
        ["sft"],
        ["sft", "absent.jsonl"],
        ["sft", "rows.jsonl", "batches.sizee=3"],
        ["sft", "rows.jsonl", "model=tiny"],
        ["sft", "rows.jsonl", "rollout.group_size=3"],
        ["reward-model", "absent.jsonl"],
        ["reward-model", "rows.jsonl", "sizee=3"],
        ["reward-model", "rows.jsonl", "lr=0"],
        ["reward-model", "lr=1"],
    ],
)
def test_wrong_usage_is_one_line(rows, words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (1, 2, 3)
    assert result.output.strip().startswith("error: ")
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("named", ["moved", "moved/episodes.jsonl"])
def test_episodes_without_their_pictures_name_the_missing_file(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    played = evaluate(OracleAgent(), "game:Sokoban-v0-tiny", {"images": "only"}, n=1).trajectories
    (tmp_path / "moved").mkdir()
    write(tmp_path / "episodes.jsonl", played)
    (tmp_path / "episodes.jsonl").rename(tmp_path / "moved" / "episodes.jsonl")
    result = CliRunner().invoke(app, ["sft", named, "--dry-run"])
    assert result.exit_code != 0
    assert f"{played[0].turns[0].images[0].sha256}.png cannot be read" in " ".join(result.output.split())


def test_a_dry_run_reads_the_rows_against_the_context(rows, tmp_path):
    model = tiny_runs.chat_model(tmp_path / "model")
    long = {"messages": [CHAT["messages"][0], {"role": "assistant", "content": "5 " * 300}]}
    (tmp_path / rows).write_text("".join(json.dumps(row) + "\n" for row in (CHAT, long, CHAT)))
    said = CliRunner().invoke(app, ["sft", rows, f"model={model}", "--dry-run"]).output
    assert "rows.jsonl, row 2 has" in " ".join(said.split())
    assert "the run would stop" in " ".join(said.split())
    assert re.search(r"^ *rows +2 *$", said, re.MULTILINE)


def test_a_reward_model_without_held_out_pairs_shows_what_it_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_runs.chat_model(tmp_path / "model")
    pairs = [{"prompt": f"what is {n}", "chosen": "up", "rejected": "down"} for n in range(4)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    said = CliRunner().invoke(app, ["reward-model", "pairs.jsonl", f"model={model}", "held_out=0"]).output
    assert {"loss of the last update,", "accuracy of the last"} <= {
        " ".join(line.split()[:n]) for line in said.splitlines() for n in (4, 5)
    }


def test_rows_are_read_before_a_model_is_converted(rows, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / rows).write_text(json.dumps({"text": "no answer"}) + "\n")
    result = CliRunner().invoke(app, ["sft", rows, "model=model.gguf"])
    assert result.exit_code == 2
    assert "rows.jsonl, row 1" in result.output


def test_a_reward_model_takes_a_number_of_updates_as_sft_does():
    assert "batches.epochs=0" in settings_of(["pairs.jsonl", "iterations=3"])
    assert "batches.epochs=0" not in settings_of(["pairs.jsonl", "epochs=3"])


@pytest.mark.parametrize(
    ("losses", "advice"),
    [
        ([5.0], ""),
        ([5.0, 4.99], "hardly fell"),
        ([5.0, 4.0, 3.9, 3.85], "still falls"),
        ([5.0, 3.0, 2.99, 2.99], ""),
        ([5.0, 2.0, 2.1, 2.2], "lowest at iteration 1 of 3"),
        ([5.0, 6.0], "only rose"),
    ],
)
def test_the_held_out_loss_says_what_to_change(losses, advice):
    rows = [{"iteration": number, "eval/loss": loss} for number, loss in enumerate(losses)]
    said = advice_on_epochs(rows, "batches.epochs")
    assert advice in said if advice else not said


def test_a_folder_of_held_out_rows_has_nothing_to_train_on(rows, tmp_path):
    (tmp_path / "only").mkdir()
    (tmp_path / rows).rename(tmp_path / "only" / "test.jsonl")
    result = CliRunner().invoke(app, ["sft", "only", "--dry-run"])
    assert result.exit_code == 2
    assert "test or validation" in result.output
