"""Suites, their numbers, endpoints that misbehave, runs that are killed, and comparisons."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "agents"))
from chat_server import ChatServer, completion

import rollenv
from rollenv import UsageError
from rollenv.agents.base import ConstantAgent, OracleAgent, RandomAgent
from rollenv.agents.scripted import ReplayAgent
from rollenv.bench import compare, run, suite, suites
from rollenv.bench.run import row_of
from rollenv.rollout.records.storage import read
from rollenv.rollout.types import Task, Trajectory

TINY, SHOP = "tools:Tiny-v0", "tools:Shop-v0"


def test_every_suite_plays_ids_that_exist_and_says_what_is_missing():
    for each in suites():
        for part in each.parts:
            assert not rollenv.spec(part.env_id).missing
        for category, need in each.missing.items():
            ids = [found.id for found in rollenv.list_envs(category) if found.id.partition(":")[2] == category]
            assert all(rollenv.spec(env_id).missing for env_id in ids)
            assert ids
            assert need
    assert {part.env_id for part in suite("generated").parts} >= {SHOP, "tools:Office-v0"}


def test_generated_tasks_are_of_the_test_split_unless_the_settings_say_otherwise():
    assert suite(SHOP).parts[0].kwargs["split"] == "test"
    assert suite(SHOP, {"split": "train", "goals": 1}).parts[0].kwargs == {"split": "train", "goals": 1}


def test_an_unknown_suite_names_the_nearest():
    with pytest.raises(UsageError, match="'tool-use'"):
        suite("tooluse")
    with pytest.raises(rollenv.UnknownEnv):
        suite("tools:Shopp-v0")


@pytest.mark.smoke
def test_the_oracle_solves_everything_and_the_numbers_fit_together():
    result = run(suite("shop", {"goals": 1}), OracleAgent(), n=4, k=2)
    assert all(row.success[0] == row.pass_all[2][0] == 1.0 for row in result.rows)
    assert result.total.n == sum(row.n for row in result.rows) == 4 * len(result.rows)
    assert result.total.side_effects == 0.0
    assert result.total.metrics["partial"] == 1.0
    assert len(result.trajectories) == 2 * result.total.n
    assert json.loads(json.dumps(result.to_dict()))["success"] == 1.0


@pytest.mark.integration
def test_floors_are_what_agents_that_do_nothing_get():
    result = run(suite("tools:Shop-v0-policy"), RandomAgent(), n=40)
    said = [
        run(suite("tools:Shop-v0-policy"), ConstantAgent(text), n=40, floors=False).total.success[0]
        for text in ("Done.", "I cannot do that.")
    ]
    assert result.rows[0].floor == max(said)


@pytest.mark.integration
def test_more_noise_solves_less():
    shares = [run(suite(SHOP), OracleAgent(noise), n=60, floors=False).total.success[0] for noise in (0, 0.3, 0.8)]
    assert shares[0] == 1.0 > shares[1] > shares[2]


# -- comparison --------------------------------------------------------------------------------------------------------


def _episode(seed, success, member=0, env_id="x:A-v0", **kwargs):
    return Trajectory(Task(env_id, seed, kwargs), status="terminated", success=success, member=member)


def test_a_run_compared_with_itself_differs_in_nothing():
    played = [_episode(i, i % 3 == 0) for i in range(50)]
    total = compare(played, played).total
    assert (total.difference, total.low, total.high, total.clear) == (0, 0, 0, False)


def test_the_interval_holds_the_difference_and_is_clear_only_when_it_excludes_zero():
    first = [_episode(i, i < 40) for i in range(200)]
    better, same = [_episode(i, i < 90) for i in range(200)], [_episode(i, 2 <= i < 42) for i in range(200)]
    clear, not_clear = compare(first, better).total, compare(first, same).total
    assert clear.difference == pytest.approx(0.25)
    assert clear.low < 0.25 < clear.high
    assert clear.clear
    assert not not_clear.clear
    assert (not_clear.only_first, not_clear.only_second) == (2, 2)


@pytest.mark.parametrize(("tasks", "clear"), [(1, False), (5, False), (6, True)])
def test_a_few_tasks_that_all_go_one_way_are_not_clear(tasks, clear):
    first, second = ([_episode(i, won) for i in range(tasks)] for won in (True, False))
    total = compare(first, second).total
    assert (total.low, total.high, total.clear) == (-1, -1, clear)


def test_pairs_are_the_same_task_however_its_calls_are_written():
    first = [_episode(i, True, calls="native", split="test") for i in range(4)]
    second = [_episode(i, False, calls="json", split="test") for i in range(6)]
    result = compare(first, second)
    assert (result.total.tasks, result.only_first, result.only_second) == (4, 0, 2)
    with pytest.raises(UsageError, match="common"):
        compare(first, [_episode(0, True, split="train")])


@pytest.mark.integration
def test_the_bootstrap_covers_the_true_difference_about_95_times_in_100():
    import numpy as np

    rng = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        wins = rng.random((150, 2)) < (0.5, 0.6)
        first, second = ([_episode(i, bool(w)) for i, w in enumerate(wins[:, side])] for side in (0, 1))
        total = compare(first, second).total
        held += total.low <= 0.1 <= total.high
    assert held >= 88


def test_of_an_episode_played_again_the_last_counts_and_a_failed_one_is_not_graded():
    failed = Trajectory(Task("x:A-v0", 1), status="failed", success=True)
    both = [_episode(0, True), _episode(1, True)]
    assert compare([*both, _episode(1, False), failed], both).total.first == 0.5
    lost = compare([_episode(0, True), failed], both)
    assert (lost.total.tasks, lost.total.first, lost.only_second) == (1, 1.0, 1)
    with pytest.raises(UsageError, match="failed are not graded"):
        compare([failed], both)
    row = row_of("x", [_episode(0, True), failed], 1)
    assert (row.n, row.failed, row.success[0]) == (2, 1, 1.0)
    assert row_of("x", [failed], 1).success == (0.0, 0.0, 1.0)


# -- stored answers ----------------------------------------------------------------------------------------------------


def test_recorded_episodes_played_again_end_the_same():
    played = run(suite(SHOP), OracleAgent(0.5), n=20, k=2, floors=False)
    rows = [json.loads(json.dumps(t.to_dict())) for t in played.trajectories]
    again = run(suite(SHOP), ReplayAgent(rows), n=20, k=2, floors=False)
    assert [(t.success, t.reward, t.metrics) for t in again.trajectories] == [
        (t.success, t.reward, t.metrics) for t in played.trajectories
    ]


@pytest.mark.parametrize(
    "row",
    [{}, {"env_id": TINY, "seed": 1}, {"env_id": TINY, "seed": 1, "actions": "x"}, {"env_id": TINY, "actions": ["x"]}],
)
def test_a_row_that_is_no_stored_answer_is_refused(row):
    with pytest.raises(UsageError, match="row 1"):
        ReplayAgent([row])


def test_answers_that_are_missing_or_end_too_soon_fail_with_a_reason():
    agent = ReplayAgent([{"env_id": TINY, "seed": 0, "actions": ["[find(name='x')]"]}])
    result = run(suite(TINY), agent, n=2, floors=False)
    errors = [t.error for t in result.trajectories]
    assert "ends after 1 actions" in errors[0]
    assert "no answer is stored" in errors[1]
    assert result.failures == {"agent": 2}


def test_stored_answers_may_hold_what_ends_lines_elsewhere(tmp_path):
    row = {"env_id": TINY, "seed": 0, "actions": ["a\u2028b\x85c"]}
    file = tmp_path / "answers.jsonl"
    file.write_text(f"\n{json.dumps(row, ensure_ascii=False)}\n\n", encoding="utf-8")
    result = run(suite(TINY), ReplayAgent.load(file), n=1, floors=False)
    assert [turn.text for turn in result.trajectories[0].turns] == row["actions"]


# -- an endpoint -------------------------------------------------------------------------------------------------------


def _clerk(body):
    """Solves the tiny tasks through native calls, except for some names: a function of the messages alone."""
    said = body["messages"]
    verb, name = said[0]["content"].splitlines()[-1].removesuffix("'s order.").lower().split(" ")
    if len(said) == 1:
        call = "find", {"name": name.capitalize()}
    elif len(said) == 3 and name[0] not in "abc":
        call = verb, {"id": int(said[-1]["content"])}
    else:
        return completion("Done.")
    function = {"name": call[0], "arguments": json.dumps(call[1])}
    return completion(None, message={"tool_calls": [{"id": f"c{len(said)}", "type": "function", "function": function}]})


class _Unreliable:
    """Answers one request in five badly at first: late, 429, 500, a dropped connection, nonsense."""

    def __init__(self):
        self.tried = {}

    async def __call__(self, exchange):
        key = zlib.crc32(json.dumps(exchange.body, sort_keys=True).encode())
        self.tried[key] = self.tried.get(key, 0) + 1
        ways = [self.late, self.limited, self.broken, self.dropped, self.nonsense]
        if key % 5 == 0 and self.tried[key] == 1:
            await ways[key // 5 % len(ways)](exchange)
        else:
            await exchange.json(_clerk(exchange.body))

    async def late(self, exchange):
        await asyncio.sleep(0.3)
        await exchange.json(_clerk(exchange.body))

    async def limited(self, exchange):
        await exchange.json({"error": {"message": "slow down"}}, "429 Too Many Requests", Retry_After="0.1")

    async def broken(self, exchange):
        await exchange.json({"error": {"message": "oops"}}, "500 Internal Server Error")

    async def dropped(self, exchange):
        await exchange.hang_up()

    async def nonsense(self, exchange):
        await exchange.send(b'{"choices": [{"message": {"content"')


@pytest.mark.integration
def test_an_endpoint_that_fails_in_a_fifth_of_calls_gives_the_calm_run(rollenv_process):
    async def calm(exchange):
        await exchange.json(_clerk(exchange.body))

    results = []
    for behave in (calm, _Unreliable()):
        with ChatServer(behave) as server:
            done = rollenv_process(
                "bench", TINY, "-a", "chat:m", "--base-url", server.url, "-n", "60", "-k", "2", "--json",
                "--prices", "1,2", env=os.environ | {"no_proxy": "127.0.0.1"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            results.append(json.loads(done.stdout))
            assert all("tools" in body for body in server.requests)
    calmly, hard = results
    assert set(hard["problems"]) == {"rate_limit", "server_error", "connection", "nonsense"}
    assert hard["retries"] == sum(hard["problems"].values()) == hard["requests"] - calmly["requests"]
    assert 0 < calmly["success"] < 1
    untimed = [{**r["total"], "latency": 0} for r in results]
    assert untimed[0] == untimed[1]
    assert calmly["problems"] == {}
    assert calmly["cost"] == pytest.approx(1e-6 * calmly["requests"] * (90 + 2 * 10))


@pytest.mark.slow
def test_several_native_calls_of_one_answer_are_all_carried_out_and_answered_apart():
    async def behave(exchange):
        said = exchange.body["messages"]
        names = [f"x{i}" for i in range(3)]
        calls = [
            {"id": n, "type": "function", "function": {"name": "find", "arguments": json.dumps({"name": n})}}
            for n in names
        ]
        await exchange.json(completion(None, message={"tool_calls": calls}) if len(said) == 1 else completion("Done."))

    from rollenv.agents.chat import ChatAgent

    with ChatServer(behave) as server:
        result = run(suite(TINY, calls="native"), ChatAgent("m", server.url, tools="env"), n=1, floors=False)
        last = server.requests[-1]["messages"]
    assert result.trajectories[0].metrics["calls"] == 3
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "tool", "tool"]
    assert [message["tool_call_id"] for message in last[2:]] == ["x0", "x1", "x2"]


def test_a_budget_ends_the_run_with_a_clear_line(rollenv_command):
    async def calm(exchange):
        await exchange.json(_clerk(exchange.body))

    with ChatServer(calm) as server:
        args = ("bench", TINY, "-a", "chat:m", "--base-url", server.url, "-n", "40", "-c", "1")
        done = rollenv_command(*args, "--token-budget", "1000")
    assert done.returncode != 0
    assert "budget" in done.stderr
    assert len(server.requests) < 20


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_run_killed_at_any_moment_goes_on_without_a_task_lost_or_played_twice(rollenv_command, tmp_path):
    args = ("bench", "office", "goals=[1,2]", "-a", "noisy:0.3", "-n", "20", "-k", "2", "--json")
    whole = json.loads(rollenv_command(*args).stdout)
    out = tmp_path / "run"
    command = [sys.executable, "-c", "from rollenv.cli.main import main; main()", *args, "-o", str(out)]
    for wanted in (5, 90, 200):
        process = subprocess.Popen([*command, *(["--resume"] if out.exists() else [])], stdout=subprocess.DEVNULL)
        episodes, deadline = out / "episodes.jsonl", time.monotonic() + 60
        while not episodes.exists() or episodes.read_bytes().count(b"\n") < wanted:
            assert time.monotonic() < deadline
            if process.poll() is not None:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = rollenv_command(*args, "-o", str(out), "--resume")
    assert done.returncode == 0, done.stderr
    resumed = json.loads(done.stdout)
    names = [(t.task.env_id, t.task.seed, t.member) for t in read(out / "episodes.jsonl")]
    assert len(names) == len(set(names)) == whole["n"] * 2
    for one, other in zip(resumed["categories"], whole["categories"], strict=True):
        assert {**one, "latency": 0} == {**other, "latency": 0}
    assert {path.name for path in out.iterdir()} >= {"result.json", "report.html", "episodes.parquet"}
    assert len(list(read(out / "episodes.parquet"))) == whole["n"] * 2


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("name", ["episodes.jsonl", "episodes.parquet", "report.html", "result.json"])
def test_a_file_that_cannot_be_written_is_reported_in_a_line(rollenv_command, tmp_path, name):
    (tmp_path / "run" / name).mkdir(parents=True)
    done = rollenv_command("bench", TINY, "-n", "2", "-a", "oracle", "-o", "run")
    assert done.returncode == 2, done.stderr
    assert "cannot write run" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_the_command_compares_two_folders(rollenv_command, tmp_path):
    for noise in ("0.1", "0.9"):
        done = rollenv_command("bench", TINY, "-a", f"noisy:{noise}", "-n", "80", "-o", str(tmp_path / noise))
        assert done.returncode == 0, done.stderr
    done = rollenv_command("bench", "compare", "0.9", "0.1", "-o", "both", "--json")
    total = json.loads(done.stdout)["total"]
    assert total["low"] > 0
    assert total["tasks"] == 80
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"comparison.json", "compare.html"}
    assert "clear" in rollenv_command("bench", "compare", "0.9", "0.1").stdout


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "name a suite"),
        (("nosuch",), "there is no suite 'nosuch'"),
        ((TINY, "nokey"), "not of the form key=value"),
        ((TINY, "nokey=1"), "takes no argument 'nokey'"),
        ((TINY, "--calls", "xml"), "--calls is auto"),
        ((TINY, "--calls", "native"), "--calls native is for endpoints"),
        ((TINY, "--resume"), "needs --out"),
        ((TINY, "-a", "replay:nothing.jsonl"), "cannot read stored answers"),
        ((TINY, "-a", "chat:m"), "needs --base-url"),
        (("compare", "a"), "takes two folders"),
        (("compare", "a", "b"), "holds no run"),
    ],
)
def test_mistakes_are_reported_in_a_line(rollenv_command, args, says):
    done = rollenv_command("bench", *args)
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_a_folder_of_another_run_is_refused(rollenv_command, tmp_path):
    assert rollenv_command("bench", TINY, "-n", "3", "-o", "run").returncode == 0
    for args, says in (
        ((TINY, "-n", "3"), "continue it with --resume"),
        ((TINY, "-n", "3", "-a", "oracle", "--resume"), "agent='random', not 'oracle'"),
        (("tools:Shop-v0", "-n", "3", "--resume"), "suite="),
    ):
        done = rollenv_command("bench", *args, "-o", "run")
        assert done.returncode == 2
        assert says in " ".join(done.stderr.split())


@pytest.mark.integration
def test_the_list_names_every_suite(rollenv_command):
    told = json.loads(rollenv_command("bench", "--list", "--json").stdout)
    assert [each["name"] for each in told] == [each.name for each in suites()]
    assert "tool-use" in rollenv_command("bench", "--list").stdout


@pytest.mark.slow
def test_an_endpoint_that_never_calls_is_noticed_at_the_first_episode_and_cut_answers_at_the_end(rollenv_command):
    async def speaks(exchange):
        await exchange.json(completion("I cannot do", finish_reason="length"))

    with ChatServer(speaks) as server:
        done = rollenv_command("bench", "shop", "-a", "chat:m", "--base-url", server.url, "-n", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--calls hermes") == 1
    assert "raise --max-tokens" in done.stdout
