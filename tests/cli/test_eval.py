"""``rollenv eval`` and ``rollenv health``: folders, resuming, workers, what is printed."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time

import pytest
from waiting import eventually

from rollenv import UsageError
from rollenv.agents import RandomAgent
from rollenv.agents.chat import ChatAgent
from rollenv.cli.common import AgentOptions, console, make_agent
from rollenv.cli.eval import _places
from rollenv.cli.main import app
from rollenv.cli.playing import Dashboard, EvalFolder, concurrent_episodes
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.storage import read
from rollenv.rollout.types import Task, Trajectory, Turn

ENV = "game:Sokoban-v0-easy"


@pytest.mark.integration
def test_repeats_give_pass_at_and_pass_all(rollenv_command):
    done = json.loads(rollenv_command("eval", ENV, "-a", "noisy:0.4", "-n", "30", "-k", "3", "--json").stdout)
    at = [done["pass_at"][str(j)][0] for j in (1, 2, 3)]
    every = [done["pass_all"][str(j)][0] for j in (1, 2, 3)]
    assert at == sorted(at)
    assert every == sorted(every, reverse=True)
    assert at[0] == pytest.approx(every[0])
    assert at[0] == pytest.approx(done["success"])
    assert 0 < every[2] < at[2] < 1
    table = rollenv_command("eval", ENV, "-a", "noisy:0.4", "-n", "30", "-k", "3").stdout
    assert "pass^k" in table
    assert "30 × 3" in table


@pytest.mark.slow
def test_a_folder_holds_everything_and_an_evaluation_goes_on_where_it_was(rollenv_command, tmp_path):
    args = ("eval", ENV, "-a", "noisy:0.4", "-n", "20", "-k", "2", "--json")
    whole = json.loads(rollenv_command(*args).stdout)
    out = tmp_path / "whole"
    assert rollenv_command(*args, "--out", str(out)).returncode == 0
    files = {"eval.json", "episodes.jsonl", "result.json", "report.html", "health.json"}
    assert {p.name for p in out.iterdir()} == files
    lines = (out / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 40
    (out / "episodes.jsonl").write_bytes(b"".join(lines[:13]) + lines[13][: len(lines[13]) // 2])  # a kill -9
    resumed = rollenv_command(*args, "--out", str(out), "--resume")
    assert {**json.loads(resumed.stdout), "seconds": 0} == {**whole, "seconds": 0}
    played = list(read(out / "episodes.jsonl"))
    assert len({(t.task.seed, t.member) for t in played}) == len(played) == 40


@pytest.mark.parametrize(
    ("agent", "says"),
    [("local:nowhere", "did you mean 'prompt.examples'"), ("random", "--prompt is for a model in this process")],
)
def test_a_wrong_prompt_setting_is_said_before_a_model_is_loaded_and_a_folder_made(tmp_path, capsys, agent, says):
    out = tmp_path / "out"
    assert app(["eval", ENV, "-a", agent, "--prompt", "exampels=5", "-o", str(out)], standalone_mode=False) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.integration
def test_a_folder_is_not_overwritten_and_not_continued_with_other_settings(rollenv_command, tmp_path):
    out = str(tmp_path / "run")
    assert rollenv_command("eval", ENV, "-n", "2", "-o", out).returncode == 0
    for args, says in (
        (("-n", "2", "-o", out), "--resume"),
        (("-n", "1", "-o", out, "--resume"), "n=2; n can grow, and 1 is less"),
        (("-n", "2", "-s", "5", "-o", out, "--resume"), "seed=0, not 5"),
        (("-n", "2", "--resume"), "needs --out"),
    ):
        done = rollenv_command("eval", ENV, *args)
        assert done.returncode == 2
        assert says in " ".join(done.stderr.split())


@pytest.mark.integration
def test_an_evaluation_in_processes_gives_the_same(rollenv_command):
    args = ("eval", ENV, "-a", "noisy:0.4", "-n", "20", "--json")
    one, two = (json.loads(rollenv_command(*args, "-w", where).stdout) for where in ("inline", "2"))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}


@pytest.mark.integration
def test_health_shows_a_run(rollenv_command, tmp_path):
    out = tmp_path / "run"
    rollenv_command("eval", ENV, "-n", "5", "-o", str(out))
    shown = rollenv_command("health", str(out))
    assert shown.returncode == 0
    assert ENV in shown.stdout
    assert "inline" in shown.stdout
    health = json.loads(rollenv_command("health", str(out), "--json").stdout)
    assert health["envs"][0]["counts"]["completed"] == 5
    health["envs"][0] |= {"state": "failing", "reasons": {"OSError: gone": 7}, "failing_since": 1e9}
    (out / "health.json").write_text(json.dumps(health))
    failing = rollenv_command("health", str(out))
    assert failing.returncode == 1
    assert "7 times OSError: gone" in failing.stdout
    (out / "health.json").write_text("{")
    assert "damaged" in rollenv_command("health", str(out)).stderr
    for wrong in ([], health | {"time": 1e308}, health | {"workers": [{}]}, health | {"envs": [5]}):
        (out / "health.json").write_text(json.dumps(wrong))
        assert rollenv_command("health", str(out)).returncode == 2


@pytest.mark.slow
def test_health_asks_a_server(rollenv_command, tmp_path):
    done = rollenv_command("health", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "http://127.0.0.1:9/health" in done.stderr


@pytest.mark.parametrize("text", ["", '{"env": "game:Sok', "[1, 2]", "[" * 100_000])
def test_settings_that_were_cut_short_are_an_error_that_says_what_to_do(tmp_path, text):
    (tmp_path / "eval.json").write_text(text)
    with pytest.raises(UsageError, match=r"eval\.json"):
        EvalFolder.begin(tmp_path, {"env": "game:Sokoban-v0-easy"}, True)


WILD = """import os, pathlib, sys, time, rollenv
class Game(rollenv.Env):
    def _reset(self, options):
        os.chdir("/")
        return "", {}
    def _step(self, action):
        pathlib.Path(__file__).with_name("there").touch()
        time.sleep(1e6 if action else 0)
        return "", 1.0, True, False, {"success": True}
    def sample_random_action(self):
        return os.environ.get("HANGS", "")
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_environment_that_never_returns_is_ended_by_a_second_signal(tmp_path, number, code):
    (tmp_path / "wild.py").write_text(WILD)
    command = [sys.executable, "-c", "from rollenv.cli.main import main; main()", "eval", "wild.py:Game", "-n", "2"]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "HANGS": "1"}) as process:
        assert eventually((tmp_path / "there").exists, 60)
        process.send_signal(number)
        time.sleep(1.5)  # signals within one second count as one
        process.send_signal(number)
        assert process.wait(15) == code


