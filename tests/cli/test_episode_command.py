"""``rollenv episode``: one episode against a real server on this machine, which may be away, lie or die."""

import asyncio
import contextlib
import http.server
import json
import os
import socket
import threading
import time

import pytest
from packages import declare

ENV = "game:GuessTheNumber-v0-easy"

pytestmark = pytest.mark.usefixtures("_import_server")

#: An environment of a file of one's own, and what it does at its second step.
BRITTLE = """
import os, time
import rollenv

class Brittle(rollenv.Env):
    def _reset(self, options):
        print("noise on standard output")
        self.turn = 0
        return "Say something.", {}

    def _step(self, action):
        self.turn += 1
        if self.turn == 2:
            WHAT
        return "Go on.", 1.0, False, False, {}

def register():
    rollenv.register("test:Brittle-v0", Brittle)
"""


@pytest.fixture(scope="module")
def _import_server():
    import sys
    from pathlib import Path

    sys.path.append(str(Path(__file__).parents[1] / "agents"))


@pytest.fixture
def serving():
    from chat_server import ChatServer, completion

    servers = []

    def serve(behave=lambda exchange: exchange.json(completion("\\boxed{5}"))):
        server = ChatServer(behave)
        servers.append(server)
        return server.__enter__()

    yield serve
    for server in servers:
        server.__exit__()


def played(done, code=0):
    """The JSON object that is all of standard output."""
    assert done.returncode == code, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def one_line(done):
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def test_an_episode_is_played_printed_and_read_again(rollenv_command, guessing_endpoint):
    from rollenv.rollout.records.plain import from_plain
    from rollenv.rollout.types import Trajectory

    args = ("episode", ENV, "max_turns=9", "--seed", "3", "--base-url", guessing_endpoint.url, "--model", "m")
    result = played(rollenv_command(*args, "--json", "--temperature", "0.5", "--max-tokens", "9", "--system", "Guess."))
    assert (result["env"], result["seed"], result["model"]) == (ENV, 3, "m")
    assert (result["status"], result["success"]) == ("terminated", True)
    assert result["turns"] == len(result["trajectory"]["turns"]) == len(guessing_endpoint.requests)
    assert result["reward"] == pytest.approx(sum(turn["reward"] for turn in result["trajectory"]["turns"]))
    assert from_plain(Trajectory, result["trajectory"]).reward == result["reward"]
    asked = guessing_endpoint.requests[-1]
    assert (asked["temperature"], asked["max_tokens"], asked["messages"][0]["content"]) == (0.5, 9, "Guess.")
    assert len(asked["messages"]) == 2 * result["turns"]
    shown = rollenv_command(*args)
    assert shown.returncode == 0
    assert f"terminated after {result['turns']} turns" in shown.stdout
    assert "> \\boxed{5}" in shown.stdout


def test_turns_can_be_limited(rollenv_command, guessing_endpoint):
    args = ("episode", ENV, "-s", "3", "--base-url", guessing_endpoint.url, "--model", "m", "--json")
    result = played(rollenv_command(*args, "--max-turns", "1"))
    assert (result["turns"], result["status"], result["reward"]) == (1, "truncated", 0.0)


@pytest.mark.integration
def test_the_key_comes_from_a_variable_and_no_other_is_sent(rollenv_command, serving, monkeypatch):
    server = serving()
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    args = ("episode", ENV, "--base-url", server.url, "--model", "m", "--json", "--api-key-env", "MY_KEY")
    assert "no key in the environment variable MY_KEY" in played(rollenv_command(*args), 2)["error"]
    assert not server.requests
    monkeypatch.setenv("MY_KEY", "mine\n")
    played(rollenv_command(*args))
    assert server.headers[0]["authorization"] == "Bearer mine"


@pytest.mark.combinations
@pytest.mark.parametrize("given", [(), ("--model", "m")])
def test_an_endpoint_that_is_away(rollenv_command, given):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        done = rollenv_command("episode", ENV, "--base-url", url, *given, "--json", "--retries", "0")
    result = played(done, 1)
    assert "gave no answer" in result["error"]
    assert "gave no answer" in one_line(done)


