"""Learning from a teacher: another model, or the same one that has read how a sibling succeeded."""

from __future__ import annotations

import random
import shutil

import pytest
import torch

import rollenv
from rollenv import UsageError
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.config import load_config
from rollenv.trainers.experience import experience, with_successful_sibling
from rollenv.trainers.policies.averaged import Averaged
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.training_state import restore

ID = "test:Hidden-v0"
WORDS = ("w", "x", "y", "z")
SIZE = TinySize(hidden=32, layers=2, heads=2, intermediate=64)
TASK = Task(ID, 0)


class Hidden(rollenv.Env):
    """Guess the word of a task; only the task's name is shown."""

    reset_options = frozenset({"index"})

    def _reset(self, options):
        self.index = options.get("index", self.randint(4)) % 4
        return f"{'abcd'[self.index]}>", {}

    def _step(self, action):
        right = action == WORDS[self.index]
        return "", float(right), True, False, {"success": right}

    def num_tasks(self):
        return 40


@pytest.fixture(scope="module", autouse=True)
def _hidden(_words):
    rollenv.register(ID, "test_distill:Hidden", abilities=[], indexed=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model that guesses but repeats an answer that it was shown before, and one that knows the answers."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer(["a> b> c> d> w x y z"], 300)
    words = [tokenizer.encode(word) for word in WORDS]
    prompts = [tokenizer.encode(f"{name}>") for name in "abcd"]
    assert {len(word) for word in words} == {1}
    for seed, (name, knows) in enumerate((("student", False), ("teacher", True))):
        model, rng = build_model(SIZE, tokenizer, seed), random.Random(0)
        adam = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(300):
            rows = []
            for _ in range(16):
                i = rng.randrange(4)
                word = words[i] if knows else rng.choice(words)
                rows.append([*prompts[i], *word, *prompts[i], *word])
            ids = torch.tensor(rows)
            adam.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            adam.step()
        LocalAgent(model, tokenizer).save(root / name)
    return root


def trained(models, path, *overrides):
    settings = [
        "threads=1", "iterations=16", "checkpoint_every=16", f"env.id={ID}", "env.kwargs={}", "eval.kwargs={}",
        "tasks.kind=rows", f"model.path={models / 'student'}", "prompt.template='{observation}'",
        "rollout.groups_per_batch=16", "rollout.group_size=6", "rollout.max_new_tokens=1", "optimizer.lr=6e-3",
        "optimizer.warmup_iterations=0", "optimizer.final_lr=1.0", "optimizer.minibatch_sequences=4",
        "loss.entropy=0", "eval.episodes=40", "eval.every=16", f"run_dir={path}",
    ]  # fmt: skip
    recipe = load_config("sokoban", [*settings, *overrides])
    with Trainer(recipe, RunDir.create(recipe, "sokoban")) as run:
        run.fit()
    return read_rows(path / "metrics.jsonl")


@pytest.mark.integration
def test_what_a_teacher_knows_is_learnt_without_any_reward(models, tmp_path):
    teacher = ["distill.name=teacher", f"distill.path={models / 'teacher'}"]
    rows = trained(models, tmp_path / "run", *teacher, "distill.alone=true")
    assert rows[1]["success"] < 0.4
    assert sum(row["success"] for row in rows[-3:]) / 3 > 0.55
    assert rows[1]["taught"] == 1
    assert all(row["ratio"] > 0 and row["advantage/q100"] == 0 for row in rows[1:])


@pytest.mark.integration
def test_an_averaged_teacher_is_the_mean_of_the_steps_and_goes_on_after_a_checkpoint(models, tmp_path):
    mean = ["distill.name=sibling", "distill.decay=0.8", "distill.alone=true", "checkpoint_every=2", "eval.every=9"]
    whole = trained(models, tmp_path / "whole", *mean, "iterations=4", "keep_checkpoints=9")
    run, config = RunDir.resume(tmp_path / "whole")
    state = restore(config, run, {}, lambda *_: None)
    averaged, last = state.teacher.tensors(), dict(state.policy.weights)
    first = dict(LocalAgent.load(models / "student").model.named_parameters())
    away = {name: (averaged[name] - first[name]).norm() / (last[name] - first[name]).norm() for name in last}
    assert all(0 < share < 1 for share in away.values()), "between where it began and where the model is"
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-000004")
    with Trainer(config, RunDir(tmp_path / "again")) as again:
        again.fit()
    assert read_rows(tmp_path / "again" / "metrics.jsonl")[-1]["teacher_kl"] == whole[-1]["teacher_kl"]


def test_a_mean_follows_by_its_decay():
    tokenizer = build_tokenizer(["a"], 300)
    policies = [LocalPolicy(build_model(SIZE, tokenizer, seed)) for seed in (0, 1)]
    before = {name: weight.detach().clone() for name, weight in policies[0].weights.items()}
    mean = Averaged(policies[0], 0.75)
    mean.follow(policies[1])
    for name, weight in mean.tensors().items():
        torch.testing.assert_close(weight, 0.75 * before[name] + 0.25 * policies[1].weights[name].detach())
    with pytest.raises(ValueError, match="another model"):
        mean.load_state_dict({"x": torch.zeros(1)})


@pytest.mark.integration
def test_siblings_teach_only_members_of_groups_with_a_success(models, tmp_path):
    """Whether success rises is not asserted: on this task it does not, since the model is its own moving teacher."""
    rows = trained(models, tmp_path / "run", "distill.name=sibling", "distill.alone=true", "iterations=2")
    assert 0 < rows[1]["taught"] < 1
    assert all(row["optimizer_steps"] and row["advantage/q100"] == 0 for row in rows[1:3])


@pytest.mark.integration
def test_a_teacher_with_other_tokens_is_refused_before_anything_is_played(models, tmp_path):
    other = build_tokenizer(["something else"], 270)
    LocalAgent(build_model(SIZE, other, 0), other).save(tmp_path / "other")
    with pytest.raises(UsageError, match="vocabulary"):
        trained(models, tmp_path / "run", "distill.name=teacher", f"distill.path={tmp_path / 'other'}")
    with pytest.raises(UsageError, match="model"):
        trained(models, tmp_path / "none", "distill.name=teacher", f"distill.path={tmp_path / 'none of them'}")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["distill.alone=true", "algorithm.name=rloo"], "algorithm"),
        (["distill.alone=true", "correction.name=tis"], "correction"),
        (["distill.alone=true", "rewards.scale=2"], "rewards.scale"),
        (["distill.alone=true", "loss.name=gspo"], "loss.name"),
        (["distill.alone=true", "loss.clip_high=0.3"], "loss.clip_high"),
        (["distill.alone=true", "algorithm.name=ppo"], "distill.alone"),
        (["distill.alone=true", "kl.name=reward"], "distill.alone"),
        (["distill.path=model"], "distill.path"),
        (["distill.name=teacher", "distill.path=tiny"], "distill.path"),
        (["distill.name=teacher"], "distill.path"),
    ],
)
def test_settings_that_do_nothing_or_cannot_work_with_a_teacher_are_refused(settings, says):
    with pytest.raises(UsageError, match=says):
        load_config("sokoban", ["distill.name=sibling", *settings])


