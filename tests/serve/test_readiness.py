"""Whether a server says how it is: ready, and in numbers."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import patient, tokens_in

import rollenv


def numbers(server, **headers):
    answer = patient.get(f"{server.http}/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.raise_for_status().text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.mark.smoke
def test_ready_means_that_every_family_plays_and_a_sandbox_runs(serve):
    server = serve()  # of its own: sessions of others come and go, and checks hold for half a minute
    before = numbers(server)
    answer = patient.get(f"{server.http}/readyz", timeout=120)
    assert (answer.status_code, answer.text) == (200, "ready\n")
    after = numbers(server)
    families = {s.namespace for s in rollenv.list_envs() if not s.missing} | {"test"}
    played = {dict(key[1:])["env"].partition(":")[0] for key in after if key[0] == "rollenv_env_events_total"}
    assert played >= families
    assert after[("rollenv_sandbox_runs_total",)] > before[("rollenv_sandbox_runs_total",)]
    assert after[("rollenv_sessions_open",)] == before[("rollenv_sessions_open",)]


def test_numbers_count_what_happens(serve):
    server = serve()
    before = numbers(server)
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(0)
    for _ in range(5):
        env.step("x")
    during = numbers(server)
    env.close()
    after = numbers(server)
    steps = ("rollenv_env_call_seconds_count", ("method", "step"))
    assert during[steps] - before.get(steps, 0) == 5
    opened = ("rollenv_session_opened_total",)
    assert during[opened] - before[opened] == 1
    open_now = ("rollenv_sessions_open",)
    assert (during[open_now], after[open_now]) == (before[open_now] + 1, before[open_now])
    assert sum(value for key, value in during.items() if key[0] == "rollenv_worker_up") == 2


@pytest.mark.integration
def test_a_family_that_does_not_work_is_named(serve):
    server = serve(env={"BROKEN": "1"})
    answer = patient.get(f"{server.http}/readyz", timeout=120)
    assert answer.status_code == 503
    assert answer.text.startswith("broken: ")
    assert len(answer.text.splitlines()) == 1
    assert "Missing" in answer.text
    assert patient.get(f"{server.http}/livez").status_code == 200


@pytest.mark.integration
def test_strangers_learn_no_numbers_and_no_reasons(serve, tmp_path):
    file, tokens = tokens_in(tmp_path, boss="admin", player="environments")
    server = serve("--tokens", file, "--sandboxes", "0", env={"BROKEN": "1"})
    for headers in ({}, {"Authorization": f"Bearer {tokens['player']}"}):
        assert patient.get(f"{server.http}/metrics", headers=headers).status_code == 401
        assert patient.get(f"{server.http}/readyz", headers=headers, timeout=120).text == "broken: failed\n"
    known = {"Authorization": f"Bearer {tokens['boss']}"}
    assert numbers(server, **known)[("rollenv_sandboxes_max",)] == 0
    assert "Missing" in patient.get(f"{server.http}/readyz", headers=known).text
