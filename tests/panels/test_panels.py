"""Panels: their files, what they fix, what keeps them out of training, and what finds a result that was changed."""

import dataclasses
import json
import random
import textwrap
from pathlib import Path

import numpy as np
import pytest
from packages import declare

import rollenv
from rollenv import UsageError
from rollenv.agents.by_name import agent_named
from rollenv.panels import PanelError, load_panel, panels
from rollenv.panels.check import Watched, check, check_workers, overlap
from rollenv.panels.identity import identities
from rollenv.panels.make import assemble, draw_part
from rollenv.panels.page import read_results, write_page
from rollenv.panels.panel import read_panel
from rollenv.panels.trained import trained_tasks
from rollenv.panels.verify import seal
from rollenv.rollout.evaluate import evaluate, summarise
from rollenv.rollout.records.storage import read
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure
from rollenv.rollout.workers.processes import ProcessWorkers
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.tasks import EnvConfig, RowsConfig
from rollenv.trainers.sources import SeedSource, TaskTemplate, task_seed
from rollenv.trainers.sources.apart import Apart, refuse_members

ROOM = "game:Sokoban-v0-tiny"
OWN = [name for name in panels() if not load_panel(name).source]
MORE = [name for name in panels() if load_panel(name).source]


def small(name="small", n=8, **how):
    kwargs = {"split": "test"}
    return assemble(name, [draw_part(ROOM, n, kwargs, training={"split": "train"}, draws=50, **how)])


# -- rollenv's own -----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("name", [each for each in OWN if each != "tools-200"])
def test_our_panels_are_the_same_tasks_here_and_apart_from_training(name):
    panel = load_panel(name)
    found = check(panel, draws=100)
    assert found.problems(panel) == []
    assert len(panel.members) == found.members


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MORE, "tools-200"])
def test_our_panels_of_other_peoples_data_are_the_same_tasks_here(name):
    panel = load_panel(name)
    if missing := [need for part in panel.parts for need in rollenv.spec(part.env).missing]:
        pytest.skip(f"{name} needs {missing[0]}")
    assert check(panel, draws=50).problems(panel) == []


# -- files -------------------------------------------------------------------------------------------------------------


def test_agents_without_tokens_play_what_fixes_them_and_an_id_counts_once(tmp_path, rollenv_command):
    make = ("panel", "make", ROOM, ROOM, "split=test", "-n", "2", "--max-tokens", "9", "--name", "short")
    assert rollenv_command(*make).returncode == 0
    assert len(read_panel(tmp_path / "short.toml").members) == 2
    done = rollenv_command("eval", "short.toml", "-a", "oracle", "--out", "result")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result" / "result.json").read_text())["max_tokens"] == 9


def test_a_panel_is_read_as_it_was_written(tmp_path):
    panel = small()
    again = read_panel(panel.save(tmp_path))
    assert (again.identity, again.tasks()) == (panel.identity, panel.tasks())
    with pytest.raises(UsageError, match="exists"):
        panel.save(tmp_path)


@pytest.mark.parametrize(
    ("ending", "before", "after"),
    [
        (".toml", 'split" = "test"', 'split" = "train"'),
        (".toml", "members = 8", "members = 9"),
        (".toml", "k = 1", "k = 2"),
        (".toml", "[protocol]", "[protocol]\nunknown = 1"),
        (".toml", "hash = ", "hash = {"),
        (".toml", 'name = "small"', 'name = "../small"'),
        (".jsonl", "[1", "[2"),
        (".jsonl", "null", "3"),
        (".jsonl", "[", "[["),
        (".jsonl", "]", ', "more"]'),
        (".jsonl", '"', ""),
    ],
)
def test_a_file_that_was_changed_is_no_panel(tmp_path, ending, before, after):
    file = small(seed=10**9).save(tmp_path)
    other = file.with_suffix(ending)
    text = other.read_text()
    assert before in text
    other.write_text(text.replace(before, after, 1))
    with pytest.raises(PanelError):
        read_panel(file)


