"""What a server writes down, and how often a client may ask."""

from __future__ import annotations

import json
import time

import pytest
from serving import patient, tokens_in
from waiting import eventually

import rollenv


@pytest.fixture
def told(serve, tmp_path):
    """A server whose log can be read: (server, its player's token, function that returns its entries)."""
    file, tokens = tokens_in(tmp_path, player="environments")
    with (tmp_path / "log").open("w+") as log:
        server = serve("--log", "json", "--tokens", file, stderr=log, workers=1)

        def written(event):
            log.seek(0)
            return [e for e in map(json.loads, log.read().splitlines()) if event in (e.get("event"), e.get("path"))]

        yield server, tokens["player"], lambda event: eventually(lambda: written(event))


@pytest.mark.slow
def test_who_did_what_is_written_down_and_no_token(told, monkeypatch):
    server, token, entries = told
    monkeypatch.setenv("ROLLENV_TOKEN", token)
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(0)
    env.step("x")
    env.close()
    assert [e["client"] for e in entries("open")] == ["player"]
    assert entries("close")[0]["calls"] == 2
    known = {"Authorization": f"Bearer {token}", "X-Request-ID": "mine-1"}
    answer = patient.post(f"{server.http}/apis/v1/envs/gem/list", headers=known)
    assert answer.headers["x-request-id"] == "mine-1"
    (line,) = entries("/apis/v1/envs/gem/list")
    assert (line["request"], line["status"], line["client"], line["method"]) == ("mine-1", 200, "player", "POST")
    bad = {"Authorization": "Bearer guess\u00e9".encode("latin-1"), "X-Request-ID": 'x" injected'}
    answer = patient.get(f"{server.http}/metrics", headers=bad)
    assert (answer.status_code, len(answer.headers["x-request-id"])) == (401, 16)
    (refused,) = entries("refused")
    text = json.dumps([*entries("open"), refused, *entries("/metrics")])
    assert token not in text
    assert "guess" not in text


@pytest.mark.integration
def test_who_asks_too_often_waits(serve):
    server = serve("--rate", "20")
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(0)
    began = time.monotonic()
    for _ in range(80):
        env.step("x")  # it waits as long as it is told to
    assert time.monotonic() - began > (80 - 40) / 20 - 0.5
    answers = [patient.post(f"{server.http}/apis/v1/envs/gem/list") for _ in range(60)]
    refused = [a for a in answers if a.status_code == 429]
    assert refused
    assert all(int(a.headers["retry-after"]) >= 1 for a in refused)
    env.close()


@pytest.mark.slow
def test_a_log_of_another_form_is_refused():
    from typer.testing import CliRunner

    from rollenv.cli.main import app

    done = CliRunner().invoke(app, ["serve", "--log", "xml"])
    assert done.exit_code
    assert "off, text, json" in str(done.output) + str(done.exception)
