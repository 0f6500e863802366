"""Sources of tasks: shares, epochs, outcomes, and a cursor that goes on exactly."""

import copy
import itertools
import json
import logging
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import UsageError
from rollenv.agents.base import OracleAgent, RandomAgent
from rollenv.core.curriculum import Curriculum, Schedule
from rollenv.core.env import Wrapper
from rollenv.rollout import filters
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.plain import from_plain, to_plain
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.sources import (
    CurriculumSource,
    DatasetSource,
    MixtureSource,
    Rows,
    Seeds,
    SeedSource,
    SourcedTask,
    SuccessAware,
    TaskTemplate,
    task_seed,
)

LAKE = TaskTemplate("roll:FrozenLake-v0", {"size": 4}, options={})
SUMS = TaskTemplate("math:Arithmetic-v0-easy")
ROWS = TaskTemplate("math:GSM8K")  # its size is passed, so no data are needed


def played(task, *successes, reward=None):
    turns = [Turn((), (), (), float(s) if reward is None else reward, "", "") for s in successes]
    return Group(task, [Trajectory(task, [turn], "terminated", s) for s, turn in zip(successes, turns, strict=True)])


def draw(source, n):
    return list(itertools.islice(source, n))


LEVELS = Curriculum("roll:FrozenLake-v0", {"size": [3, 4, 5, 6]})


def test_a_pool_of_distinct_tasks_has_each_once():
    few = TaskTemplate("math:Arithmetic-v0-digit", {"operands": [0, 2], "answers": [0, 2]})
    pool = Seeds(few, 1000, distinct=True)
    questions = [few_question(pool.task(item, 0)) for item in range(len(pool))]
    assert len(set(questions)) == len(questions) == 12  # six sums and six differences
    assert len(Seeds(few, 5, distinct=True)) == 5
    assert len({few_question(Seeds(few, 1000).task(item, 0)) for item in range(1000)}) == 12


def test_distinct_tasks_differ_in_what_wrappers_show():
    half = TaskTemplate("math:Arithmetic-v0-digit", wrappers={f"{__name__}:Signs": {}})
    assert len(Seeds(half, 50, distinct=True)) == 2, "a sum or a difference"


class Signs(Wrapper):
    """Shows the sign of a sum, not its numbers."""

    def reset(self, seed=None, **given):
        observation, info = super().reset(seed, **given)
        return "+" if "+" in observation else "-", info


def few_question(task):
    return rollenv.make(task.env_id, **task.kwargs).reset(task.seed)[0]


# -- every source, and nestings of them --------------------------------------------------------------------------------

leaves = st.one_of(
    st.tuples(st.just("seeds"), st.integers(0, 3)),
    st.tuples(st.just("rows"), st.integers(1, 7), st.booleans()),
    st.tuples(st.just("pool"), st.integers(1, 7)),
    st.tuples(st.just("curriculum"), st.integers(1, 6)),
    st.tuples(st.just("aware"), st.integers(1, 9), st.sampled_from([None, 0.5, 20.0]), st.integers(0, 4)),
)
shapes = st.recursive(
    leaves,
    lambda inside: st.tuples(
        st.just("mixture"), st.lists(st.tuples(st.sampled_from([0.1, 1, 2.5]), inside), min_size=1, max_size=3)
    ),
    max_leaves=5,
)


def build(shape, seed=0):
    match shape:
        case ("seeds", n):
            return SeedSource(LAKE, seed=seed + n)
        case ("rows", size, shuffle):
            return DatasetSource(Rows(ROWS, size=size), seed=seed, shuffle=shuffle)
        case ("pool", size):
            return DatasetSource(Seeds(SUMS, size), seed=seed)
        case ("curriculum", window):
            schedule = Schedule(4, window=window, review=0.3, up=0.6, down=0.4)
            return CurriculumSource(LAKE, LEVELS, schedule, seed=seed)
        case ("aware", size, half_life, apart):
            return SuccessAware(Rows(ROWS, size=size), seed=seed, half_life=half_life, apart=apart)
        case ("mixture", parts):
            return MixtureSource({f"m{i}": (ratio, build(one, seed + i)) for i, (ratio, one) in enumerate(parts)})


