"""``rollenv probe``: planted faults are found, an honest environment has none, and advice is a setting that exists."""

import itertools
import json
import math
from pathlib import Path

import planted
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import UsageError
from rollenv.agents.base import AgentFailed, OracleAgent
from rollenv.core.registry import ENV_REGISTRY
from rollenv.probe.floors import first_admissible
from rollenv.probe.page import page_result
from rollenv.probe.run import probe
from rollenv.probe.teach import TaskCounts, Taught, informative
from rollenv.probe.verdict import ENOUGH, FloorResult, advice, allowed, judge
from rollenv.rollout import EpisodeLimits, RolloutManager
from rollenv.trainers.config import load_config


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the second process
    names = planted.register_envs()
    yield
    for name in names:
        ENV_REGISTRY.pop(name)


def probed(name, noise=0.7, seconds=60.0, **sizes):
    config = load_config(f"planted:{name}-v0", ["model=MODEL"])
    agent = OracleAgent(noise)
    sizes = {"n": 12, "k": 8} | sizes
    with RolloutManager(agent, limits=EpisodeLimits(max_backoff=0.0), max_concurrent=32) as manager:
        return probe(config, agent, f"noisy:{noise}", manager, seconds=seconds, watch=lambda *_: None, **sizes)


def texts(found, level):
    return " ".join(remark.text for remark in found.remarks if remark.level == level)


def test_an_honest_environment_has_no_fault():
    found = probed("Sum")
    assert not found.red
    assert not found.again.differences
    assert found.again.episodes == 8
    assert found.told.informative(8)[0] > 0.5
    assert max(floor.success[0] for floor in found.floors) < 0.3


def test_a_reward_that_depends_on_the_clock_is_found():
    found = probed("Clock")
    assert found.red
    assert found.again.differences  # an episode between whose gradings a second ends shows none
    assert all("the reward of turn 1 was" in each for each in found.again.differences)


def test_a_constant_answer_that_wins_is_found():
    best = max(probed("Constant").floors, key=lambda floor: floor.success[0])
    assert best.name.endswith("\\boxed{7}")
    assert best.success[0] > 0.3
    weak = probed("Constant", noise=1.0)
    assert weak.red
    assert weak.remarks[0].level == "red"
    assert "solves more than the model" in weak.remarks[0].text


@pytest.mark.integration
def test_a_constant_answer_is_worth_a_word_though_the_model_is_better():
    found = probed("Constant", noise=0.3)
    assert not found.red
    assert "\\boxed{7}" in texts(found, "amber")


@pytest.mark.integration
def test_a_floor_that_is_paid_without_solving_leads_to_a_setting():
    found = probed("Paid")
    assert "and solves no more" in texts(found, "red")
    assert ("rewards.success_only=true",) in [each.settings for each in found.advice]


def test_failures_are_no_reward_of_0():
    found = probed("Broken", noise=0.0)
    failed = found.told.count("failed")
    assert 0 < failed < len(found.told.tasks)
    assert found.told.success[0] == 1.0
    assert found.told.count("too easy") == len(found.told.tasks) - failed
    assert "episodes failed" in texts(found, "red")
    assert "in no rate; the first: planted" in texts(found, "red")


@pytest.mark.integration
def test_a_cheating_program_is_found():
    found = probed("Program")
    assert "exits with 0” solves tasks by cheating" in texts(found, "red")


def test_without_time_nothing_is_said():
    with pytest.raises(UsageError, match="--minutes"):
        probed("Sum", seconds=0.0)


def test_the_page_has_the_faults_first():
    found = probed("Constant", noise=1.0)
    result = page_result(found)
    assert [level for level, _ in result["remarks"]] == ["red", "good"]
    floors = next(table["rows"] for table in result["tables"] if table["title"].startswith("Floors"))
    assert floors[1][0].endswith("\\boxed{7}")
    assert floors[1][-1] == "solves more than the model"
    json.dumps([found.to_dict(), result], allow_nan=False)


@pytest.mark.parametrize("fault", ["Sum", "Clock"])
def test_the_command_writes_a_folder_and_says_by_its_exit_code_whether_to_mend(rollenv_command, tmp_path, fault):
    done = rollenv_command("probe", f"planted:{fault}-v0", "-a", "noisy:0.7", "-n", "6", "-k", "4")
    assert done.returncode == (fault != "Sum"), done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    page = (folder / "report.html").read_text()
    assert "Floors: what is earned without skill" in page
    assert ("do not give the same" in page) == (fault == "Clock")
    assert len((folder / "episodes.jsonl").read_text().splitlines()) == 24
    written = json.loads((folder / "probe.json").read_text())
    assert [len(task["rewards"]) for task in written["told"]["tasks"]] == [4] * 6


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("planted:Sum-v0", "-a", "nobody"), "no agent"),
        (("planted:Sum-v0", "planted:Clock-v0"), "KEY=VALUE"),
        (("planted:Sum-v0", "-a", "random", "--set", "rollout.group_sise=3"), "group_size"),
        (("planted:Sum-v0", "-a", "random", "top=3"), "top"),
        (("planted:None-v0", "-a", "random"), "planted:None-v0"),
    ],
)
def test_a_mistake_is_said_in_a_line(rollenv_command, args, says):
    done = rollenv_command("probe", *args)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_a_model_is_probed_in_tokens(rollenv_command, tmp_path):
    small = [word for key in ("steps=2", "episodes=20", "batch_size=8") for word in ("--set", f"model.warm_up.{key}")]
    out = tmp_path / "out of it"
    done = rollenv_command("probe", "game:GuessTheNumber-v0-easy", *small, "-n", "4", "-k", "4", "--out", str(out))
    assert done.returncode in (0, 1), done.stderr
    found = json.loads((out / "probe.json").read_text())
    assert found["iteration"]["update"] > 0
    assert (out / "tokenizer" / "tokenizer.json").is_file()
    assert found["limits"]["tokens of a prompt"] >= found["lengths"]["tokens of a prompt"][2] > 0
    again = rollenv_command("probe", "game:GuessTheNumber-v0-easy", "-a", "random", "--out", str(tmp_path))
    assert again.returncode == 2
    assert "holds something else" in again.stderr