@pytest.mark.parametrize("line", ["kwargs = { d = 2020-01-01 }", f"x = {'[' * 9999}", f"x = {'9' * 9999}"])
def test_a_file_that_holds_what_a_panel_cannot_is_none(tmp_path, line):
    file = small().save(tmp_path)
    file.write_text(f"{line}\n".join(file.read_text().rsplit("kwargs", 1)[:1]) + f"{line}\n")
    with pytest.raises(PanelError):
        read_panel(file)


def test_what_cannot_be_read_again_is_not_written(tmp_path):
    (tmp_path / "small.jsonl").write_text("my questions")
    with pytest.raises(UsageError, match="exists"):
        small().save(tmp_path)
    assert (tmp_path / "small.jsonl").read_text() == "my questions"
    panel = small()
    part = panel.parts[0].model_copy(update={"kwargs": {"split": None}})
    with pytest.raises(UsageError, match="None"):
        dataclasses.replace(panel, parts=[part]).save(tmp_path / "more")


def test_a_file_names_no_code_unless_it_is_trusted(tmp_path, rollenv_command):
    panel = small()
    part = panel.parts[0].model_copy(update={"env": "subprocess:run"})
    file = dataclasses.replace(panel, parts=[part]).save(tmp_path)
    with pytest.raises(UsageError, match="--trust"):
        read_panel(file)
    for command in ("eval", "bench"):
        assert "--trust" in rollenv_command(command, str(file)).stderr
        assert "--trust" not in rollenv_command(command, str(file), "--trust").stderr


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_members_are_made_the_same_in_workers():
    panel = small()
    pool = ProcessWorkers(2)
    assert check_workers(panel, pool) == []
    member = panel.members[0]
    wrong = dataclasses.replace(panel, members=[member._replace(seed=member.seed + 1), *panel.members[1:]])
    assert len(check_workers(wrong, ProcessWorkers(1))) == 1
    assert len(check(wrong, draws=10).differing) == 1


def test_parts_that_differ_by_wrappers_are_other_tasks():
    plain, wrapped = Task(ROOM, 5), Task(ROOM, 5, {}, {"concat": {}})
    both = list(identities([plain, wrapped]))
    assert both[0].shows != both[1].shows
    panel = small(n=2)
    twice = [panel.parts[0], panel.parts[0].model_copy(update={"wrappers": {"concat": {}}})]
    with pytest.raises(PanelError, match="twice"):
        Watched(dataclasses.replace(panel, parts=twice, members=[*panel.members] * 2))


def test_a_member_that_cannot_be_begun_is_named():
    panel = small(n=2)
    broken = dataclasses.replace(panel, members=[panel.members[0], panel.members[1]._replace(row=3)])
    with pytest.raises(PanelError, match="member 1"):
        check(broken, draws=1)


def test_turned_and_mirrored_boards_are_alike_and_in_one_split():
    found = {split: {each.alike for each in identities(_rooms(split))} for split in ("train", "test")}
    assert not found["train"] & found["test"]
    env = rollenv.make("ragen:FrozenLake-v0")
    keys = set()
    for turn in range(4):
        env.reset(3)
        state = env.unwrapped.get_state()
        for _ in range(turn):
            state["env"] |= _turned(state["env"], env.unwrapped.size)
        env.unwrapped.set_state(state)
        keys.add(env.unwrapped.alike_key())
    assert len(keys) == 1


def _rooms(split):
    return [Task(ROOM, seed, {"split": split}) for seed in range(300)]


def _turned(state, size):
    def place(cell):
        return cell % size * size + size - 1 - cell // size

    return {**{name: place(state[name]) for name in ("player", "goal")}, "holes": sorted(map(place, state["holes"]))}