# -- siblings ----------------------------------------------------------------------------------------------------------


def batch(successes, turns=2):
    """Groups whose members succeeded or not; prompts of different lengths."""
    rng, groups = random.Random(0), []
    for g, group in enumerate(successes):
        members = []
        for success in group:
            played = []
            for k in range(turns):
                prompt, said = tuple(rng.choices(range(20), k=3 + k)), tuple(rng.choices(range(20), k=1 + g))
                played.append(Turn(prompt, said, tuple(-rng.random() for _ in said), 0.0, "", ""))
            members.append(Trajectory(TASK, played, "terminated", success=success))
        groups.append(Group(TASK, members, g))
    return groups


@pytest.mark.parametrize("kind", ["turn", "trajectory"])
def test_a_sample_is_read_after_the_next_success_of_its_group(kind):
    groups = batch([[True, False, True], [False, False], [False, True], [True]])
    data = experience(groups, kind)
    shown, taught = with_successful_sibling(data, 1000)
    teachers = {0: 2, 1: 2, 2: 0, 5: 6}
    assert taught == [i for i, s in enumerate(data.samples) if s.trajectory in teachers]
    for i, (plain, longer) in enumerate(zip(data.samples, shown.samples, strict=True)):
        sibling = teachers.get(plain.trajectory)
        before = [t for s in data.samples if s.trajectory == sibling for t in s.ids.tolist()]
        assert longer.ids.tolist() == [*before, *plain.ids.tolist()]
        assert shown.inputs[i].tolist() == [*before, *data.inputs[i].tolist()]
        assert longer.ids[longer.mask].tolist() == plain.ids[plain.mask].tolist()
        assert len(longer.mask) == len(longer.logprobs) == len(longer.turns) == len(longer.ids)
    assert [len(s) for s in data.samples] == [len(s) for s in experience(groups, kind).samples], "left as it was"


def test_what_is_longer_than_the_context_is_left_without_a_sibling():
    data = experience(batch([[True, False]]), "trajectory")
    first = next(i for i, s in enumerate(data.samples) if s.trajectory == 1)
    sizes = [len(s) for s in data.samples if s.trajectory == 0]
    need = sum(sizes) + len(data.samples[first])
    assert first in with_successful_sibling(data, need)[1]
    assert first not in with_successful_sibling(data, need - 1)[1]
    assert with_successful_sibling(data, 0)[1] == []
