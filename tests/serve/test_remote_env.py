"""A served environment is an ordinary one."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from plain_clients import health, plain
from prefix_proxy import below
from waiting import eventually

import rollenv
from rollenv.core.checker import check_env
from rollenv.core.errors import EpisodeOver, NoSuchAbility, UnknownEnv, UsageError
from rollenv.core.vector import make_vec
from rollenv.remote.address import parse
from rollenv.remote.connection import Connection
from rollenv.remote.env import Servers
from rollenv.remote.protocol import EnvBroke, ServerFull, ServerLost, SessionGone

IDS = ["game:Sokoban-v0-tiny", "game:Hangman-v0-easy", "math:Arithmetic-v0-easy", "gym:Taxi-v3", "webshop:mini-easy"]
SLOW = [IDS[0], *(pytest.param(env_id, marks=pytest.mark.integration) for env_id in IDS[1:])]


@pytest.mark.smoke
@pytest.mark.parametrize("env_id", SLOW)
def test_it_keeps_every_promise_that_it_keeps_at_home(server, env_id):
    env = rollenv.make(f"{server.address}/{env_id}")
    assert env.spec.abilities == rollenv.spec(env_id).abilities
    check_env(env)
    env.close()


@pytest.mark.combinations
@pytest.mark.parametrize("env_id", IDS)
def test_it_gives_the_same_as_the_one_at_home(server, env_id):
    near, far = rollenv.make(env_id), rollenv.make(f"{server.address}/{env_id}")
    for seed in (0, 7, None, None):
        if seed is None and env_id.startswith("gym"):
            continue
        assert far.reset(seed) == plain(near.reset(seed))
        for _ in range(10):
            action = near.sample_random_action()
            assert far.sample_random_action() == action
            answer = near.step(action)
            assert list(far.step(action)) == plain(answer)
            assert far.render() == near.render()
            if answer[2] or answer[3]:
                break
    far.close()


def test_errors_are_those_of_an_environment_at_home(server):
    with pytest.raises(UnknownEnv, match="game:Sokoban"):
        rollenv.make(f"{server.address}/game:Sokobam-v0")
    with pytest.raises(UsageError, match="'sandboxes'"):
        rollenv.make(f"{server.address}/game:Sokoban-v0-easy", sandboxes=3)
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    with pytest.raises(EpisodeOver):
        env.step("x")
    with pytest.raises(UsageError, match="'level'"):
        env.reset(1, options={"level": 3})
    with pytest.raises(UsageError, match="non-negative"):
        env.reset(-1)
    with pytest.raises(NoSuchAbility):
        env.oracle_action()
    env.reset(1)
    with pytest.raises(TypeError, match="str"):
        env.step(5)
    assert env.step("still here")[0].endswith("still here")
    env.close()


@pytest.mark.parametrize(
    ("path", "prefix", "env_id"),
    [
        ("", "", ""),
        ("/game:Sokoban-v0", "", "game:Sokoban-v0"),
        ("/rollenv/game:Sokoban-v0", "/rollenv", "game:Sokoban-v0"),
        ("/a/b/game:Sokoban-v0", "/a/b", "game:Sokoban-v0"),
        ("/rollenv/", "/rollenv", ""),
        ("/nothing", "", "nothing"),
        ("/rollenv/openenv:http://host/x", "/rollenv", "openenv:http://host/x"),
    ],
)
def test_a_path_before_the_id_is_that_of_a_proxy(path, prefix, env_id):
    (address,), parsed = parse(f"rollenv+ws://host:1{path}")
    assert (address.path, parsed) == (prefix, env_id)


def test_an_episode_below_a_path(server):
    with (
        below(b"/rollenv", server.port) as port,
        rollenv.make(f"rollenv+ws://127.0.0.1:{port}/rollenv/test:Echo-v0") as env,
    ):
        assert env.reset(seed=3) == rollenv.make(f"{server.address}/test:Echo-v0").reset(seed=3)
        assert env.step("a")[1] == 1.0


@pytest.mark.parametrize("address", ["", "localhost/x", "rollenv+ws://", "rollenv+ws://a:99999/x", "rollenv+ws://h:1"])
def test_addresses_that_are_none(address):
    with pytest.raises(UsageError):
        rollenv.make(address)


def test_a_token_in_the_address_is_refused_and_not_shown():
    with pytest.raises(UsageError, match="ROLLENV_TOKEN") as caught:
        rollenv.make("rollenv+ws://secret@localhost:1/x")
    assert "secret" not in str(caught.value)


@pytest.mark.integration
def test_no_server():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ServerLost):
            rollenv.make(f"rollenv+ws://127.0.0.1:{taken.getsockname()[1]},127.0.0.1:{taken.getsockname()[1]}/x:Y-v0")


def test_arguments_that_name_files_programs_or_servers_are_refused(server, tmp_path):
    for env_id, kwargs in (
        ("game:Sokoban-v0-easy", {"levels": "/etc/passwd"}),
        ("webshop:mini-easy", {"data": str(tmp_path)}),
        ("code:OneLine-v0-easy", {"sandbox": "none"}),
        ("math:GSM8K", {"dataset_name": "someone/else"}),
        ("ta:TicTacToe-v0", {"opponent": "chat:gpt"}),
    ):
        if env_id not in {spec.id for spec in rollenv.core.registry.list_envs(env_id)}:
            continue
        with pytest.raises(UsageError, match="takes no"):
            rollenv.make(f"{server.address}/{env_id}", **kwargs)
    with pytest.raises(UsageError):
        rollenv.make(f"{server.address}/{server.address}/game:Sokoban-v0")
    env = rollenv.make(f"{server.address}/game:Sokoban-v0-easy", dim_room=[6, 6], num_boxes=1, split="test")
    env.close()


def test_the_spec_can_be_pickled_and_makes_vectors(server):
    spec = pickle.loads(pickle.dumps(rollenv.spec(f"{server.address}/test:Echo-v0")))
    with make_vec([spec.id] * 4) as envs:
        first, _ = envs.reset(seed=3)
        assert len(set(first)) == 4
        assert [o.split()[-1] for o in envs.step(["a", "b", "c", "d"])[0]] == ["a", "b", "c", "d"]


def test_threads_and_forks_have_connections_of_their_own(server):
    found = []

    def play(number):
        env = rollenv.make(f"{server.address}/test:Echo-v0")
        env.reset(number)
        found.extend(env.step(f"{number} {i}")[0].split(maxsplit=2)[2] == f"{number} {i}" for i in range(50))
        env.close()

    threads = [threading.Thread(target=play, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 400
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(1)
    pid = os.fork()
    if pid == 0:
        try:
            mine = rollenv.make(f"{server.address}/test:Echo-v0")
            mine.reset(2)
            os._exit(0 if all(each.step("child")[0].endswith("child") for each in (mine, env)) else 1)
        finally:
            os._exit(2)
    assert env.step("parent")[0].endswith("parent")
    assert os.waitpid(pid, 0)[1] == 0
    assert env.step("parent")[0].startswith("2 "), "a fork has a session of its own"


def test_failures_of_an_environment_leave_its_session_usable(server):
    env = rollenv.make(f"{server.address}/test:Moody-v0")
    for action, kind in (("raise ouch", "raised"), ("wrong", "wrong"), ("die", "lost")):
        env.reset(1)
        assert env.step("x")[0] == "turn 1"
        with pytest.raises(EnvBroke) as caught:
            env.step(action)
        assert caught.value.details["kind"] == kind
        assert env.step("y")[0] == "turn 2", "it was brought back to where it was"
    env.close()


def test_a_worker_that_dies_costs_a_replay(server, tmp_path):
    env = rollenv.make(f"{server.address}/test:Moody-v0")
    env.reset(1)
    pid = env.step("x")[4]["pid"]
    answer = env.step(f"dieonce {tmp_path / 'file'}")
    assert answer[0] == "turn 2"
    assert answer[4]["pid"] != pid
    env.close()


def test_what_cannot_be_replayed_says_so(server, tmp_path):
    env = rollenv.make(f"{server.address}/test:Moody-v0")
    env.reset(1)
    env.step("random")
    with pytest.raises(EnvBroke, match="another answer"):
        env.step(f"dieonce {tmp_path / 'file'}")
    env.close()


@pytest.mark.integration
def test_deadlines(serve):
    served = serve("--step-deadline", "1")
    env, neighbour = (rollenv.make(f"{served.address}/test:Moody-v0") for _ in range(2))
    env.reset(1)
    neighbour.reset(1)
    for action in ("hang", "spin"):
        with pytest.raises(EnvBroke, match="1 s"):
            env.step(action)
        assert env.step("x")[0]
    assert neighbour.step("x")[0] == "turn 1"


@pytest.mark.integration
def test_leases_and_room(serve):
    served = serve("--sessions", "2", "--idle", "1")
    one, two = (rollenv.make(f"{served.address}/test:Echo-v0") for _ in range(2))
    one.reset(1)
    two.reset(1)
    started = time.monotonic()
    three = rollenv.make(f"{served.address}/test:Echo-v0")  # waits until a lease is over
    assert time.monotonic() - started > 0.5
    three.reset(1)
    assert one.step("x")[0].startswith("1 "), "its episode goes on in a new session"


@pytest.mark.integration
def test_sessions_of_clients_that_have_gone_end(serve):
    served = serve("--gone", "1")
    code = "import os, rollenv; env = rollenv.make(os.environ['ENV']); env.reset(1); os._exit(0)"
    environ = os.environ | {"ENV": f"{served.address}/test:Echo-v0"}
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
    mine = rollenv.make(f"{served.address}/test:Echo-v0")
    mine.reset(1)
    assert eventually(lambda: health(served)["sessions"]["open"] == 1)
    assert mine.step("x")[0].startswith("1 ")
    mine.close()


@pytest.mark.integration
def test_a_full_server_says_when_to_come_back(serve):
    served = serve("--sessions", "1")
    env = rollenv.make(f"{served.address}/test:Echo-v0")
    hasty = Connection(parse(served.address)[0][0], patience=0.0)
    with pytest.raises(ServerFull, match="1 sessions") as caught:
        hasty.ask("open", "n" * 20, "test:Echo-v0", {})
    assert caught.value.details["retry_after"] > 0
    with pytest.raises(SessionGone):
        hasty.ask("call", "m" * 20, 1, "reset", [1])
    hasty.close()
    env.close()


def test_a_client_that_waits_for_a_server_says_so(caplog):
    absent = Connection(parse("rollenv+ws://127.0.0.1:9")[0][0], patience=3.0)
    with pytest.raises(ServerLost):
        absent.ask("describe", "test:Echo-v0")
    assert caplog.text.count("127.0.0.1:9") == 1


class Proxy(threading.Thread):
    """Passes bytes on, until it is told to cut its connections."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.target, self.listener = port, socket.create_server(("127.0.0.1", 0))
        self.port, self.pairs = self.listener.getsockname()[1], []
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self.pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass

    def cut(self):
        while self.pairs:
            for sock in self.pairs.pop():
                sock.shutdown(socket.SHUT_RDWR)
                sock.close()