# -- numbers -----------------------------------------------------------------------------------------------------------

REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=7)


@given(REWARDS, st.integers(2, 7))
def test_the_share_of_informative_groups_is_that_of_all_subsets(rewards, size):
    subsets = list(itertools.combinations(rewards, min(size, len(rewards))))
    differ = sum(len(set(subset)) > 1 for subset in subsets) / len(subsets)
    assert math.isclose(informative(rewards, size), differ, abs_tol=1e-12)
    assert informative(rewards, size) <= informative(rewards, size + 1) + 1e-12


COUNTS = st.builds(
    lambda won, lost, failed: TaskCounts("seed 0", won, failed, (1.0,) * won + (0.0,) * lost),
    st.integers(0, 16),
    st.integers(0, 16),
    st.integers(0, 2),
)
SEEN = st.fixed_dictionaries(
    {name: st.floats(0, 1) for name in ("answers_cut", "truncated", "full")} | {"cut_solved": st.integers(0, 1)}
)


@pytest.mark.parametrize("env_id", ["planted:Sum-v0", "game:Sokoban-v0-easy", "math:Arithmetic-v0-digit"])
@pytest.mark.parametrize("model", ["MODEL", "tiny"])
def test_every_setting_that_is_advised_exists(env_id, model):
    config, env_spec = load_config(env_id, [f"model={model}"]), rollenv.spec(env_id)

    @given(st.lists(COUNTS, min_size=1, max_size=6), SEEN, st.integers(1, 6), st.floats(0, 2))
    def check(tasks, seen, distinct, reward):
        told = Taught(tasks, (0.3, 0.2, 0.4), (0.3, 0.2, 0.4), {}, distinct, 0)
        floors = [FloorResult("does nothing", "unearned", 64, (0.0, 0.0, 0.1), reward, 0.01)]
        judge(floors, told)
        given_ = advice(config, env_spec, told, seen, floors)
        assert all(allowed(config, each.settings) not in (None, config) for each in given_ if each.settings)
        easy, hard = (told.count(verdict) for verdict in ("too easy", "too hard"))
        assert given_ or not easy > hard or told.informative(config.rollout.group_size)[0] >= ENOUGH
        if told.informative(config.rollout.group_size)[0] > 0.9:
            assert not {"prompt.examples=5", "tasks.kind=curriculum"} & {s for each in given_ for s in each.settings}

    check()


class Failing:
    def start(self, env, seed):
        raise AgentFailed("never")


@pytest.mark.parametrize(
    ("env_id", "says"),
    [("multi:Nim-v0-seats", "can teach"), ("gymnasium:CartPole-v1", "is not known: episodes of every task failed")],
)
def test_agents_without_skill_play_no_games_and_nothing_that_always_fails(env_id, says):
    config, agent = load_config(env_id, ["model=MODEL"]), Failing() if env_id.startswith("gym") else OracleAgent(0.5)
    with RolloutManager(agent, limits=EpisodeLimits(max_backoff=0.0)) as manager:
        found = probe(config, agent, "noisy", manager, n=2, k=4, seconds=30.0, watch=lambda *_: None)
    assert found.floors == []
    assert any(says in remark.text for remark in found.remarks), found.remarks


@pytest.mark.parametrize(("wins", "solved", "above"), [(1, 0, False), (3, 1, False), (8, 0, True), (8, 4, False)])
def test_a_floor_is_above_the_model_beyond_chance_on_both_sides(wins, solved, above):
    tasks = [TaskCounts(f"seed {i}", 8 * (i < solved), 0, (float(i < solved),) * 8) for i in range(4)]
    share = sum(task.solved for task in tasks) / 32
    told = Taught(tasks, (share, 0.0, 1.0), (share, share - 1, share + 1), {}, 4, 0)
    floor = FloorResult("a guess", "constant", 8, (wins / 8, 0.0, 1.0), wins / 8, 0.1)
    judge([floor], told)
    assert (floor.above == "solves more than the model") == above


@pytest.mark.parametrize(
    ("info", "first"),
    [
        ({}, ""),
        ({"legal_actions": []}, ""),
        ({"admissible_commands": ["look", "go"]}, "look"),
        ({"available_actions": {"has_search_bar": False, "clickables": ["b1"]}}, "click[b1]"),
        ({"valid_actions": 3}, ""),
    ],
)
def test_the_first_admissible_action(info, first):
    assert first_admissible(info) == first


@pytest.mark.integration
def test_the_command_to_train_has_the_settings_that_were_probed(rollenv_command):
    args = ("-n", "4", "-k", "4", "--set", "rollout.group_size=4", "--seed", "3", "--json")
    found = rollenv_command("probe", "game:GuessTheNumber-v0-easy", "max_turns=3", "-a", "random", *args)
    command = "rollenv train game:GuessTheNumber-v0-easy model=MODEL env.kwargs.max_turns=3 rollout.group_size=4 seed=3"
    assert json.loads(found.stdout)["command"].startswith(command)