def test_what_is_alike_is_left_out_and_what_leaks_is_counted():
    lake = "ragen:FrozenLake-v0"
    plain = [Task(lake, seed) for seed in range(3)]
    part, members = draw_part(lake, 3, training={}, draws=200)
    clean = assemble("clean", [(part, members)])
    assert check(clean, draws=200).problems(clean) == []
    assert overlap(clean, plain) == []
    leaking = assemble("leaking", [draw_part(lake, 3, seed=0, training={}, alike=True)])
    found = check(leaking, draws=200)
    assert (len(found.equal), len(found.alike)) == (3, 3)
    assert found.problems(leaking)
    assert check(dataclasses.replace(leaking, alike_in_training=3), draws=200).problems(leaking)
    with pytest.raises(UsageError, match="fewer than"):
        draw_part("game:GuessTheNumber-v0", 50, {"min_number": 1, "max_number": 3})


def test_evaluations_of_a_panel_play_every_member_once():
    panel = small()
    result = evaluate(agent_named("oracle"), panel.name, tasks=panel.tasks())
    assert [t.task for t in result.trajectories] == panel.tasks()
    assert result.success == 1.0


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def result(tmp_path, rollenv_command):
    """A result of a noisy agent on a small panel, in the folder ``result``."""
    panel = small()
    panel.save(tmp_path)
    done = rollenv_command("eval", "small.toml", "-a", "noisy:0.5", "--out", "result", "--json")
    assert done.returncode == 0, done.stderr
    return tmp_path / "result"


def verify(rollenv_command, *args):
    return rollenv_command("panel", "verify", "result", "--panel", "small.toml", "-w", "inline", *args)


def test_a_result_carries_its_panel_and_is_verified(result, rollenv_command):
    assert json.loads((result / "result.json").read_text())["panel"] == small().identity
    assert verify(rollenv_command).returncode == 0


def _edit_lines(folder, change):
    file = folder / "episodes.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def _reward(lines):
    lines[2]["turns"][-1]["reward"] += 0.25
    return lines


@pytest.mark.parametrize("change", [_reward, lambda lines: lines[::-1]], ids=["a reward", "another order"])
def test_changed_episodes_are_found(result, rollenv_command, change):
    _edit_lines(result, change)
    done = verify(rollenv_command)
    assert done.returncode == 1
    assert "seal" in done.stderr


@pytest.mark.parametrize("file", ["eval.json", "result.json"])
def test_changed_settings_are_found(result, rollenv_command, file):
    data = json.loads((result / file).read_text())
    (result / file).write_text(json.dumps(data | {"agent": "oracle"}))
    assert verify(rollenv_command).returncode == 1


def test_rewards_that_were_changed_everywhere_are_found_by_playing_again(result, rollenv_command):
    """Whoever makes all files agree has still not played it."""

    def paid(lines):
        for line in lines:
            line["success"], line["turns"][-1]["reward"] = True, 1.0
        return lines

    _edit_lines(result, paid)
    counted = summarise("small", list(read(result / "episodes.jsonl")), 1, 0.0).to_dict()
    _write_numbers(result, counted)
    done = verify(rollenv_command)
    assert done.returncode == 1
    assert "when they are played again" in done.stderr
    assert verify(rollenv_command, "--sample", "0").returncode == 0


@pytest.mark.parametrize("value", ["high", None, float("nan"), 10**400, [1]])
def test_a_result_whose_numbers_are_none_is_on_no_page(tmp_path, value):
    numbers = dict.fromkeys(("n", "k", "success", "low", "high", "reward", "failed"), 1)
    (tmp_path / "result.json").write_text(json.dumps({"panel": {}, "agent": "a", **numbers, "success": value}))
    with pytest.raises(UsageError, match="success"):
        read_results([tmp_path])


def test_a_broken_or_strange_file_of_another_package_hides_no_panel(tmp_path, monkeypatch, rollenv_process):
    folder = tmp_path / "theirs"  # without __init__.py
    declare(tmp_path, "theirs", "[rollenv.panels]\ntheirs = theirs\n")
    small().save(folder)
    (folder / "ruff.toml").write_text("line-length = 100")
    for ending in (".toml", ".jsonl"):
        (folder / f"broken{ending}").write_text("{")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = rollenv_process("panel", "list", "--json")
    assert {"small", "kuhn"} <= {each["name"] for each in json.loads(done.stdout)}
    assert "broken.toml" in done.stderr
    assert "ruff" not in done.stderr