def test_an_environment_that_changes_the_folder_changes_no_paths_of_the_run(tmp_path, rollenv_command):
    (tmp_path / "wild.py").write_text(WILD)
    done = rollenv_command("eval", "wild.py:Game", "-n", "2", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "episodes.jsonl").read_text().count("\n") == 2


@pytest.mark.combinations
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_an_interrupt_is_quick_however_many_tasks_wait(tmp_path, number, code):
    command = [sys.executable, "-c", "from rollenv.cli.main import main; main()", "eval", "game:Sokoban-v0-tiny"]
    command += ["-n", "50000", "-o", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while (
            not (tmp_path / "out" / "episodes.jsonl").exists() or not (tmp_path / "out" / "episodes.jsonl").read_bytes()
        ):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Task" not in said
    assert "--resume" in said


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN], ids=["", "nohup"])
def test_a_terminal_that_goes_away_ends_it_as_any_signal_does(hangup, tmp_path):
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, hangup)
        os.chdir(tmp_path)
        code = "from rollenv.cli.main import main; main()"
        os.execv(sys.executable, [sys.executable, "-c", code, "eval", "game:Sokoban-v0-tiny", "-n", "50000", "-o", "o"])
    while not (file := tmp_path / "o" / "episodes.jsonl").exists() or not file.read_bytes():
        os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 143


