"""What goes wrong between a session, its client and its server, and what must not come of it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time

import numpy as np
import pytest
from plain_clients import Raw, health, honest, liar, talking
from serving import tokens_in
from waiting import eventually

import rollenv
from rollenv.core.errors import UsageError
from rollenv.remote import protocol
from rollenv.remote.address import Address, parse
from rollenv.remote.connection import Connection
from rollenv.remote.env import RemoteEnv, Servers
from rollenv.remote.protocol import Cancelled, ServerFull, ServerLost, SessionGone
from rollenv.rollout.workers.processes import ProcessWorkers
from rollenv.serve.auth import ANYONE
from rollenv.serve.native import Native
from rollenv.serve.quotas import Quota, SessionLimits
from rollenv.serve.sessions import SessionManager

pytestmark = pytest.mark.integration

OWNER = "anyone"


@pytest.fixture(autouse=True)
def oddities(monkeypatch):
    """The environments of the servers, in this process as well, and not for other tests."""
    rollenv.list_envs()
    monkeypatch.setattr(rollenv.core.registry, "ENV_REGISTRY", dict(rollenv.core.registry.ENV_REGISTRY))
    monkeypatch.delitem(sys.modules, "oddities", raising=False)
    importlib.import_module("oddities")


def here(play, limits=None):
    """Plays with sessions in this process; afterwards none of them may hold anything."""

    async def main():
        workers = ProcessWorkers(1)
        sessions = SessionManager(workers, limits or SessionLimits())
        try:
            await play(sessions)
            await sessions.stop()
            await asyncio.sleep(0)
            assert sessions.queue._free == sessions.queue.width
        finally:
            await workers.aclose()

    asyncio.run(main())


async def begun(sessions, env_id="game:Sokoban-v0-tiny", seed=5):
    """A session whose first call was a reset."""
    session = await sessions.open(protocol.session_name(), OWNER, env_id)
    await session.numbered(1, "reset", [seed])
    return session


def test_who_cancels_a_call_cancels_no_other(server):
    with Raw(server) as raw:
        name = protocol.session_name()
        raw.ask("open", name, "test:Moody-v0", {})
        raw.ask("call", name, 1, "reset", [1])
        for turn, given_up in ((2, 1), (4, 0)):
            both = raw.send(("call", name, turn, "step", ["hang 0.5"]), ("call", name, turn + 1, "render", []))
            raw.send(("cancel", both[given_up]))
            answers = {}
            while len(answers) < 2:
                answers |= {each[0]: each for each in protocol.unpack_all(raw.socket.recv(20)) if each[0] in both}
            assert answers[both[given_up]][2] == "cancelled"
            assert len(answers[both[1 - given_up]]) == 2, "the other one is answered"
        raw.ask("close", name)


class Client:
    """A connection of the native protocol, in the server's process."""

    def __init__(self, sessions):
        self.messages: asyncio.Queue = asyncio.Queue()
        self.waiting: dict[int, asyncio.Future] = {}
        self.number = 0
        self.receive, self.take, self.writable = self.messages.get, None, asyncio.Event()
        self.writable.set()
        self.talk = asyncio.create_task(Native(sessions, ANYONE, self, 900.0).talk())

    def listen(self, silence, take, is_busy):
        self.take = take

    def write(self, data):
        for answer in protocol.unpack_all(data):
            self.waiting.pop(answer[0]).set_result(answer)  # which fails for an answer too many

    def say(self, *requests):
        """Send requests in one message; the numbers, and futures of the answers."""
        numbers = range(self.number + 1, self.number + 1 + len(requests))
        self.number += len(requests)
        found = {number: asyncio.get_running_loop().create_future() for number in numbers}
        self.waiting |= found
        data = protocol.pack([[number, *request] for number, request in zip(numbers, requests, strict=True)])
        if self.talk.done() or not self.messages.empty() or self.take is None or not self.take(data):
            self.messages.put_nowait({"type": "websocket.receive", "bytes": data})
        return found

    def leave(self):
        self.messages.put_nowait({"type": "websocket.disconnect"})