def test_tasks_that_are_all_alike_make_no_panel():
    with pytest.raises(UsageError, match="0 tasks"):
        draw_part(f"data:{Path(__file__).with_name('questions.jsonl')}", training={})


def _reward_moved(lines):
    turns = lines[0]["turns"]
    turns[0]["reward"], turns[-1]["reward"] = turns[-1]["reward"] + 1, turns[0]["reward"] - 1
    return lines


@pytest.mark.parametrize(
    "change",
    [
        _reward_moved,
        lambda lines: [
            lines[0] | {"status": {"terminated": "truncated"}.get(lines[0]["status"], "terminated")},
            *lines[1:],
        ],
        lambda lines: [lines[0] | {"final_observation": "You won."}, *lines[1:]],
    ],
    ids=["a reward moved", "another end", "another last text"],
)
def test_what_leaves_all_numbers_as_they_are_is_found_by_playing_again(result, rollenv_command, change):
    _edit_lines(result, change)
    _write_numbers(result, {})
    assert "1 of 8 episodes differ when they are played again" in verify(rollenv_command).stderr


@pytest.mark.parametrize("file", ["episodes.jsonl", "result.json", "eval.json"])
def test_a_result_without_one_of_its_files_is_said(result, rollenv_command, file):
    (result / file).unlink()
    done = verify(rollenv_command)
    assert (done.returncode, done.stderr.startswith("error: cannot read")) == (2, True)


def _write_numbers(folder, numbers):
    """Change numbers of a result and seal it anew."""
    numbers = json.loads((folder / "result.json").read_text()) | numbers
    (folder / "result.json").write_text(json.dumps(numbers | {"seal": seal(folder, numbers)}))


@pytest.mark.parametrize("name", ["n", "low", "high", "turns", "pass_at", "pass_all", "distinct", "failures", "cut"])
def test_every_number_is_computed_anew(result, rollenv_command, name):
    _write_numbers(result, {name: 0.123})
    assert f"says {name}=0.123" in verify(rollenv_command).stderr


def test_the_protocol_holds_whatever_all_files_say(result, rollenv_command):
    settings = json.loads((result / "eval.json").read_text())
    (result / "eval.json").write_text(json.dumps(settings | {"k": 2}))
    _write_numbers(result, {"k": 2})
    assert "fixes k=1" in verify(rollenv_command).stderr


def _wrapped(lines):
    lines[0]["task"]["wrappers"] = {"strange:Wrapper": {}}
    return lines


def _one_more(lines):
    return [*lines, lines[0] | {"member": 1}]


@pytest.mark.parametrize("change", [_wrapped, _one_more])
def test_an_episode_by_other_rules_is_of_no_member_and_runs_no_code(result, rollenv_command, change):
    (result.parent / "strange.py").write_text("open('ran', 'w')")
    _edit_lines(result, change)
    assert "of no member" in verify(rollenv_command).stderr
    assert not (result.parent / "ran").exists()


def test_what_was_only_counted_is_said(result, rollenv_command):
    """Whoever says that a program played keeps its episodes from being played again: it shows."""
    _edit_lines(result, lambda lines: [line | {"record": {"program": "x"}} for line in lines])
    _write_numbers(result, {})
    assert "0 of them played again" in verify(rollenv_command).stdout


def test_an_answer_that_is_another_here_is_found_though_every_agent_sees_the_same(tmp_path, rollenv_command):
    file = tmp_path / "q.jsonl"
    rows = [{"question": f"{name}?", "answer": 1} for name in "abc"]
    file.write_text("\n".join(map(json.dumps, rows)))
    panel = assemble("q", [draw_part(f"data:{file}", 2)])
    panel.save(tmp_path / "panels")
    file.write_text(file.read_text().replace("1", "2"))
    assert rollenv_command("eval", "panels/q.toml", "-a", "oracle", "--out", "result").returncode == 0
    done = rollenv_command("panel", "verify", "result", "--panel", "panels/q.toml", "-w", "inline")
    assert "2 members are other tasks here" in done.stderr
    with pytest.raises(PanelError, match="other tasks"):
        Apart(SeedSource(TaskTemplate(ROOM)), panel)