outcomes = st.lists(st.tuples(st.integers(0, 3), st.lists(st.booleans(), max_size=3)), max_size=20)


def drive(source, steps, waiting):
    """Draw a task a step, and record one of those that wait, in any order."""
    given = []
    for which, successes in steps:
        given.append(next(source))
        waiting.append(given[-1])
        if which < len(waiting):
            task = waiting.pop(which)
            source.record(task, played(task, *successes))
    return [(to_plain(task), task.origin) for task in given], source.metrics()


@given(shapes, outcomes, outcomes)
def test_a_restored_source_goes_on_as_if_nothing_had_happened(shape, before, after):
    source, other = build(shape), build(shape)
    waiting = []
    drive(source, before, waiting)
    last = next(source)
    source.record(last, played(last, True, False))  # its outcome is not in any metrics yet
    kept = copy.deepcopy(waiting)  # tasks under way when the checkpoint was written may still be recorded
    other.load_state_dict(json.loads(json.dumps(source.state_dict(), allow_nan=False)))
    assert other.state_dict() == source.state_dict()
    assert drive(other, after, kept) == drive(source, after, waiting)
    assert other.state_dict() == source.state_dict()


@given(shapes, outcomes)
def test_the_state_is_a_snapshot(shape, steps):
    source = build(shape)
    state = source.state_dict()
    text = json.dumps(state)
    drive(source, [*steps, (0, [True])], [])
    assert json.dumps(state) == text
    again = build(shape)
    again.load_state_dict(state)
    drive(again, [*steps, (0, [True])], [])
    assert json.dumps(state) == text


@pytest.mark.parametrize("wrong", [{}, [], {"drawn": -1}, {"drawn": "3"}, {"drawn": True, "size": 3}, None, {"a": {}}])
@pytest.mark.parametrize(
    "shape",
    [("seeds", 0), ("rows", 3, True), ("curriculum", 2), ("aware", 3, None, 0), ("mixture", [(1, ("seeds", 0))])],
    ids=lambda shape: shape[0],
)
def test_a_foreign_state_is_refused_and_changes_nothing(shape, wrong):
    source = build(shape)
    draw(source, 3)
    before = source.state_dict()
    with pytest.raises(UsageError):
        source.load_state_dict(wrong)
    assert source.state_dict() == before


def test_a_state_of_another_data_set_is_refused_also_inside_a_mixture():
    small = MixtureSource({"a": (1, build(("seeds", 0))), "b": (1, build(("rows", 3, True)))})
    large = MixtureSource({"a": (1, build(("seeds", 0))), "b": (1, build(("rows", 4, True)))})
    draw(large, 5)
    before = small.state_dict()
    with pytest.raises(UsageError, match="4 tasks"):
        small.load_state_dict(large.state_dict())
    assert small.state_dict() == before, "not half of it either"
    with pytest.raises(UsageError, match="4 tasks"):
        build(("aware", 3, None, 0)).load_state_dict(build(("aware", 4, None, 0)).state_dict())


@given(shapes, st.integers(1, 20))
def test_sources_are_endless_iterators_of_tasks_that_can_be_told_apart(shape, n):
    source = build(shape)
    assert iter(source) is source
    tasks = draw(source, n)
    assert all(isinstance(task, Task) for task in tasks)
    other = next(SeedSource(LAKE))
    stranger = SourcedTask.of(other, ("nobody",))
    for task in (Task(other.env_id, 0), stranger):
        with pytest.raises(UsageError):
            source.record(task, played(task, True))


# -- tasks that were drawn ---------------------------------------------------------------------------------------------


def test_a_drawn_task_is_a_task_apart_from_its_origin():
    task = Task("math:GSM8K", 3, {"a": 1}, {"w": {}}, {"index": 2})
    one, two = SourcedTask.of(task, (1,)), SourcedTask.of(task, ("m", 2))
    assert one == two == task
    assert task == one
    assert one.origin != two.origin
    assert from_plain(Task, json.loads(json.dumps(to_plain(one)))) == task, "files do not know of it"
    for twin in (pickle.loads(pickle.dumps(two)), copy.deepcopy(two), copy.copy(two)):
        assert (twin, twin.origin) == (two, two.origin)
    assert Trajectory(one) == Trajectory(task)


