"""The episode that bridges play: whatever an environment returns, a bridge gets text and numbers or one clear line."""

import math
import sys

import numpy as np
import pytest

import rollenv
from rollenv.core.errors import UsageError
from rollenv.plugins.adapters import OVER, EpisodeFailed, TextEpisode, fields_of, text_of, whole_of

WRONG = {
    "nothing": None,
    "four": ("x", 1.0, True, {}),
    "no text": (None, 1.0, False, False, {}),
    "half a character": ("\ud800", 1.0, False, False, {}),
    "no reward": ("x", None, False, False, {}),
    "a word": ("x", "1.0", False, False, {}),
    "not a number": ("x", math.nan, False, False, {}),
    "no end": ("x", math.inf, False, False, {}),
    "too large": ("x", 10**400, False, False, {}),
    "perhaps": ("x", 1.0, "no", False, {}),
    "many": ("x", 1.0, np.array([True, False]), False, {}),
    "no info": ("x", 1.0, False, False, None),
    "a list": ("x", 1.0, False, False, [1]),
}


class Wrong(rollenv.Env):
    def __init__(self, what, where):
        self.what, self.where = what, where

    def _reset(self, options):
        return WRONG[self.what] if self.where == "reset" else ("go", {})

    def _step(self, action):
        if self.what == "an echo":
            return action, 1.0, False, False, {}
        if action == "raise":
            raise RuntimeError("two\nlines")
        return sys.exit(3) if action == "exit" else WRONG[self.what]


@pytest.fixture(autouse=True, scope="module")
def _registered():
    rollenv.register("test:Wrong-v0", Wrong)
    yield
    del rollenv.core.registry.ENV_REGISTRY["test:Wrong-v0"]


@pytest.mark.parametrize("what", WRONG)
def test_wrong_results_of_a_step_are_one_line_and_the_end(what):
    with TextEpisode("test:Wrong-v0", what=what, where="step") as episode:
        assert episode.start(3) == "go"
        with pytest.raises(EpisodeFailed, match=r"test:Wrong-v0 \(seed 3\).* turn 1") as told:
            episode.step("x")
        assert "\n" not in str(told.value)
        assert (episode.over, episode.total, episode.turns) == (True, 0.0, 0)
        assert episode.step("x") == (OVER, 0.0)
        assert episode.start(4) == "go"


@pytest.mark.parametrize("what", ["nothing", "four", "no info"])
def test_wrong_results_of_a_reset_are_one_line(what):
    episode = TextEpisode("test:Wrong-v0", what=what, where="reset")
    with pytest.raises(EpisodeFailed, match="seed 3") as told:
        episode.start(3)
    assert "\n" not in str(told.value)
    assert episode.over
    episode.close()
    episode.close()


@pytest.mark.parametrize(("action", "said"), [("exit", "SystemExit: 3"), ("raise", "RuntimeError: two lines")])
def test_an_environment_that_exits_or_raises_ends_its_episode_alone(action, said):
    with TextEpisode("test:Wrong-v0", what="four", where="step") as episode:
        episode.start(3)
        with pytest.raises(EpisodeFailed, match=f"turn 1: {said}"):
            episode.step(action)
        assert episode.step("x") == (OVER, 0.0)


@pytest.mark.parametrize("failure", [OSError("the disk\nis full"), SystemExit(3)])
def test_what_closing_raises_is_logged_in_one_line(failure, monkeypatch, caplog):
    def close(self):
        raise failure

    monkeypatch.setattr(Wrong, "close", close)
    with TextEpisode("test:Wrong-v0", what="four", where="step") as episode:
        episode.start(3)
    episode.close()
    assert [each.message.count("\n") for each in caplog.records] == [0, 0]
    assert f"test:Wrong-v0 could not be closed: {type(failure).__name__}: " in caplog.text


def test_half_a_character_of_a_model_is_not_the_environments_failure():
    with TextEpisode("test:Wrong-v0", what="an echo", where="step") as episode:
        episode.start(3)
        assert episode.step("up\ud800") == ("up\ufffd", 1.0)


def test_numbers_of_numpy_are_plain():
    WRONG["numpy"] = ("x", np.float32(0.5), np.bool_(False), np.bool_(True), {"success": np.bool_(True)})
    with TextEpisode("test:Wrong-v0", what="numpy", where="step") as episode:
        episode.start(np.int64(3))
        assert episode.step("x") == ("x", 0.5)
        assert (episode.over, episode.truncated, episode.info["success"]) == (True, True, True)
        assert type(episode.total) is float


@pytest.mark.parametrize("missing", [{}, {"x": None}, {"x": math.nan}, {"x": np.float32("nan")}])
def test_what_a_tables_row_lacks_is_missing(missing):
    assert (text_of(missing, "x"), whole_of(missing, "x"), fields_of(missing, "x")) == (None, None, {})


def test_structs_and_numbers_of_a_tables_row():
    assert fields_of({"x": {"index": 3, "of another row": None}}, "x") == {"index": 3}
    assert [whole_of({"x": value}, "x") for value in (3, 3.0, np.int64(3), "3")] == [3] * 4
    for read, value in ((whole_of, 3.5), (whole_of, "3 "), (whole_of, True), (fields_of, '{"a": 1}'), (fields_of, 3.0)):
        with pytest.raises(UsageError, match="x of a row") as told:
            read({"x": value}, "x")
        assert "\n" not in str(told.value)


def test_pictures_are_refused_unless_the_bridge_shows_them():
    with pytest.raises(UsageError, match="shows pictures, which this bridge does not carry"):
        TextEpisode("game:Sokoban-v0-tiny", images="only").start(3)
    with TextEpisode("game:Sokoban-v0-tiny", images="also") as episode:
        episode.sees = True
        first = episode.start(3)
        parts = episode.content("openai", first)
        assert first.count("<image>") == len(episode.images) == 1
        assert [part["type"] for part in parts] == ["text", "image_url", "text"]
        second, _ = episode.step("right")
        assert episode.content("openai", second) != parts