def test_failed_episodes_are_a_problem(result, rollenv_command):
    _edit_lines(result, lambda lines: [lines[0] | {"status": "failed", "failure": "lost"}, *lines[1:]])
    assert "1 episodes failed" in verify(rollenv_command).stderr


def test_what_a_panel_fixes_cannot_be_changed(tmp_path, rollenv_command):
    small().save(tmp_path)
    for option in (["-n", "3"], ["--seed", "1"], ["-k", "2"], ["split=train"], ["--wrappers", "concat"]):
        done = rollenv_command("eval", "small.toml", "-a", "random", *option)
        assert done.returncode == 2, option
        assert "fixes" in done.stderr


def test_results_of_different_panels_do_not_compare(tmp_path, rollenv_command):
    small().save(tmp_path)
    small("other", n=7).save(tmp_path)
    for panel, agent, out in (("small", "random", "a"), ("small", "oracle", "b"), ("other", "random", "c")):
        assert rollenv_command("bench", f"{panel}.toml", "-a", agent, "--out", out).returncode == 0
    assert rollenv_command("bench", "compare", "a", "b").returncode == 0
    assert [each["agent"] for each in read_results([tmp_path])] == ["random", "oracle", "random"]
    assert rollenv_command("eval", "small.toml", "-a", "oracle", "--out", "of eval").returncode == 0
    assert rollenv_command("bench", "compare", "a", "of eval").returncode == 0
    done = rollenv_command("bench", "compare", "a", "c")
    assert done.returncode == 2
    assert "do not compare" in done.stderr
    done = rollenv_command("panel", "verify", "a", "--panel", "small.toml", "-w", "inline")
    assert done.returncode == 0, done.stderr


def test_an_environment_elsewhere_that_shows_something_else_ends_the_evaluation(tmp_path, rollenv_command):
    panel = small()
    member = panel.members[3]
    members = [*panel.members[:3], member._replace(shows="00000000"), *panel.members[4:]]
    dataclasses.replace(panel, members=members).save(tmp_path)
    done = rollenv_command("eval", "small.toml", "-a", "random")
    assert done.returncode == 1
    assert f"seed {member.seed}" in done.stderr


def test_the_page_of_results_is_what_the_stored_results_say():
    root = Path(__file__).parents[2]
    assert (root / "docs" / "results.md").read_text() == write_page(
        read_results([root / "benchmarks" / "results" / "panels"])
    )


def test_a_result_on_no_panel_is_on_no_page(tmp_path, rollenv_command):
    rollenv_command("eval", ROOM, "-n", "2", "--out", "plain")
    with pytest.raises(UsageError, match="no panel"):
        read_results([tmp_path / "plain"])


def test_a_result_that_was_changed_is_on_no_page(tmp_path, rollenv_command):
    rollenv_command("eval", "kuhn", "--out", "result")
    file = tmp_path / "result" / "result.json"
    assert rollenv_command("panel", "page", "result", "--out", "page.md").returncode == 0
    file.write_text(json.dumps(json.loads(file.read_text()) | {"success": 0.99}))
    changed = rollenv_command("panel", "page", "result", "--out", "other.md")
    assert changed.returncode == 2
    assert "panel verify result" in changed.stderr


# -- in training -------------------------------------------------------------------------------------------------------