def test_an_endpoint_that_dies_in_the_middle(rollenv_command, serving):
    from chat_server import completion

    async def behave(exchange):
        if len(exchange.body["messages"]) == 1:
            await exchange.json(completion("\\boxed{0}"))
        else:
            await exchange.hang_up()

    args = ("--base-url", serving(behave).url, "--model", "m", "--json", "--retries", "1")
    done = rollenv_command("episode", ENV, *args)
    result = played(done, 1)
    assert "gave no answer in 2 attempts" in result["error"]
    assert (result["failure"], result["turns"]) == ("agent", 1)
    assert "gave no answer in 2 attempts" in one_line(done)


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("status", "says", "code"),
    [("401 Unauthorized", "refuses the key", 2), ("404 Not Found", "Check the model's name", 2)],
)
def test_a_refusal_says_what_to_change(rollenv_command, serving, status, says, code):
    server = serving(lambda exchange: exchange.json({"error": {"message": "no"}}, status))
    done = rollenv_command("episode", ENV, "--base-url", server.url, "--model", "m", "--json")
    assert says in played(done, code)["error"]
    assert says in one_line(done)


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nothing:There-v0",), "nothing:There-v0"),
        ((ENV, "max_turns"), "not of the form key=value"),
        ((ENV, "no_such=1"), "no_such"),
        ((ENV, "--index", "3"), "has none to choose by --index"),
        ((ENV, "--base-url", "127.0.0.1:80"), "base_url must be a URL"),
        ((ENV, "--base-url", "http://127.0.0.1:99999999"), "base_url must be a URL"),
        ((ENV, "--workers", "many"), "there are no workers 'many'"),
        ((ENV, "--temperature", "inf"), "finite number"),
        (("tb:x:",), "tb:x:: there is no folder x:"),
        (("gymnasium:games_that_fail:X-v0",), "games_that_fail cannot be imported: RuntimeError: two lines"),
    ],
)
def test_what_was_wrongly_asked(rollenv_command, args, says, tmp_path, monkeypatch):
    (tmp_path / "games_that_fail.py").write_text("raise RuntimeError('two\\nlines')")
    monkeypatch.syspath_prepend(tmp_path)
    done = rollenv_command("episode", "--base-url", "http://127.0.0.1:9", "--model", "m", *args, "--json")
    assert says in played(done, 3 if args[0].startswith("gymnasium") else 2)["error"]
    assert says in one_line(done)


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("what", "says", "failure"),
    [
        ("raise OSError('the disk is full')", "OSError: the disk is full", "raised"),
        ("time.sleep(999)", "step did not return within 1", "hung"),
        ("os._exit(3)", "test:Brittle-v0", "lost"),
        ("return 5, 1.0, False, False, {}", "test:Brittle-v0", "wrong"),
    ],
)
def test_an_environment_that_fails(rollenv_process, serving, tmp_path, monkeypatch, what, says, failure):
    (tmp_path / "brittle.py").write_text(BRITTLE.replace("WHAT", what))
    declare(tmp_path, "brittle", "[rollenv.envs]\nbrittle = brittle:register\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    args = ("--base-url", serving().url, "--model", "m", "--json", "--step-deadline", "1")
    done = rollenv_process("episode", "test:Brittle-v0", *args)
    result = played(done, 1)
    assert says in result["error"]
    assert (result["failure"], result["turns"], result["reward"]) == (failure, 1, 1.0)
    assert says in done.stderr


@pytest.mark.combinations
@pytest.mark.parametrize("answer", ["", " ", "x" * 300_000, "\ud800"])
def test_odd_answers_are_the_environments_to_judge(rollenv_command, serving, answer):
    from chat_server import completion

    server = serving(lambda exchange: exchange.json(completion(answer)))
    result = played(rollenv_command("episode", ENV, "--base-url", server.url, "--model", "m", "--json"))
    assert (result["success"], result["status"]) == (False, "terminated")


#: A game of someone else's, in a file of its own.
GAME = """
import gymnasium

class Game(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(9)
    observation_space = gymnasium.spaces.Text(9)

    def reset(self, *, seed=None, options=None):
        return "say :x: or [b]", {"at": float("nan")}

    def step(self, action):
        return "[/b] :smile:", 1.0, True, False, {"at": [float("inf")]}

gymnasium.register("Game-v0", Game)
"""


def _listing(*always):
    """A server of lists of models: a status, a body, and seconds between its bytes."""

    class Models(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked += 1
            status, body, slow = (self.server.answers or [always]).pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client went away
                for part in [body[i : i + 1] for i in range(len(body))] if slow else [body]:
                    self.wfile.write(part)
                    time.sleep(slow)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Models)
    server.daemon_threads, server.asked, server.answers = True, 0, []
    return server


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, b"{}", "refuses the key"),
        (404, b"", "does not list its models"),
        (200, b'{"data": [{"id": null}]}', "does not list its models"),
        (200, b'{"data": [{"id": ""}]}', "does not list its models"),
        (200, b'{"data": "ab"}', "does not list its models"),
        (200, b'{"data": [{"id": "a\\nb"}, {"id": "c"}]}', "has 2 models (a b, c)"),
        (200, b"[" * 100_000, "does not list its models"),
    ],
)
def test_an_endpoint_that_does_not_say_which_model(rollenv_command, status, body, says):
    with _listing(status, body, 0.0) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        done = rollenv_command("episode", ENV, "--base-url", url, "--json")
        server.shutdown()
    assert says in played(done, 2)["error"]
    assert says in one_line(done)