@pytest.mark.parametrize("workers", ["inline", pytest.param("2", marks=pytest.mark.slow)])
def test_groups_come_back_with_the_task_that_was_drawn(workers):
    from rollenv.rollout.workers.factory import make_workers

    lake = CurriculumSource(LAKE, LEVELS, Schedule(4, window=4, up=0.5, review=0.0))
    source = MixtureSource({"lake": (1, lake), "sums": (1, SeedSource(SUMS))})
    with make_workers(workers) as pool, RolloutManager(OracleAgent(), pool) as manager:
        for group in manager.batch(source, 6, 2, extra_groups=2):
            source.record(group.task, group)
    assert lake.schedule.level > 0, "the oracle rose"
    metrics = source.metrics()
    assert metrics["lake/success"] == metrics["sums/success"] == metrics["sums/reward"] == 1.0
    assert metrics["lake/drawn"] == metrics["sums/drawn"] == 4
    assert "lake/success" not in source.metrics(), "nothing was recorded since"


# -- seeds -------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**48), st.integers(0, 50), st.integers(1, 20))
def test_a_seed_depends_on_the_run_and_the_number_only(seed, start, n):
    whole = draw(SeedSource(LAKE, seed=seed), start + n)
    later = SeedSource(LAKE, seed=seed)
    later.load_state_dict({"drawn": start})
    assert [t.seed for t in draw(later, n)] == [t.seed for t in whole[start:]]
    assert len({t.seed for t in whole}) == len(whole)
    assert whole[0].seed != next(SeedSource(LAKE, seed=seed + 1)).seed
    assert all(0 <= t.seed < 2**48 and t.kwargs == {"size": 4} for t in whole)


# -- data sets ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 4))
def test_every_row_comes_once_an_epoch(size, seed, epochs):
    source = DatasetSource(Rows(ROWS, size=size), seed=seed)
    tasks = draw(source, size * epochs)
    orders = [tuple(t.options["index"] for t in tasks[e * size : (e + 1) * size]) for e in range(epochs)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert len({t.seed for t in tasks}) == len(tasks), "rows that come twice in a batch are not played alike"
    assert source.metrics() == {"drawn": size * epochs, "epoch": epochs}


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(seed, epoch):
        return [t.options["index"] for t in draw(DatasetSource(Rows(ROWS, size=50), seed=seed), 50 * (epoch + 1))][-50:]

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert [t.options["index"] for t in draw(DatasetSource(Rows(ROWS, size=3), shuffle=False), 7)] == [0, 1, 2] * 2 + [
        0
    ]


@pytest.fixture
def four_rows(monkeypatch):
    monkeypatch.setattr(rollenv.core.registry, "ENV_REGISTRY", dict(rollenv.core.registry.ENV_REGISTRY))
    rows = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(4)]
    entry = "rollenv.envs.math.env:MathEnv"
    rollenv.register("test:FourRows-v0", entry, abilities=["oracle"], indexed=True, dataset=rows)
    return TaskTemplate("test:FourRows-v0")


def test_an_environment_tells_its_size_and_plays_the_row_also_with_a_batch_beyond_an_epoch(four_rows):
    source = DatasetSource(Rows(four_rows))
    assert len(source.items) == 4
    with RolloutManager(RandomAgent()) as manager:
        groups = manager.batch(source, 10, 2)
    asked = [group.trajectories[0].turns[0].observation for group in groups]
    assert [f"What is {g.task.options['index']} " in text for g, text in zip(groups, asked, strict=True)] == [True] * 10
    assert Counter(g.task.options["index"] for g in groups[:8]) == dict.fromkeys(range(4), 2)