def test_training_passes_over_what_is_alike_a_member(tmp_path):
    """The lake has no split: seeds from 0 on are tasks for training, and some of them members."""
    lake = "ragen:FrozenLake-v0"
    seeds = [task_seed(0, number) for number in (0, 2, 5)]
    drawn = [draw_part(lake, 1, seed=seed) for seed in seeds]
    panel = assemble("leaking", drawn)
    source = Apart(SeedSource(TaskTemplate(lake)), panel)
    tasks = [next(source) for _ in range(4)]
    assert [task.seed for task in tasks] == [task_seed(0, number) for number in (1, 3, 4, 6)]
    assert source.metrics()["passed_over"] == 3
    state = source.state_dict()
    again = Apart(SeedSource(TaskTemplate(lake)), panel)
    again.load_state_dict(state)
    assert again.passed_over == 3
    assert next(again) == next(source)


def test_a_task_that_cannot_be_begun_is_left_to_fail_where_it_is_played(tmp_path, monkeypatch):
    code = """
        from rollenv import Env

        class Broken(Env):
            def _reset(self, options):
                if self.np_random.integers(2):
                    raise RuntimeError("broken")
                return "a", {}
    """
    (tmp_path / "half_broken.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    env = "half_broken:Broken"
    seed = next(seed for seed in range(99) if np.random.default_rng(seed).integers(2) == 0)
    panel = assemble("half", [draw_part(env, 1, seed=seed, alike=True)])
    source = Apart(SeedSource(TaskTemplate(env)), panel)
    for _ in range(5):
        task = next(source)
        with pytest.raises(EnvFailure):
            list(identities([task]))


@pytest.mark.parametrize(
    ("env", "kwargs"), [(ROOM, {"split": "test"}), (f"data:{Path(__file__).with_name('questions.jsonl')}", {})]
)
def test_training_on_a_member_is_refused_before_anything_begins(env, kwargs, tmp_path):
    if env == ROOM:
        file = small().save(tmp_path)
    else:
        file = assemble("own", [draw_part(env, 2)]).save(tmp_path)
    settings = {"id": env, "kwargs": kwargs}
    config = TrainConfig.model_validate({"env": settings, "eval": {"panel": str(file)}})
    with pytest.raises(UsageError, match=r"another split|set env\.kwargs\.split"):
        refuse_members(config.env, RowsConfig() if kwargs == {} else config.tasks, config.eval.the_panel)


def test_a_published_leak_is_counted_in_members_not_in_tasks_for_training(tmp_path):
    """One member is like two questions for training."""
    questions = [{"question": f"{name} {number}?", "answer": "1"} for name, number in (("a", 1), ("a", 2), ("b", 3))]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, questions)))
    env = f"data:{tmp_path / 'q.jsonl'}"
    panel = assemble("leaks", [draw_part(env, 1)], alike_in_training=1)
    refuse_members(EnvConfig(id=env), RowsConfig(), panel)
    with pytest.raises(UsageError, match="member 0"):
        refuse_members(EnvConfig(id=env), RowsConfig(), dataclasses.replace(panel, alike_in_training=0))


def test_tasks_of_a_run_name_no_code_unless_they_are_trusted(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('[0, "subprocess:run", 5, {}, {}]\n')
    with pytest.raises(UsageError, match="--trust"):
        trained_tasks(tmp_path)
    assert [task.env_id for task in trained_tasks(tmp_path, trust=True)] == ["subprocess:run"]


# -- the counted fact --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "leaking"), [(1, 0), (8, 499), (128, 500)])
def test_lists_that_each_worker_shuffles_by_its_own_seed_leak(data, workers, leaking):
    """A published training code's way (facts in docs/guides/panels.md): goals [0, 500) of each worker's own list are
    for tests, the others for training."""
    data("webshop")
    env = rollenv.make("webshop:test-text", split="all")
    goals = list(range(env.unwrapped.num_tasks()))
    lists = []
    for worker in range(workers):
        order = list(goals)
        random.Random(233 + worker).shuffle(order)
        lists.append(order)
    tested = set(lists[0][:500])
    trained = {goal for order in lists for goal in order[500:]}
    assert len(tested & trained) == pytest.approx(leaking, abs=2)


def test_our_splits_share_no_goal_in_any_worker(data):
    data("webshop")
    panel = load_panel("webshop-small-500")
    assert len(check(panel).alike) == 0