@pytest.mark.combinations
@pytest.mark.parametrize(("status", "slow"), [(503, 0.0), (429, 0.0), (200, 0.5)])
def test_a_list_of_models_that_is_late_or_refused_is_asked_for_again(status, slow):
    from rollenv.agents.chat.endpoint import Patience
    from rollenv.cli.episode import only_model
    from rollenv.core.errors import RollenvError

    bodies = [b" " * 50, b'{"data": [{"id": "m"}, {"id": "m"}]}']
    patience = Patience(timeout=3.0 if slow else 60.0, retries=1, first_wait=0.01)
    with _listing(status, bodies[0], slow) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        with pytest.raises(RollenvError) as told:
            asyncio.run(only_model(url, None, patience))
        assert type(told.value) is RollenvError
        assert server.asked == 2
        server.answers = [(status, bodies[0], slow), (200, bodies[1], 0.0)]
        assert asyncio.run(only_model(url, None, patience)) == "m"
        server.shutdown()


@pytest.mark.combinations
@pytest.mark.parametrize("model", [(), ("--model", "m")])
def test_no_key_and_no_password_is_shown(rollenv_command, monkeypatch, model):
    done = rollenv_command(
        "episode", ENV, "--base-url", "http://me:hidden@127.0.0.1:9/v1", *model, "--json", "--retries", "0"
    )
    assert "hidden" not in played(done, 1)["error"] + one_line(done)
    done = rollenv_command("episode", ENV, "--base-url", "http://me:hidden@h h/v1", *model, "--json")
    assert "hidden" not in played(done, 2)["error"] + one_line(done)
    monkeypatch.setenv("OPENAI_API_KEY", "hid\nden")
    done = rollenv_command("episode", ENV, "--base-url", "http://127.0.0.1:9/v1", *model, "--json")
    assert "no header can hold" in played(done, 2)["error"]
    assert "den" not in one_line(done)


@pytest.mark.integration
def test_numbers_that_json_has_not_and_texts_that_look_like_markup(rollenv_process, serving, tmp_path, monkeypatch):
    (tmp_path / "someones.py").write_text(GAME)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    args = ("episode", "gymnasium:someones:Game-v0", "--base-url", serving().url, "--model", "m")
    done = rollenv_process(*args, "--json")
    result = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (result["reward"], result["trajectory"]["final_observation"]) == (1.0, "[/b] :smile:")
    shown = rollenv_process(*args)
    assert "say :x: or [b]" in shown.stdout
    assert "[/b] :smile:" in shown.stdout
