"""Arguments and settings from a command line: what fits the type is taken, the rest is refused."""

from __future__ import annotations

import functools

import pytest
import typer.testing
from pydantic import TypeAdapter

import rollenv
from rollenv.cli.main import app
from rollenv.core.arguments import _is_plain, _types, checked_arguments, value_of
from rollenv.core.env_spec import load_entry_point
from rollenv.core.needs import data_root
from rollenv.core.registry import list_envs
from rollenv.trainers.config import load_config
from rollenv.trainers.config.load import recipes

TEXTS = [
    "true",
    "False",
    "no",
    "none",
    "null",
    "12",
    "0.5",
    "1e5",
    "2024-01-01",
    "/tmp/x",
    "[1, 2]",
    '["a"]',
    "maybe",
    "",
]


REFUSED = object()


def refused(act, *names):
    """The result, or REFUSED with one of the names in the error's text."""
    try:
        return act()
    except rollenv.UsageError as error:
        if not any(name in str(error) for name in names):
            raise AssertionError(f"{error} names none of {names}") from error
        return REFUSED


def test_every_argument_of_every_environment_takes_its_type_or_names_it():
    tried = 0
    for spec in list_envs():
        try:
            factory = load_entry_point(spec.entry_point, spec.id)
        except rollenv.RollenvError:
            continue  # its packages are not here
        for name, hint in _types(factory).items():
            for text in TEXTS:
                given = value_of(text)
                checked = functools.partial(checked_arguments, spec.id, factory, {name: given})
                found = refused(checked, f"{name} takes")
                if found is REFUSED:
                    continue
                tried, value = tried + 1, found[name]
                if _is_plain(hint):
                    TypeAdapter(hint).validate_python(value)
                    assert not (isinstance(value, str) and hint in (bool, int, float))
    assert tried > 1000


@pytest.mark.parametrize(
    ("text", "value"), [("no", False), ("off", False), ("FALSE", False), ("None", None), ("yes", True), ("maybe", None)]
)
def test_words_for_true_and_false_mean_the_same_everywhere(text, value, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"problem": "2+2?", "answer": "4"}\n')
    settings = {"dataset_name": str(tmp_path / "rows.jsonl"), "split": ""}
    if value is None:
        with pytest.raises(rollenv.UsageError, match="instruct"):
            rollenv.make("math:GSM8K", instruct=text, **settings)
        return
    assert rollenv.make("math:GSM8K", instruct=text, **settings).spec.kwargs["instruct"] is value
    assert load_config("sokoban", [f"algorithm.normalize_std={text}"]).algorithm.normalize_std is value


@pytest.mark.parametrize("text", ["1e5", "2024-01-01", "true", "007", "12", "none", "[1]", "a=b"])
def test_a_text_setting_keeps_what_was_typed(text):
    assert load_config("sokoban", [f"run_dir={text}"]).run_dir == text


def _keys(section, prefix=""):
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield from _keys(value, f"{prefix}{name}.") if hasattr(value, "model_fields_set") else [f"{prefix}{name}"]


@pytest.mark.combinations
@pytest.mark.parametrize("recipe", recipes())
def test_every_key_of_every_recipe_takes_its_type_or_names_itself(recipe):
    config = load_config(recipe)
    for key in _keys(config):
        for text in TEXTS:
            load = functools.partial(load_config, recipe, [f"{key}={text}"])
            refused(load, key.rpartition(".")[2], key.partition(".")[0])


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config("sokoban", ["run_dir=~/run", "model.path='~/model'"])
    assert (config.run_dir, config.model.path) == (f"{tmp_path}/run", f"{tmp_path}/model")
    assert value_of("~/rows.jsonl") == f"{tmp_path}/rows.jsonl"
    monkeypatch.setenv("ROLLENV_DATA", "~/data")
    assert data_root() == f"{tmp_path}/data"
    result = typer.testing.CliRunner().invoke(app, ["eval", "game:Sokoban-v0-easy", "-n", "1", "-q", "--out=~/eval"])
    assert result.exit_code == 0
    assert (tmp_path / "eval" / "episodes.jsonl").exists()