def test_who_closes_a_session_and_leaves_has_closed_it():
    async def played(sessions):
        session, client = await begun(sessions), Client(sessions)
        client.say(("close", session.name))
        client.leave()
        await client.talk
        await asyncio.sleep(0.05)
        assert not sessions.by_name

    here(played)


@pytest.mark.parametrize("seed", [0, 1])
def test_whatever_happens_every_request_is_answered_once_and_no_place_is_lost(seed):
    async def played(sessions):
        rng, end = random.Random(seed), time.monotonic() + 8
        words = ["hang 0.3", "hang 1.3", "hang 9", "raise x", "wrong", "huge 3000", "end", "spin 0.2", "die"]
        words += ["on"] * 12

        async def play():
            client = Client(sessions)
            while time.monotonic() < end:
                name, count = protocol.session_name(), 1
                client.say(("open", name, "test:Moody-v0", {}), ("call", name, 1, "reset", [1]))
                for _ in range(rng.randrange(1, 7)):
                    counts = range(count + 1, count + 1 + rng.choice([1, 1, 1, 2, 3]))
                    count = counts[-1]
                    requests = [("call", name, each, "step", [rng.choice(words)]) for each in counts]
                    asked = client.say(*requests, *requests[: rng.random() < 0.2])
                    chance = rng.random()
                    await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01, 0.3]))
                    if chance < 0.08:
                        client.say(*[("cancel", number) for number in asked])
                    elif chance < 0.11:
                        client.say(("close", name))
                    elif chance < 0.14:
                        client.leave()
                        client = Client(sessions)
                        asked = client.say(requests[-1])
                    await asyncio.wait_for(asyncio.gather(*asked.values()), 45)
                await asyncio.gather(*client.say(("close", name)).values())
            client.leave()

        async def kill():
            while seed and time.monotonic() < end:
                await asyncio.sleep(rng.random())
                worker = sessions.workers.slots[0].worker
                if worker is not None and worker.pid and rng.random() < 0.3:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)

        await asyncio.gather(*(play() for _ in range(12)), kill())
        await asyncio.sleep(3)
        assert [session.busy for session in sessions.by_name.values() if session.busy] == []

    here(played, SessionLimits(running=8, step=2.0, reset=3.0))


def test_a_call_that_is_cancelled_or_fails_is_counted():
    async def played(sessions):
        session = await begun(sessions, "test:Moody-v0")
        assert sessions.limiter._worked[OWNER] < time.monotonic()
        call = asyncio.create_task(session.numbered(2, "step", ["spin 1.5"]))
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises((Cancelled, asyncio.CancelledError)):
            await call
        before = sessions.limiter._worked[OWNER]
        for _ in range(100):
            await asyncio.sleep(0.05)
            if sessions.limiter._worked[OWNER] > before + 0.5:  # a busy machine gives it less than its time
                return
        raise AssertionError("what it computed was not counted")

    here(played, SessionLimits(each=Quota(compute=30.0)))


@pytest.mark.parametrize("little", [range(10**12), range(10**30), np.zeros(10**9, "V0")])
def test_what_is_little_to_send_and_much_to_hold_is_refused(little):
    with pytest.raises(UsageError):
        protocol.pack({"info": little})
    assert protocol.unpack(protocol.pack([range(3), np.arange(2)])) == [[0, 1, 2], [0, 1]]


# -- clients -----------------------------------------------------------------------------------------------------------


def connection_to(served):
    """The connection that environments at this server share."""
    return Servers.of(parse(f"{served.address}/test:Echo-v0")[0]).connections[0]


def test_a_call_that_cannot_be_sent_does_not_count(server):
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(seed=1)
    with pytest.raises(UsageError, match="too large"):
        env.step("x" * protocol.LARGEST_REQUEST)
    assert env.step("a")[0].startswith("1 ")
    env.close()


