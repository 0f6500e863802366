"""What clients may do to a server, and servers to clients, on purpose or by accident."""

from __future__ import annotations

import asyncio
import copy
import datetime
import os
import pickle
import signal
import socket
import threading
import time
from collections import deque
from fractions import Fraction

import numpy as np
import pytest
from plain_clients import Raw, health, honest, liar
from serving import patient, tokens_in
from waiting import eventually

import rollenv
from rollenv.agents.base import RandomAgent
from rollenv.core.errors import UsageError
from rollenv.remote import protocol
from rollenv.remote.connection import Connection
from rollenv.remote.protocol import EnvBroke
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure
from rollenv.rollout.workers.remote import RemoteWorkers

pytestmark = pytest.mark.integration


def gem(server, what, **body):
    return patient.post(f"{server.http}/apis/v1/envs/gem/{what}", json=body, timeout=30)


def held(server):
    """How many environments the workers hold."""
    return sum(worker["envs"] for worker in health(server)["workers"])


# -- what a server does for clients ------------------------------------------------------------------------------------


@pytest.mark.combinations
@pytest.mark.parametrize("name", ["antigravity:x", "os:getcwd", "faulthandler:_sigsegv", "concat_chat", "unheard_of"])
def test_a_wrapper_imports_nothing_for_clients(server, name):
    with Raw(server) as raw:
        answer = raw.ask("open", protocol.session_name(), "test:Echo-v0", {"wrappers": {name: {}}})
    assert answer[2] == "usage"
    assert "puts no wrapper" in answer[3]


def test_wrong_arguments_cost_no_worker(serve):
    served = serve(workers=1)
    env = rollenv.make(f"{served.address}/test:Echo-v0")
    before = [worker["pid"] for worker in health(served)["workers"]]
    with pytest.raises(UsageError):
        rollenv.make(f"{served.address}/test:Echo-v0", more=1)
    env.reset(1)
    assert [worker["pid"] for worker in health(served)["workers"]] == before
    assert held(served) == 1


def test_a_session_that_is_closed_during_a_call_ends_with_its_environment(serve):
    served = serve(workers=1)
    name = gem(served, "make", env_id="test:Moody-v0").json()["sandbox_id"]
    gem(served, "reset", sandbox_id=name, seed=1)
    pids = [worker["pid"] for worker in health(served)["workers"]]
    answers = []
    step = threading.Thread(target=lambda: answers.append(gem(served, "step", sandbox_id=name, action="hang 0.6")))
    step.start()
    time.sleep(0.2)
    assert gem(served, "close", sandbox_id=name).status_code == 200
    step.join()
    assert eventually(lambda: held(served) == 0)
    told = health(served)
    assert told["counts"]["replays"] == 0, "the step was not made again"
    assert answers[0].status_code == 404
    assert [worker["pid"] for worker in told["workers"]] == pids, "nothing hung, so the worker stays"


def test_a_second_signal_ends_calls_with_their_sessions(serve, tmp_path):
    with open(tmp_path / "log", "w") as log:
        served = serve("--drain", "600", workers=1, stderr=log)
    name = gem(served, "make", env_id="test:Moody-v0").json()["sandbox_id"]
    gem(served, "reset", sandbox_id=name, seed=1)
    answers = []
    step = threading.Thread(target=lambda: answers.append(gem(served, "step", sandbox_id=name, action="hang 25")))
    step.start()
    assert eventually(lambda: '"busy"' in patient.post(f"{served.http}/page/api/sessions", json={}).text)
    served.signal(signal.SIGTERM)
    assert eventually(lambda: "draining" in (tmp_path / "log").read_text())
    served.signal(signal.SIGTERM)
    step.join()
    assert answers[0].status_code == 404
    assert served.process.wait(20) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_opening_at_once_and_vanishing_openers_make_no_environment_too_many(serve):
    served = serve(workers=1)
    with Raw(served) as raw:
        for closing in (False, True):
            name = protocol.session_name()
            more = [("close", name)] if closing else []
            numbers = raw.send(("open", name, "test:Echo-v0", {}), ("call", name, 1, "reset", [1]), *more)
            answer = raw.answer(numbers[1])
            if closing:
                assert answer[2] == "gone"
            else:
                assert answer[1][0].startswith("start")
                assert held(served) == 1
            raw.ask("close", name)
            assert eventually(lambda: held(served) == 0)
    with Raw(served) as one, Raw(served) as two:
        name = protocol.session_name()
        first, second = one.send(("open", name, "test:Echo-v0", {}), ("open", name, "test:Echo-v0", {}))
        answers = {}
        while len(answers) < 2:
            answers |= {each[0]: each[1] for each in protocol.unpack_all(one.socket.recv(20))}
        assert answers[first] == answers[second] == {"reset_options": []}
        assert two.ask("call", name, 1, "reset", [1])[1][0].startswith("start")
        assert held(served) == 1
    for _ in range(3):
        with Raw(served) as raw:
            raw.send(("open", protocol.session_name(), "test:Echo-v0", {}))
    assert eventually(lambda: held(served) == health(served)["sessions"]["open"])


