"""Success rates and their intervals."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import UsageError
from rollenv.agents.base import Action, OracleAgent, RandomAgent, Session
from rollenv.agents.tiny.model import build_tokenizer
from rollenv.core import registry
from rollenv.core.wrappers import TOKENIZER_REQUIRED, WRAPPER_FACTORY
from rollenv.rollout.evaluate import evaluate, mean_interval, pass_all, pass_at, summarise, wilson_interval
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Trajectory
from rollenv.rollout.workers.processes import ProcessWorkers


@pytest.mark.parametrize(
    ("wins", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (429, 500, 0.8246, 0.8859)],
)
def test_wilson_interval_against_published_values(wins, n, low, high):
    assert wilson_interval(wins, n) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share_and_narrows(case):
    wins, n = case
    low, high = wilson_interval(wins, n)
    assert 0 <= low <= wins / n <= high <= 1
    wide = wilson_interval(wins * 10, n * 10)
    assert wide[1] - wide[0] < high - low


def test_an_evaluation_counts_what_was_played():
    result = evaluate(OracleAgent(), "game:Sokoban-v0-easy", n=20, seed=5)
    assert (result.n, result.success, result.failed) == (20, 1.0, 0)
    assert result.reward == pytest.approx(1.0)
    assert [t.task.seed for t in result.trajectories] == list(range(5, 25))
    assert result.turns == sum(len(t.turns) for t in result.trajectories) / 20
    assert "trajectories" not in result.to_dict()
    assert evaluate(RandomAgent(), "game:Sokoban-v0-hard", n=20).success < 0.5


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_and_pass_all_count_subsets(case):
    n, c, k = case
    episodes = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(episodes, k))
    assert pass_at(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_all(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_an_interval_of_means_is_no_narrower_than_that_of_coins(values):
    mean, low, high = mean_interval(values)
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1
    assert (low, high) == pytest.approx(wilson_interval(sum(values), len(values)))


def test_repeats_differ_only_in_the_agents_draws():
    result = evaluate(OracleAgent(0.5), "game:Sokoban-v0-easy", n=5, k=4)
    assert [(t.task.seed, t.member) for t in result.trajectories] == [(s, m) for s in range(5) for m in range(4)]
    for number in range(5):
        repeats = result.trajectories[4 * number : 4 * number + 4]
        assert len({t.turns[0].observation for t in repeats}) == 1
        assert len({tuple(turn.text for turn in t.turns) for t in repeats}) > 1
    assert result.pass_at[1][0] == pytest.approx(result.success)


def test_what_was_played_is_not_played_again_unless_it_failed():
    whole = evaluate(OracleAgent(0.5), "game:Sokoban-v0-easy", n=6, k=2)
    played = whole.trajectories[:5]
    lost, played[2] = played[2], type(played[2])(played[2].task, status="failed", member=played[2].member)
    seen = []
    with RolloutManager(OracleAgent(0.5)) as manager:
        rest = evaluate(
            OracleAgent(0.5), "game:Sokoban-v0-easy", n=6, k=2, manager=manager, played=played, watch=seen.append
        )
    assert len(seen) == 8
    assert rest.trajectories == whole.trajectories
    assert lost in seen


def test_the_interval_over_tasks_is_of_those_that_did_not_fail():
    played = evaluate(OracleAgent(), "math:Arithmetic-v0-digit", n=100).trajectories
    lost = [Trajectory(t.task, status="failed") for t in played]
    half = summarise("x", played[:50] + lost[50:], 1, 0.0)
    first = summarise("x", played[:50], 1, 0.0)
    assert (half.tasks_low, half.tasks_high) == (first.tasks_low, first.tasks_high) != (half.low, half.high)
    assert (half.distinct, half.repeats) == (first.distinct + 50, True)
    none = summarise("x", lost, 1, 0.0)
    assert (none.success, none.tasks_low, none.tasks_high, none.repeats) == (0.0, 0.0, 1.0, False)


# -- data sets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def rows_id(monkeypatch):
    """An id of 60 rows."""
    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rows = [{"problem": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(60)]
    entry = "rollenv.envs.math.env:MathEnv"
    rollenv.register("test:Rows-v0", entry, abilities=["oracle", "spawn"], indexed=True, dataset=rows)
    return "test:Rows-v0"


@pytest.mark.parametrize("seed", [0, 7])
def test_a_data_set_is_visited_once_and_in_order(rows_id, seed):
    result = evaluate(OracleAgent(), rows_id, seed=seed)
    assert (result.n, result.success) == (60, 1.0)
    assert [t.turns[0].observation.split()[2] for t in result.trajectories] == [str(i) for i in range(60)]
    few = evaluate(OracleAgent(), rows_id, n=3, k=2, seed=seed)
    assert [t.task.options["index"] for t in few.trajectories] == [0, 0, 1, 1, 2, 2]
    assert evaluate(OracleAgent(), rows_id, n=4, options={"index": 5}).trajectories[3].turns[0].text == "\\boxed{6}"
    with pytest.raises(UsageError, match="60 tasks"):
        evaluate(OracleAgent(), rows_id, n=61)


@pytest.mark.slow
def test_a_score_on_math_500_is_over_its_500_rows(data):
    data("math/math500_test.jsonl")
    result = evaluate(OracleAgent(), "eval:MATH500")
    assert (result.n, result.success) == (500, 1.0)
    assert len({t.turns[0].observation for t in result.trajectories}) == 500


# -- wrappers and tools -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    tokenizer = build_tokenizer(["a few words"], 300)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def pool():
    with ProcessWorkers(2) as workers:
        yield workers


class Calls:
    """Runs a program, then answers."""

    def start(self, env, seed):
        return self

    turn = 0

    async def act(self, observation, info):
        if info.get("tool_use_counter") == 0:
            return Action("<python>print(6 * 7)</python> <search>dogs</search>")
        return Action("\\boxed{1}")

    def close(self):
        pass


@pytest.mark.integration
@pytest.mark.parametrize("workers", ["inline", "processes"])
@pytest.mark.parametrize("name", WRAPPER_FACTORY)
def test_every_wrapper_and_tool_of_the_factory_works_in_an_evaluation(
    name, workers, tokenizer_folder, retrieval_url, pool
):
    settings = {"tokenizer": tokenizer_folder} if name in TOKENIZER_REQUIRED else {}
    settings |= {"search_url": retrieval_url} if "search" in name else {}
    with RolloutManager(Calls(), pool if workers == "processes" else None) as manager:
        result = evaluate(
            Calls(), "game:GuessTheNumber-v0", n=2, manager=manager, wrappers={name: settings, "episode_tracking": {}}
        )
    assert [t.error for t in result.trajectories] == ["", ""]
    said = result.trajectories[0].turns[1].observation
    assert ("42" in said) is name.startswith("python_tool")
    assert ("Doc 1" in said) is name.startswith("search_tool")
    assert ("<user>" in said) is (name in TOKENIZER_REQUIRED)


_WRONG_NUMBERS = [{"n": 0}, {"n": -1}, {"n": 10**30}, {"n": "all"}, {"n": 1.5}, {"n": True}, {"k": 0}, {"k": 10**30}]


@pytest.mark.parametrize("wrong", [*_WRONG_NUMBERS, {"seed": None}])
@pytest.mark.parametrize("env_id", ["game:Sokoban-v0-easy", "game:GuessTheNumber-v0"])
def test_an_evaluation_of_nothing_or_without_end_is_refused(env_id, wrong):
    with pytest.raises(UsageError):
        evaluate(OracleAgent(), env_id, **wrong)


class Counts(rollenv.Env):
    """Two turns that wait for nothing; notes when an episode begins."""

    begun = 0

    def _reset(self, options):
        Counts.begun += 1
        return "go", {}

    def _step(self, action):
        self.last = not getattr(self, "last", True)
        return "on", 1.0, self.last, False, {}

    def sample_random_action(self):
        return "x"

    oracle_action = sample_random_action


@pytest.fixture(scope="module", autouse=True)
def counts():
    registry.register("test:Counts-v0", Counts, abilities=["random_action", "oracle"])


class Says(Session):
    async def act(self, observation, info):
        return Action("x")


class SaysAgent:
    def start(self, env, seed):
        return Says()


@pytest.mark.parametrize("agent", [OracleAgent(), RandomAgent(), SaysAgent()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("most", [None, 1, 3])
def test_results_come_as_episodes_end_though_nothing_waits(agent, most):
    Counts.begun, seen = 0, []
    with RolloutManager(agent, max_concurrent=most) as manager:
        evaluate(agent, "test:Counts-v0", n=12, manager=manager, watch=lambda t: seen.append(Counts.begun))
    ahead = [begun - number for number, begun in enumerate(seen, 1)]
    assert max(ahead) <= 1, "at most one other has begun when a result is told"


def test_episodes_that_wait_run_side_by_side():
    begun = []

    class Waits(Session):
        async def act(self, observation, info):
            begun.append(self)
            while len(begun) < 12:  # for all others
                await asyncio.sleep(0.001)
            return Action("x")

    class WaitsAgent:
        def start(self, env, seed):
            return Waits()

    assert evaluate(WaitsAgent(), "test:Counts-v0", n=12).failed == 0


def test_what_was_told_before_the_run_ended_is_kept():
    told = []

    def watch(trajectory):
        told.append(trajectory)
        if len(told) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(OracleAgent(), "test:Counts-v0", n=100, watch=watch)
    assert all(trajectory.complete for trajectory in told)
    rest = []
    evaluate(OracleAgent(), "test:Counts-v0", n=100, played=told, watch=rest.append)
    assert len(rest) == 95
