"""The hub is asked once and answers in time, or not at all. A server on loopback stands for it."""

from __future__ import annotations

import logging
import socket

import pytest
from listening import Answers, listening

from rollenv.agents import model_files
from rollenv.core.errors import HubUnreachable, MissingData, MissingExtra, NotOnHub, UsageError
from rollenv.core.hub import ask

constants = pytest.importorskip("huggingface_hub.constants")


class Hub(Answers):
    """Has models with "there" in their names, and no others."""

    asked = 0

    def do_GET(self):
        type(self).asked += 1
        found = "there" in self.path
        self.send_response(200 if found else 404)
        if not found:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(b'{"id": "a/there", "siblings": []}' if found else b"{}")


@pytest.fixture
def point(monkeypatch, tmp_path):
    """Let the client ask at an address, with an empty cache."""

    def to(port: int) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    return to


@pytest.fixture
def server(point):
    with listening(Hub) as address:
        Hub.asked = 0
        point(int(address.rpartition(":")[2]))
        yield


def test_what_the_hub_has_may_be_loaded(server):
    assert model_files.loading("a/there") == model_files.NO_CODE
    assert Hub.asked


def test_what_it_has_not_is_no_model(server):
    with pytest.raises(NotOnHub, match="a/none"):
        model_files.loading("a/none")
    with pytest.raises(NotOnHub, match="a/none"):
        ask("a/none", "dataset")


def test_a_hub_that_accepts_and_says_nothing_is_not_waited_for(point):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        point(silent.getsockname()[1])
        with pytest.raises(HubUnreachable):
            ask("a/there", timeout=0.3)


def test_a_hub_that_is_down_is_no_missing_extra(point):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        point(taken.getsockname()[1])
        with pytest.raises(HubUnreachable) as raised:
            model_files.loading("a/there")
    assert not isinstance(raised.value, MissingExtra)


def test_a_model_in_the_cache_needs_no_hub(point, tmp_path):
    point(9)
    snapshot = tmp_path / "models--a--kept" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--a--kept" / "refs").mkdir()
    (tmp_path / "models--a--kept" / "refs" / "main").write_text("0123")
    assert model_files.loading("a/kept") == {"local_files_only": True, **model_files.NO_CODE}


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("path", ["missing", "a/b/c", "/nowhere/x", "./a", "~/a", "a/"])
def test_what_is_no_name_is_not_asked_for(server, path):
    with pytest.raises(UsageError, match="folder"):
        model_files.loading(path)
    assert Hub.asked == 0


def test_only_reports_of_weights_that_are_missing_are_shown_and_without_colours():
    pytest.importorskip("transformers")
    logger, shown = logging.getLogger("transformers.modeling_utils"), []
    listener = logging.Handler()
    listener.emit = lambda record: shown.append(record.getMessage())
    rows = ("visual.w ", "UNEXPECTED"), ("score.weight ", "MISSING"), ("layer.w ", "\x1b[31mMISSING\x1b[0m")
    report = "\x1b[1mModel LOAD REPORT\x1b[0m from: x\nKey | Status\n{} | {} |\n\nNotes:\n- MISSING:\tinitialised"
    logger.addHandler(listener)
    try:
        with model_files.reading("x"):
            for row in rows:
                logger.warning(report.format(*row))
    finally:
        logger.removeHandler(listener)
    assert [text.count("layer.w") for text in shown] == [1]
    assert "\x1b" not in shown[0]


def test_damaged_settings_are_named_although_transformers_would_do_without_them(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UsageError, match=r"generation_config\.json"), model_files.reading(str(tmp_path)):
        pass


def test_a_folder_is_not_asked_for(server, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    assert model_files.loading(str(tmp_path)) == model_files.NO_CODE
    assert Hub.asked == 0


def test_a_data_set_that_only_the_hub_has_is_missing_at_once_when_it_is_down(point, tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    from rollenv.envs.data.rows import load_rows

    point(9)
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))
    with pytest.raises(MissingData, match="hub"):
        load_rows("someone/unheard-of", "test")