def test_environments_that_hang_keep_nobody_else_waiting(serve):
    served = serve("--step-deadline", "600", workers=1)
    with Raw(served) as greedy:
        names = [protocol.session_name() for _ in range(70)]
        for name in names:
            assert len(greedy.ask("open", name, "test:Moody-v0", {})) == 2
            assert len(greedy.ask("call", name, 1, "reset", [1])) == 2
        greedy.send(*[("call", name, 2, "step", ["hang"]) for name in names])
        env = rollenv.make(f"{served.address}/test:Echo-v0")
        env.reset(1)
        env.step("x")
        with pytest.raises(TimeoutError):
            greedy.socket.recv(0)  # they hang still


def test_a_worker_of_its_own_is_not_waited_for_forever(serve):
    served = serve("--reset-deadline", "2", workers=1)
    envs = [rollenv.make(f"{served.address}/test:Moody-v0") for _ in range(2)]
    for env in envs:
        env.reset(1)
        with pytest.raises(EnvBroke):
            env.step("die")
    assert envs[0].step("x")[0] == "turn 1"  # it has the only place for one that killed its worker
    with pytest.raises(EnvBroke, match="room"):
        envs[1].step("x")
    envs[0].close()
    assert envs[1].step("x")[0] == "turn 1"


def test_a_body_is_read_for_clients_alone(serve, tmp_path):
    served = serve("--tokens", tokens_in(tmp_path, ann="environments")[0])
    for path in ("/apis/v1/envs/gem/step", "/apis/v1/envs/gem/close", "/openenv/test:Echo-v0/reset"):
        with socket.create_connection(("127.0.0.1", served.port)) as plain:
            plain.settimeout(5)
            plain.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n".encode())
            assert b" 401 " in plain.recv(1000)
    assert patient.get(f"{served.http}/openenv/test:Echo-v0/state").status_code == 401


def test_headers_and_bodies_that_make_no_sense(server):
    assert patient.get(f"{server.http}/livez", headers={"Host": "["}).status_code == 403
    assert patient.get(f"{server.http}/livez", headers={"Origin": "http://["}).status_code == 403
    assert patient.post(f"{server.http}/apis/v1/envs/gem/make", content=b"[" * 200_000).status_code == 400


