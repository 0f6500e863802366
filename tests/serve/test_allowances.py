"""What a token may take: for how long, how often, how much."""

from __future__ import annotations

import datetime
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import patient

from rollenv.agents.base import RandomAgent
from rollenv.core.errors import UsageError
from rollenv.remote.address import parse
from rollenv.remote.env import RemoteEnv, Servers
from rollenv.remote.protocol import NotAllowed, ServerFull, TooFast
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.remote import RemoteWorkers
from rollenv.serve.auth import SCOPES, TokenTable, new_token
from rollenv.serve.quotas import Quota, RateLimiter


def tokens(tmp_path, **clients):
    """A file, and the tokens of clients by name; the values are more lines of their tables."""
    found, text = {}, ""
    for name, lines in clients.items():
        found[name], table = new_token(name, list(SCOPES))
        text += table + lines + "\n"
    (tmp_path / "tokens.toml").write_text(text)
    return str(tmp_path / "tokens.toml"), found


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def make(monkeypatch, server, env_id, token):
    monkeypatch.setenv("ROLLENV_TOKEN", token)
    return RemoteEnv.open(parse(f"{server.address}/{env_id}")[0], env_id, {})


def test_a_token_expires(tmp_path):
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    lines = {"day": "2001-01-01", "zone": "2001-01-01T00:00:00+02:00", "plain": "2001-01-01T00:00:00"}
    _, found = tokens(
        tmp_path, **{name: f"expires = {when}" for name, when in lines.items()}, good=f"expires = {soon.isoformat()}"
    )
    known = TokenTable.read(tmp_path / "tokens.toml")
    assert known.client(f"Bearer {found['good']}").name == "good"
    for name in lines:
        with pytest.raises(NotAllowed, match="expired"):
            known.client(f"Bearer {found[name]}")
        assert not known.holds(name), "nor does what it opened"
    assert known.holds("good")


@pytest.mark.parametrize(
    "line",
    ["expires = 5", 'expires = "soon"', "sessions = -1", "sessions = 1.5", "rate = nan", "rate = inf", 'compute = "1"',
     "compute = true", "other = 1"],
)  # fmt: skip
def test_wrong_limits_are_refused(tmp_path, line):
    tokens(tmp_path, ann=line)
    with pytest.raises(UsageError, match="ann"):
        TokenTable.read(tmp_path / "tokens.toml")


def test_each_token_has_its_own_limits(serve, tmp_path):
    file, found = tokens(tmp_path, few="sessions = 1", usual="", more="sessions = 3")
    server = serve("--tokens", file, "--per-client", "2", "--allow-host", "hub.example", workers=1)
    assert patient.get(server.http + "/livez", headers={"Host": "hub.example"}).status_code == 200
    for name, most in {"few": 1, "usual": 2, "more": 3}.items():
        url, body, headers = f"{server.http}/apis/v1/envs/gem/make", {"env_id": "test:Echo-v0"}, bearer(found[name])
        made = [patient.post(url, json=body, headers=headers) for _ in range(most + 1)]
        assert [answer.status_code for answer in made] == [200] * most + [503]
        assert int(made[-1].headers["Retry-After"]) >= 1


@pytest.mark.parametrize(("name", "action"), [("ann", "spin 2"), ("ann", "hang 3"), ("ben", "spin 2")])
@pytest.mark.integration
def test_computing_is_counted(serve, tmp_path, monkeypatch, name, action):
    """Processor time is; to sleep costs nothing."""
    file, found = tokens(tmp_path, ann="compute = 0.2", ben="")
    server = serve("--tokens", file)
    env = make(monkeypatch, server, "test:Moody-v0", found[name])
    env.reset(seed=1)
    env.step(action)
    Servers.of(parse(f"{server.address}/test:Moody-v0")[0]).connections[0].patience = 0.5
    if (name, action) != ("ann", "spin 2"):
        env.step("on")
        return
    with pytest.raises(ServerFull, match="computing") as refused:
        env.step("on")
    assert 10 < refused.value.details["retry_after"] < 900


@pytest.mark.integration
def test_programs_are_counted(serve, tmp_path):
    file, found = tokens(tmp_path, ann="compute = 0.5", ben="")
    server = serve("--tokens", file)
    body = {"language": "python", "code": "import time; time.sleep(1)"}
    for name, status in {"ann": 429, "ben": 200}.items():
        first = patient.post(f"{server.http}/run_code", json=body, headers=bearer(found[name]), timeout=60)
        assert first.json()["status"] == "Success", first.text
        again = patient.post(f"{server.http}/run_code", json=body, headers=bearer(found[name]), timeout=60)
        assert again.status_code == status


def test_a_meter_forgives_with_time(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("rollenv.serve.quotas.time.monotonic", lambda: now[0])
    limiter = RateLimiter(Quota(compute=30.0), {"ann": Quota(compute=6.0), "ben": Quota(rate=1.0)})
    for owner, limit in {"ann": 6.0, "other": 30.0, "ben": 30.0}.items():
        assert limiter.is_limited(owner)
        limiter.take(owner)
        limiter.spend(owner, limit)
        now[0] += 5
        limiter.take(owner)  # what it may in a minute
        limiter.spend(owner, limit)
        with pytest.raises(TooFast) as refused:
            limiter.take(owner)
        now[0] += refused.value.details["retry_after"] + 1.1
        limiter.take(owner)
    assert not RateLimiter(Quota()).is_limited("ann")


def test_an_evaluation_keeps_to_what_a_server_allows_it(serve):
    """Refused episodes wait: without that, there are thousands of refusals in a second."""
    server = serve("--per-client", "4", workers=1)
    workers, began = RemoteWorkers(server.address), time.monotonic()
    with RolloutManager(RandomAgent(), workers) as manager:
        done = manager.collect([Task("game:GuessTheNumber-v0-easy", seed) for seed in range(60)])
        manager.run(workers.aclose())
    seconds = time.monotonic() - began
    assert [trajectory.complete for group in done for trajectory in group] == [True] * 60
    refused = [line for line in patient.get(f"{server.http}/metrics").text.splitlines() if "refused" in line]
    counts = [float(line.split()[-1]) for line in refused if not line.startswith("#")]
    assert max(counts) <= 600 + 60 * seconds


def test_evaluations_that_share_an_allowance_all_end(serve):
    server = serve("--per-client", "2", workers=1)

    def evaluate(first):
        workers = RemoteWorkers(server.address)
        with RolloutManager(RandomAgent(), workers) as manager:
            done = manager.collect([Task("game:GuessTheNumber-v0-easy", first + seed) for seed in range(30)])
            manager.run(workers.aclose())
        [slot] = workers.slots
        return [trajectory.complete for group in done for trajectory in group], slot.opened, slot.load

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(evaluate, (0, 100, 200))) == [([True] * 30, 0, 0)] * 3