def test_the_goals_of_a_shop_are_rows():
    assert rollenv.spec("webshop:train-text").indexed
    task = next(DatasetSource(Rows(TaskTemplate("webshop:train-text"), size=5)))
    assert task.options.keys() == {"index"}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Rows(LAKE), "numbered"),
        (lambda: Rows(TaskTemplate("math:GSM8K", options={"index": 1}), size=3), "index"),
        (lambda: Rows(ROWS, size=0), "at least 1"),
        (lambda: Seeds(LAKE, 0), "at least 1"),
        (lambda: Seeds(TaskTemplate("game:GuessTheNumber-v0"), 9, distinct=True), "tasks.distinct"),
        (lambda: MixtureSource({}), "at least one"),
        (lambda: MixtureSource({"a": (0, SeedSource(LAKE))}), "above 0"),
        (lambda: MixtureSource({"a": (float("nan"), SeedSource(LAKE))}), "above 0"),
        (lambda: MixtureSource({"a": (float("inf"), SeedSource(LAKE))}), "above 0"),
        (lambda: MixtureSource({"a/b": (1, SeedSource(LAKE))}), "a/b"),
        (lambda: MixtureSource(dict.fromkeys("ab", (1, SeedSource(LAKE)))), "twice"),
        (lambda: SuccessAware(Rows(ROWS, size=3), explore=1.5), "explore"),
        (lambda: SuccessAware(Rows(ROWS, size=3), half_life=0), "half_life"),
        (lambda: SuccessAware(Rows(ROWS, size=3), apart=-1), "apart"),
        (lambda: CurriculumSource(SUMS, LEVELS), "FrozenLake"),
        (lambda: CurriculumSource(LAKE, LEVELS, Schedule(3)), "3 levels"),
        (lambda: filters.Bounded(filters.varied(), -1, 3), "drops"),
        (lambda: filters.Bounded(filters.varied(), 1, 0), "groups"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, says):
    with pytest.raises(UsageError, match=says):
        make()


# -- curricula ---------------------------------------------------------------------------------------------------------


def test_levels_follow_success_and_failures_do_not_count():
    source = CurriculumSource(LAKE, LEVELS, Schedule(4, window=4, review=0.0), seed=1)
    assert source.metrics() == {"drawn": 0, "level": 0}
    first, late = draw(source, 2)
    assert first.kwargs == {"size": 3}
    group = played(first, True, True, True, True)
    group.trajectories += [Trajectory(first, status="failed") for _ in range(4)]
    source.record(first, group)
    assert source.metrics()["level"] == 1
    assert next(source).kwargs == {"size": 4}
    source.record(late, played(late, False, False, False, False))
    assert source.metrics()["level"] == 1, "what was drawn at a level that was left does not move it"


# -- mixtures ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.floats(0.01, 100), st.integers(1, 9)), min_size=1, max_size=6), st.integers(1, 300))
def test_after_every_draw_each_source_has_its_share_to_within_a_task(ratios, n):
    source = MixtureSource({str(i): (ratio, SeedSource(LAKE)) for i, ratio in enumerate(ratios)})
    for draws in range(1, n + 1):
        next(source)
        for i, ratio in enumerate(ratios):
            assert abs(source.drawn[str(i)] - draws * ratio / sum(ratios)) < 1 + 1e-9


def test_ratios_are_exact_in_the_long_run():
    source = MixtureSource({name: (ratio, SeedSource(LAKE)) for name, ratio in (("a", 0.1), ("b", 0.2), ("c", 0.7))})
    draw(source, 1000)
    assert source.drawn == {"a": 100, "b": 200, "c": 700}


def test_equal_tasks_of_two_sources_are_recorded_where_they_came_from():
    sources = {name: CurriculumSource(LAKE, LEVELS, Schedule(4, window=2)) for name in ("a", "b")}
    source = MixtureSource({name: (1, inner) for name, inner in sources.items()})
    one, two = draw(source, 2)
    assert one == two
    source.record(two, played(two, True, True))
    assert (sources["a"].schedule.level, sources["b"].schedule.level) == (0, 1)
    metrics = source.metrics()
    assert (metrics["a/level"], metrics["b/level"], metrics["b/success"]) == (0, 1, 1.0)


# -- success-aware sampling --------------------------------------------------------------------------------------------