@pytest.mark.parametrize("ahead", [True, False])
def test_a_call_that_is_refused_for_now_does_not_count(serve, tmp_path, monkeypatch, ahead):
    file, tokens = tokens_in(tmp_path, ann="environments")
    with open(file, "a") as table:
        table.write("rate = 5\n")
    served = serve("--tokens", file)
    monkeypatch.setenv("ROLLENV_TOKEN", tokens["ann"])
    env = rollenv.make(f"{served.address}/test:Echo-v0")
    env.reset(seed=1)
    connection, turn = connection_to(served), 0
    connection.patience = 0.0
    for _ in range(40):
        try:
            if ahead:
                RemoteEnv.steps_ahead([(env, "a")])
            shown = env.step("a")[0]
        except ServerFull:
            time.sleep(0.1)
        else:
            turn += 1
            assert shown.startswith(f"{turn} ")
    assert turn > 5
    connection.patience = 30.0
    env.close()


def test_an_interrupted_step_was_not_played(server):
    env = rollenv.make(f"{server.address}/test:Moody-v0")
    env.reset(seed=1)
    env.step("on")

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            env.step("hang 0.6")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert env.step("on")[0] == "turn 2"
    env.close()


def test_a_step_that_was_sent_ahead_in_another_thread_has_its_own_answer(server):
    envs = [rollenv.make(f"{server.address}/test:Echo-v0") for _ in range(2)]
    for env in envs:
        env.reset(seed=5)

    def elsewhere():
        connection = connection_to(server)
        connection.ask("hello", protocol.VERSION)
        while next(connection._numbers) + 1 < envs[0]._ahead[1]:  # so that both have the same number
            pass
        RemoteEnv.steps_ahead([(envs[1], "b")])
        shown.append((envs[1]._ahead[1], envs[0]._ahead[1]))
        shown.append(envs[0].step("a")[0])

    shown: list = []
    for _ in range(20):
        connection_to(server).ask("hello", protocol.VERSION)
    RemoteEnv.steps_ahead([(envs[0], "a")])
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(20)
    assert shown[0][0] == shown[0][1]
    assert shown[1].endswith(" a")
    for env in envs:
        env.close()


def closes(frames):
    """A server that sends raw bytes after its answer to a "spec" and waits."""

    def talk(connection):
        for message in connection:
            for number, operation, *_ in protocol.unpack_all(message):
                connection.send(honest(number, operation))
                if operation == "spec":
                    connection.socket.sendall(frames)

    return talking(talk)


@pytest.mark.parametrize("frames", [b"\x88\x02\x03\xe8", b"\xff\xff\xff\xff", b"\x82\x7f\x7f" + b"\xff" * 7])
def test_a_server_that_ends_or_breaks_the_connection_is_lost(frames):
    with closes(frames) as port:
        connection = Connection(Address("127.0.0.1", port), patience=0.0, silence=0.2)
        for _ in range(3):
            with contextlib.suppress(ServerLost):
                connection.ask("spec", "x")
            time.sleep(0.05)
            assert connection.send_ahead([["hello", protocol.VERSION]]) is not None
        connection.close()


@pytest.mark.parametrize("patient", [True, False])
def test_answers_to_nobody_are_no_answer(patient):
    def answer(number, operation):
        if operation == "hello":
            return honest(number, operation)
        return protocol.pack([[number + 1000, 1]] * 3) if patient else b"\xc1"

    stop = threading.Event()

    def talk(connection):
        for message in connection:
            for number, operation, *_ in protocol.unpack_all(message):
                connection.send(answer(number, operation))
                while operation != "hello" and not stop.wait(0.05):
                    connection.send(answer(number, operation))

    with talking(talk) as port:
        threading.Timer(5.0, stop.set).start()
        connection = Connection(Address("127.0.0.1", port), patience=0.0, answer=0.3, silence=0.2)
        with pytest.raises(ServerLost):
            connection.ask("spec", "x")
        stop.set()
        connection.close()