@pytest.mark.combinations
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_standard_streams_may_be_missing(tmp_path, closed):
    python = f"{shlex.quote(sys.executable)} -c 'from rollenv.cli.main import main; main()'"
    done = subprocess.run(["sh", "-c", f"{python} eval {ENV} -n 1 -o out {closed}"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0
    assert (tmp_path / "out" / "result.json").exists()


def test_a_folder_without_an_episode_may_be_used_again(tmp_path, capsys):
    def played(*settings: str) -> int:
        return app(
            ["eval", "game:Sokoban-v0-easy", *settings, "-n", "1", "--out", str(tmp_path)], standalone_mode=False
        )

    assert played("max_turn=3") == 2
    assert "did you mean 'max_turns'" in capsys.readouterr().err
    assert not played("max_turns=3")
    assert played("max_turns=3") == 2
    assert "holds an evaluation already" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "eval.json").unlink()  # as in a training run's folder
    assert played("max_turns=3") == played("max_turns=3", "--resume") == 2
    assert "name another" in " ".join(capsys.readouterr().err.split())


def test_an_agent_of_ones_own_plays(rollenv_command, tmp_path, monkeypatch):
    code = "from rollenv.agents import ConstantAgent\n\nseven = lambda: ConstantAgent('7')\nnone = lambda: 7\n"
    code += "needs = lambda model: ConstantAgent(model)\n"
    (tmp_path / "own_agent.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    played = rollenv_command("eval", "math:Arithmetic-v0-digit", "-n", "4", "--agent", "own_agent:seven")
    assert played.returncode == 0, played.stderr
    assert "played by own_agent:seven" in played.stdout
    for name, error in (
        ("own_agent:none", "which has no start()"),
        ("own_agent:needs", "takes no arguments"),
        ("own_agnt:x", "PYTHONPATH=FOLDER"),
        ("x", "MODULE:CLASS"),
    ):
        wrong = rollenv_command("eval", "math:Arithmetic-v0-digit", "-n", "4", "--agent", name)
        assert wrong.returncode == 2
        assert error in wrong.stderr


def test_several_environments_are_played_one_after_the_other(rollenv_command, tmp_path):
    ids = ["game:Sokoban-v0-tiny", "game:GuessTheNumber-v0-easy"]
    command = ["eval", *ids, "-a", "oracle", "--out", "all", "-n"]
    done = rollenv_command(*command, "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("100.0 %") == 5  # each, each in the table, and the mean
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == sorted(name.replace(":", "-") for name in ids)
    again = rollenv_command(*command, "4", "--resume", "--json")
    assert [one["n"] for one in json.loads(again.stdout)] == [4, 4]
    wrong = rollenv_command("eval", *ids, "nope:Nothing-v0", "--out", "other")
    assert wrong.returncode == 2
    assert not (tmp_path / "other").exists()


FAILS = """
import rollenv


class Fails(rollenv.Env):
    def _reset(self, options):
        raise RuntimeError("lost")

    def _step(self, action):
        raise NotImplementedError

    def sample_random_action(self):
        return "x"
"""


def test_the_mean_of_several_environments_is_of_those_that_were_graded(rollenv_command, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    ids = ["game:GuessTheNumber-v0-easy", "fails.py:Fails"]
    done = rollenv_command("eval", *ids, "-a", "random", "-n", "3", "--out", "all")
    assert done.returncode == 1
    first, lost, mean = done.stdout.splitlines()[-3:]
    assert (lost.split()[2], mean.split()[:3]) == ("0.0", ["mean", "of", "1"])
    assert mean.split()[3] == first.split()[2]


def test_the_progress_shows_success_and_reward_of_what_did_not_fail():
    task = Task("game:Sokoban-v0-tiny", 0)
    with RolloutManager(RandomAgent()) as manager:
        dashboard = Dashboard("eval", 2, manager, None)
        dashboard.count(Trajectory(task, [Turn((), (), (), 1.0, "a", "b")], status="terminated", success=True))
        dashboard.count(Trajectory(task, [Turn((), (), (), 0.5, "a", "b")], status="failed"))
        with console.capture() as shown:
            console.print(dashboard.draw())
    assert "success 100.0 %  failed 1" in shown.get()
    assert "reward 1 " in shown.get()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["game:Sokoban-v0-tiny", "game:GuessTheNumber-v0-easy", "num_boxes=1"], "takes no argument"),
        (["data:a/b.csv", "data:a-b.csv"], "would share the folder"),
        (["game:Sokoban-v0-tiny", "game:Sokoban-v0-easy", "-n", "4"], "holds an evaluation already"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_later_environment_is_said_before_the_first_is_played(
    rollenv_command, tmp_path, words, said
):
    rollenv_command("eval", "game:Sokoban-v0-easy", "-n", "2", "--out", "all/game-Sokoban-v0-easy")
    wrong = rollenv_command("eval", *words, "--out", "all")
    assert wrong.returncode == 2
    assert said in wrong.stderr
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["game-Sokoban-v0-easy"]


def test_an_environment_that_is_named_twice_is_played_once(rollenv_command, tmp_path):
    done = rollenv_command("eval", *2 * ["game:Sokoban-v0-tiny"], "-n", "2", "--out", "all", "--json")
    assert json.loads(done.stdout)["env"] == "game:Sokoban-v0-tiny"
    assert (tmp_path / "all" / "result.json").exists()


def test_folders_of_several_evaluations_stay_below_the_one_named(tmp_path):
    names = [folder.name for _, folder in _places(["..", "./x", "/etc/passwd", "a" * 400], tmp_path)]
    assert names == ["questions", "x", "etc-passwd", "a" * 100]


def test_an_agent_that_takes_all_seats_of_a_game_is_said_to(capsys):
    assert app(["eval", "multi:Nim-v0-seats", "-a", "oracle", "-n", "4"], standalone_mode=False) in (0, None)
    assert "all seats" in capsys.readouterr().out
    app(["info", "multi:Nim-v0-seats", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["players"].startswith('2; info["player"]')


def test_rewards_without_a_success_are_said_to(capsys):
    app(["eval", "gymnasium:CartPole-v1", "-a", "random", "-n", "2"], standalone_mode=False)
    assert "may never say `success`" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    [
        "def act(self, observation, info): return Action('1')",
        "def act(self, observation, info): yield Action('1')",
        "async def act(self, observation): return Action('1')",
        "other = 1",
    ],
)
def test_an_agent_of_another_form_is_refused_once(body, tmp_path, capsys):
    begin = "from rollenv.agents import Action\nclass Own:\n    def start(self, env, seed): return self\n"
    (tmp_path / "own.py").write_text(f"{begin}    {body}\n")
    done = app(["eval", "game:GuessTheNumber-v0-easy", "-a", f"{tmp_path}/own.py:Own"], standalone_mode=False)
    assert done == 2
    assert "async act(observation, info)" in capsys.readouterr().err


def test_huge_rewards_are_short_in_tables(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    app(["eval", f"{tmp_path}/own.py:Huge", "-n", "2"], standalone_mode=False)
    assert "1e+98" in capsys.readouterr().out


@pytest.mark.parametrize(("agent", "lacking"), [("oracle", "no oracle"), ("random", "no random actions")])
@pytest.mark.parametrize("workers", ["inline", "1"])
def test_an_agent_that_can_play_no_episode_is_refused_once(agent, lacking, workers, tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    done = app(["eval", f"{tmp_path}/own.py:Lacks", "-a", agent, "--workers", workers], standalone_mode=False)
    assert done == 2
    assert capsys.readouterr().err.count(lacking) == 1


def test_an_endpoint_has_few_episodes_for_each_request():
    agent = ChatAgent("model", base_url="http://127.0.0.1:1/v1", concurrency=4)
    assert 4 <= concurrent_episodes(agent) <= 8 < concurrent_episodes(RandomAgent())


def test_a_slow_endpoint_gets_the_seconds_that_were_asked_for():
    slow = make_agent("chat:m", AgentOptions(base_url="http://127.0.0.1:9/v1", timeout=900.0))
    assert slow.endpoint.patience.timeout == 900.0
    with pytest.raises(UsageError, match="--timeout"):
        make_agent("random", AgentOptions(timeout=900.0))


OWN = """
import rollenv
class Prints(rollenv.Env):
    def _reset(self, options):
        print("begun")
        return "start", {}
    def _step(self, action):
        return "over", 1.0, True, False, {"success": True}
    def sample_random_action(self):
        return "go"
class NoFile(Prints):
    def __init__(self):
        raise OSError("no file")
class NoPicture(Prints):
    def _reset(self, options):
        return "<image>", {"images": ["none"]}
class Huge(Prints):
    def _step(self, action):
        return "over", 1e98, True, False, {"success": True}
class Lacks(Prints):
    sample_random_action = rollenv.Env.sample_random_action
class Game(Prints):
    players = 2
    def _reset(self, options):
        return "start", {"player": 0}
    def _step(self, action):
        return "over", 0.0, False, False, {"player": 1, "rewards": [1.0]}
class Lost(Game):
    def _step(self, action):
        return "over", 0.0, True, False, {"success": (False, False)}
class NoReward(Prints):
    def _step(self, action):
        return "over", None, True, False, {}
"""


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Prints", 0, "begun"),
        ("NoFile", 1, "the constructor raised OSError: no file"),
        ("NoPicture", 1, "what reset returned is wrong: info['images']: "),
        ("Game", 0, "2 games ended by a failure; the first: forfeited: seat "),
    ],
)
def test_what_an_environment_gets_wrong_is_said_beside_the_result(name, code, says, rollenv_command, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    done = rollenv_command("eval", f"own.py:{name}", "-a", "random", "-n", "2", "--json")
    assert (done.returncode, json.loads(done.stdout)["n"]) == (code, 2), done.stderr
    assert says in done.stderr
    assert "answers were empty" not in done.stderr


def test_info_is_of_what_can_be_shown(rollenv_command, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    done = json.loads(rollenv_command("info", "own.py:NoReward", "--json").stdout)
    assert (done["rewards_seen"], "it fails with TypeError" in done["problem"]) == (None, True)


def test_who_won_a_game_may_be_any_list(rollenv_command, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    assert "won by nobody" in rollenv_command("play", "own.py:Lost", input="go\n:quit\n").stdout


def test_a_file_that_exits_is_an_error(rollenv_command, tmp_path):
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)")
    done = rollenv_command("eval", "exits.py:Own")
    assert (done.returncode, "cannot be loaded: SystemExit: 0 (exits.py, line 1)" in done.stderr) == (2, True)