def test_a_client_that_reads_no_answers_is_not_read_either(serve):
    served = serve(workers=1)

    def memory():
        with open(f"/proc/{served.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with Raw(served) as raw:
        name = protocol.session_name()
        raw.ask("open", name, "test:Moody-v0", {})
        raw.ask("call", name, 1, "reset", [1])
        raw.ask("call", name, 2, "step", ["huge 20000"])
        before = memory()
        for _ in range(15):  # each message asks for 20 MB, of which nothing is read
            raw.send(*[("call", name, 2, "step", [""])] * 1000)
        assert patient.get(f"{served.http}/livez", timeout=20).status_code == 200
        time.sleep(1)
        assert memory() - before < 150_000_000


# -- what a served environment is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_has_a_session_of_its_own(server, how):
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(1)
    env.step("both")
    twin = how(env)
    mine, yours, ours = env.step("mine")[0], twin.step("yours")[0], env.step("mine")[0]
    assert (mine.split()[::2], yours.split()[::2], ours.split()[::2]) == (["2", "mine"], ["2", "yours"], ["3", "mine"])
    twin.close()
    assert env.step("still here")[0].startswith("4 ")
    env.close()


def test_a_replay_that_differs_is_not_played_on(serve):
    served = serve("--idle", "1", workers=1)
    env = rollenv.make(f"{served.address}/test:Moody-v0")
    env.reset(1)
    env.step("random")
    assert eventually(lambda: health(served)["sessions"]["open"] == 0)
    for _ in range(2):
        with pytest.raises(rollenv.core.errors.RollenvError, match="another answer"):
            env.step("x")
    assert health(served)["sessions"]["open"] == 0


def test_closing_does_not_wait_for_a_server_that_is_gone(serve):
    served = serve(workers=1)
    env = rollenv.make(f"{served.address}/test:Echo-v0")
    served.stop()
    started = time.monotonic()
    env.close()
    assert time.monotonic() - started < 20


def test_values_that_are_no_json_travel():
    value = {(1, 2): {("a", (3, 4)): "x"}}
    assert protocol.unpack(protocol.pack(value)) == value
    for hostile in (b"\x81\x80\x01", b"\x81\x91\x80\x01"):  # a mapping as a key
        with pytest.raises(UsageError):
            protocol.unpack(hostile)
    day = datetime.datetime(2026, 1, 2)
    info = {"when": day, "seen": {3, "b"}, "last": deque([1, 2]), "share": Fraction(1, 3), "n": 2**100}
    told = protocol.unpack(protocol.pack(info | {"a": np.arange(3)}))
    assert told == {
        "when": str(day), "seen": ["b", 3], "last": [1, 2], "share": "1/3", "n": 2**100, "a": [0, 1, 2]
    }  # fmt: skip
    with pytest.raises(UsageError, match="plain data"):
        protocol.pack(object())


# -- what servers may do to clients ------------------------------------------------------------------------------------


LIES = {
    "garbage": lambda number: b"\xc1",
    "an error with a text too many": lambda number: protocol.pack(
        [number, None, "env", "x", {"text": 1, "self": 2, "kind": "lost"}]
    ),
    "a defect": lambda number: protocol.pack([number, None, "server", "the server failed", {}]),
}

#: Answers to a reset that no environment gives.
NO_RESULTS = (None, [], "text", ["x", {}, 1, ""], ["x", {"success": float("nan")}, "", ""], [b"x", {}, "", ""])


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_lost(lie):
    async def play(port):
        workers = RemoteWorkers(f"rollenv+ws://127.0.0.1:{port}", ping_every=0.1, lost_after=1.0)
        try:
            env = await workers.open(Task("test:Echo-v0", 1))
            with pytest.raises(EnvFailure) as caught:
                await asyncio.wait_for(env.reset(), 5)
            assert caught.value.kind == "lost"
            env.close()
        finally:
            await workers.aclose()

    def answer(number, operation):
        return honest(number, operation) if operation == "hello" else LIES[lie](number)

    with liar(answer) as port:
        asyncio.run(play(port))


@pytest.mark.parametrize("result", NO_RESULTS)
def test_a_result_that_no_environment_gives_fails_its_episode_alone(result):
    def answer(number, operation):
        return honest(number, operation) if operation != "call" else protocol.pack([number, result])

    with liar(answer) as port:
        workers = RemoteWorkers(f"rollenv+ws://127.0.0.1:{port}")
        with RolloutManager(RandomAgent(), workers, limits=EpisodeLimits(max_replays=0, max_replacements=0)) as manager:
            (group,) = manager.collect([Task("test:Echo-v0", 1)], 1)
            manager.run(workers.aclose())
    assert [t.failure for t in group] == ["wrong"]


def test_another_version_is_refused_each_time():
    with liar(lambda number, operation: protocol.pack([number, [] if operation == "hello" else "x"])) as port:
        connection = Connection(rollenv.remote.address.Address("127.0.0.1", port), patience=0.0)
        for _ in range(2):
            with pytest.raises(UsageError, match="version"):
                connection.ask("spec", "x")
        connection.close()


def test_an_episode_that_is_given_up_while_it_opens_leaves_no_session(serve):
    served = serve(workers=1)

    async def play():
        workers = RemoteWorkers(served.address)
        for wait in (0.0, 0.0, 0.002, 0.1):
            env = await workers.open(Task("test:Echo-v0", 1))
            task = asyncio.create_task(env.reset())
            await asyncio.sleep(wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            env.close()
        assert await asyncio.to_thread(eventually, lambda: held(served) == health(served)["sessions"]["open"] == 0)
        await workers.aclose()
        await workers.aclose()

    asyncio.run(play())
    assert eventually(lambda: held(served) == health(served)["sessions"]["open"] == 0)


def test_the_last_requests_arrive_before_the_workers_are_closed(serve):
    served = serve(workers=1)

    async def play():
        workers = RemoteWorkers(served.address)
        env = await workers.open(Task("test:Echo-v0", 1))
        await env.reset()
        env.close()
        await workers.aclose()
        with pytest.raises(EnvFailure):
            await asyncio.wait_for(env.step("x"), 2)

    asyncio.run(play())
    assert eventually(lambda: health(served)["sessions"]["open"] == 0)


def test_a_client_that_stood_still_loses_no_server(server):
    async def play():
        workers = RemoteWorkers(server.address, ping_every=0.5, lost_after=1.0)
        env = await workers.open(Task("test:Moody-v0", 1))
        await env.reset()
        await asyncio.sleep(0.3)
        for _ in range(3):
            time.sleep(1.7)  # the event loop stands still
            assert await asyncio.wait_for(env.step("hang 0.1"), 5)
        assert workers.report()[0]["deaths"] == 0
        env.close()
        await workers.aclose()

    asyncio.run(play())


def test_workers_belong_to_one_event_loop(server):
    workers = RemoteWorkers(server.address)
    one, two = asyncio.new_event_loop(), asyncio.new_event_loop()
    env = one.run_until_complete(workers.open(Task("test:Echo-v0", 1)))
    with pytest.raises(UsageError, match="event loop"):
        two.run_until_complete(workers.open(Task("test:Echo-v0", 1)))
    env.close()
    one.run_until_complete(workers.aclose())
    two.run_until_complete(workers.open(Task("test:Echo-v0", 1))).close()
    two.run_until_complete(workers.aclose())
    one.close()
    two.close()


def test_a_host_that_cannot_be_is_a_server_that_is_not_there():
    async def play():
        workers = RemoteWorkers(f"rollenv+ws://{'a' * 70}:1", ping_every=0.1, lost_after=0.2)
        opening = asyncio.create_task(workers.open(Task("test:Echo-v0", 1)))
        assert await asyncio.to_thread(eventually, lambda: workers.report()[0]["last_death"])
        opening.cancel()
        await workers.aclose()

    asyncio.run(play())


def test_who_ends_workers_again_and_again_gets_one_of_its_own(serve):
    """Others lose no worker by it any more."""
    server = serve()
    honest = rollenv.make(f"{server.address}/test:Echo-v0")
    honest.reset(seed=1)

    def die():
        env = rollenv.make(f"{server.address}/test:Moody-v0")
        env.reset(seed=1)
        with pytest.raises(EnvBroke):
            env.step("die")
        env.close()
        honest.step("still here")
        workers = patient.get(f"{server.http}/health").json()["workers"]
        return sum(worker["deaths"] for worker in workers if worker["name"].startswith("process"))

    deaths = [die() for _ in range(6)]
    assert deaths[0] >= 1
    assert deaths[-1] == deaths[3]
    honest.close()


def test_an_info_that_holds_itself_many_times_over_is_refused(server):
    env = rollenv.make(f"{server.address}/test:Moody-v0")
    env.reset(seed=1)
    with pytest.raises(EnvBroke, match="too large") as caught:
        env.step("laughs")
    assert caught.value.details["kind"] == "wrong"
    assert env.step("on")[0] == "turn 1", "it is where it was"
    env.close()