@pytest.mark.parametrize("wait", ["soon", -1, float("nan"), None, 1e300, [1]])
def test_a_server_cannot_say_nonsense_about_when_to_ask_again(wait):
    def answer(number, operation):
        if operation == "hello":
            return honest(number, operation)
        return protocol.pack([number, None, "full", "no room", {"retry_after": wait}])

    with liar(answer) as port:
        connection = Connection(Address("127.0.0.1", port), patience=0.0)
        with pytest.raises(ServerFull):
            connection.ask("spec", "x")
        connection.close()


def test_a_replay_that_is_cut_off_does_not_confuse_a_session_that_goes_on_elsewhere():
    """One server dies in the middle of a replay; the other has the session, one call behind."""
    first = {"opened": 0}

    def one(number, operation):
        if operation == "call":
            first["opened"] += 1
            if first["opened"] in (3, 5):  # the second step, and the second call of the replay
                raise ConnectionResetError
        value = {
            "hello": {"version": protocol.VERSION},
            "open": {"reset_options": []},
            "call": ["x", {}, "", ""] if first["opened"] in (1, 4) else ["x", 0.0, False, False, {}, "", ""],
        }
        if operation == "resume":
            return protocol.pack([number, None, "gone", "no", {}])
        return protocol.pack([number, value.get(operation)])

    asked: list = []

    def two(number, operation):
        asked.append(operation)
        value = {
            "hello": {"version": protocol.VERSION},
            "open": {"reset_options": []},
            "resume": 2,
            "call": ["x", {}, "", ""]
            if asked[-2:] == ["open", "call"]
            else ["y" if "open" not in asked else "x", 0.0, False, False, {}, "", ""],
        }
        return protocol.pack([number, value.get(operation)])

    with liar(one) as port, liar(two) as other:
        addresses = (Address("127.0.0.1", port), Address("127.0.0.1", other))
        servers = Servers.of(addresses)
        servers.in_turn = lambda: servers.connections  # type: ignore[method-assign]
        for connection in servers.connections:
            connection.patience = 0.0
        env = RemoteEnv(addresses, "test:Echo-v0", {}, rollenv.remote.replay_log.ReplayLog())
        env.reset(seed=1)
        env.step("a")
        env.step("b")
        assert env._count == 3, "the answer to the second step is not the one to the first"
        for connection in servers.connections:
            connection.close()


# -- the page and tokens -----------------------------------------------------------------------------------------------


def test_a_replay_whose_client_left_before_its_first_line_ends(serve):
    served = serve()
    body = json.dumps({"env": "test:Echo-v0", "seed": "1", "actions": ["a"] * 50}).encode()
    head = f"POST /page/api/replay HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", served.port)) as plain:
            plain.sendall(head + body)
    time.sleep(0.5)
    assert eventually(lambda: health(served)["sessions"]["open"] == 0)


def test_turns_that_are_watched_have_a_size():
    from rollenv.serve.protocols.page.live import _Watched

    watched = _Watched()
    for number in range(300):
        watched.add({"view": "x" * (400_000 if number % 2 else 10), "observation": "y"})
    assert watched.count == 300
    assert watched.turns[-1][0] == 300
    assert sum(len(turn["view"]) for _, turn in watched.turns) <= 2_000_000


def test_a_connection_ends_when_its_token_expires(serve, tmp_path, monkeypatch):
    file, tokens = tokens_in(tmp_path, ann="environments")
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)  # the server starts
    with open(file, "a") as table:
        table.write(f"expires = {soon.isoformat()}\n")
    served = serve("--tokens", file)
    monkeypatch.setenv("ROLLENV_TOKEN", tokens["ann"])
    env = rollenv.make(f"{served.address}/test:Echo-v0")
    env.reset(seed=1)

    def refused():
        try:
            env.step("a")
        except (protocol.NotAllowed, SessionGone, ServerLost):
            return True
        return False

    assert eventually(refused)