@pytest.mark.slow
def test_a_session_survives_lost_connections_and_no_call_is_made_twice(server):
    proxy = Proxy(server.port)
    env = rollenv.make(f"rollenv+ws://127.0.0.1:{proxy.port}/test:Moody-v0")
    env.reset(1)
    pids = set()
    for turn in range(1, 21):
        if turn % 4 == 0:
            proxy.cut()
        if turn % 4 == 1:
            threading.Timer(0.15, proxy.cut).start()
            answer = env.step("hang 0.3")  # cut while it runs
        else:
            answer = env.step("x")
        assert answer[0] == f"turn {turn}"
        pids.add(answer[4]["pid"])
    assert len(pids) == 1, "it was the same environment all along"
    env.close()
    proxy.listener.close()


@pytest.mark.smoke
def test_an_episode_survives_the_death_of_its_server(serve):
    servers = [serve(workers=1) for _ in range(2)]
    hosts = ",".join(f"127.0.0.1:{served.port}" for served in servers)
    envs = [rollenv.make(f"rollenv+ws://{hosts}/game:Sokoban-v0-tiny", max_turns=50) for _ in range(4)]
    twins = [rollenv.make("game:Sokoban-v0-tiny", max_turns=50) for _ in range(4)]
    for seed, (env, twin) in enumerate(zip(envs, twins, strict=True)):
        assert env.reset(seed) == twin.reset(seed)
    playing = list(zip(envs, twins, strict=True))
    for turn in range(12):
        if turn == 4:
            servers[0].signal(signal.SIGKILL)
        for env, twin in list(playing):
            action = twin.sample_random_action()
            mine, expected = env.step(action), twin.step(action)
            assert mine == expected
            if expected[2] or expected[3]:
                playing.remove((env, twin))
    for env in envs:
        env.close()


def test_sessions_are_opened_at_servers_in_turn_whatever_is_asked_between():
    servers = Servers(parse("rollenv+ws://127.0.0.1:1,127.0.0.1:2/test:Echo-v0")[0])
    opened = []
    for _ in range(4):
        servers.first(lambda connection: connection)
        servers.open(lambda connection: opened.append(connection.address))
    assert opened[0] == opened[2] != opened[1] == opened[3]