def test_tasks_that_are_sometimes_solved_are_drawn_most():
    truth = [0.0, 0.02, 0.5, 0.6, 0.98, 1.0]
    source = SuccessAware(Rows(ROWS, size=6), seed=3, apart=0, explore=0.05, half_life=None)
    drawn = Counter()
    for number, task in enumerate(itertools.islice(source, 1500)):
        item = task.options["index"]
        wins = [(task_seed(number, member) % 1000) / 1000 < truth[item] for member in range(8)]
        source.record(task, played(task, *wins))
        drawn[item] += number >= 500
    assert drawn[2] + drawn[3] > 800
    assert all(drawn[item] > 0 for item in range(6)), "all are explored"
    assert source.predicted() == pytest.approx(truth, abs=0.1)


def test_the_probability_of_a_task_is_the_variance_of_its_success():
    source = SuccessAware(Seeds(LAKE, 3), apart=0, explore=0.0, half_life=None)
    tasks = {task.origin[0]: task for task in draw(source, 60)}
    source.record(tasks[0], played(tasks[0], *[True] * 8))
    source.record(tasks[1], played(tasks[1], *[True] * 4, *[False] * 4))
    assert source.predicted() == pytest.approx([0.9, 0.5, 0.5])
    counts = Counter(task.origin[0] for task in draw(source, 6000))
    shares = [0.09 / 0.59, 0.25 / 0.59, 0.25 / 0.59]
    assert [counts[i] / 6000 for i in range(3)] == pytest.approx(shares, abs=0.03)


def test_what_was_recorded_long_ago_counts_less():
    source = SuccessAware(Seeds(LAKE, 2), apart=0, half_life=3.0)
    tasks = {task.origin[0]: task for task in draw(source, 40)}
    source.record(tasks[0], played(tasks[0], *[True] * 7))
    for _ in range(2):
        source.record(tasks[1], played(tasks[1], False))
    assert source.predicted()[0] == pytest.approx((1 + 7 / 2) / (2 + 7 / 2))  # three groups later, half


def test_an_item_is_not_drawn_again_at_once():
    source = SuccessAware(Seeds(LAKE, 10), apart=4)
    items = [task.origin[0] for task in draw(source, 300)]
    assert all(item not in items[max(0, i - 4) : i] for i, item in enumerate(items))
    seeds = {task.origin[0]: task.seed for task in draw(source, 300)}
    assert len(set(seeds.values())) == 10, "an item is its seed"


def test_a_task_that_is_drawn_again_is_played_anew():
    with RolloutManager(RandomAgent()) as manager:
        one, two = manager.batch(SuccessAware(Seeds(LAKE, 1), apart=0), 2, 4)
    assert one.task.seed == two.task.seed
    assert [[turn.text for turn in t.turns] for t in one] != [[turn.text for turn in t.turns] for t in two]


def test_groups_without_a_complete_trajectory_teach_nothing():
    source = SuccessAware(Seeds(LAKE, 2), apart=0)
    task = next(source)
    source.record(task, Group(task, [Trajectory(task, status="failed")]))
    assert source.predicted() == pytest.approx([0.5, 0.5])


# -- dynamic sampling --------------------------------------------------------------------------------------------------


def test_a_bounded_filter_fills_the_batch_with_what_is_there(caplog):
    keep = filters.Bounded(filters.varied(), drops=5, groups=4)
    with RolloutManager(OracleAgent()) as manager, caplog.at_level(logging.WARNING):
        for batch in (1, 2):
            groups = manager.batch(SeedSource(LAKE), 4, 2, keep=keep)  # the oracle always wins: no group is varied
            assert len(groups) == 4
            assert (keep.dropped, keep.let_through) == (5 * batch, 4 * batch)
            assert manager.stats.of["filtered"].trajectories == 10
    assert [record.message.split()[0] for record in caplog.records] == ["5", "5"], "once a batch"


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 4), st.integers(1, 4))
def test_a_bounded_filter_keeps_what_is_good_and_drops_no_more_than_it_may(good, drops, groups):
    keep = filters.Bounded(filters.varied(), drops, groups)
    dropped = kept = 0
    for varied in good:
        task = Task("x", 0)
        if keep(played(task, True, not varied)):
            kept += 1
        else:
            assert not varied
            dropped += 1
        assert dropped <= drops
        if kept == groups:
            dropped = kept = 0
