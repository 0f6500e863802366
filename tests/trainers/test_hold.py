"""What must not fail in silence: rounding, numbers that are not finite, resumed runs, keys that do nothing, hangs."""

from __future__ import annotations

import copy
import json
import logging
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import stuck
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rollenv
from rollenv import UsageError
from rollenv.agents.engines.local import load_weights
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core import registry
from rollenv.core.wrappers import TOKENIZER_REQUIRED, WRAPPER_FACTORY
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers import checkpoint, cpu_threads
from rollenv.trainers.config import load_config
from rollenv.trainers.cpu_threads import CpuThreads, idle_cores
from rollenv.trainers.experience import experience, micro_batches, minibatches
from rollenv.trainers.learner import TrainingError
from rollenv.trainers.objective import POLICY_LOSSES
from rollenv.trainers.player_engines import WeightSync
from rollenv.trainers.policies.attention import PackedRow
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer

SIZE = TinySize(hidden=32, layers=1, heads=2, intermediate=64)
IDS = torch.randint(0, 200, (8, 12), generator=torch.Generator().manual_seed(0))


def start(path, overrides, recipe="sokoban"):
    config = load_config(recipe, [*overrides, f"run_dir={path}"])
    return Trainer(config, RunDir.create(config, recipe))


def test_episodes_that_repeat_themselves_change_no_weight_and_are_counted(tmp_path, small, caplog):
    with start(tmp_path / "run", [*small, "rewards.drop_repetition=1"]) as trainer:
        learner = trainer.learner
        before = {name: w.clone() for name, w in learner.state.policy.named_weights()}
        data = learner.compute_advantages(trainer._collect({}), {})
        data.columns["advantages"][:] = 1.0
        data.columns["behavior"][:] = 0.0
        metrics = learner.update(data)
        assert metrics["dropped/repetition"] == len(data.trajectories)
        assert (metrics["trained_samples"], metrics["optimizer_steps"]) == (0, 0)
        assert all(torch.equal(w, before[name]) for name, w in learner.state.policy.named_weights())
        assert f"{len(data.trajectories)} by rewards.drop_repetition" in caplog.text
        data.columns["behavior"][data.trajectory == 0] = -0.5
        metrics = learner.update(data)
        assert metrics["dropped/repetition"] == len(data.trajectories) - 1
        assert metrics["trained_samples"] == sum(s.trajectory == 0 for s in data.samples)


def test_gibberish_beyond_the_vocabulary_is_reported(tmp_path, small):
    with pytest.raises(UsageError, match=r"drop_gibberish=100000 drops nothing"):
        start(tmp_path / "run", [*small, "rewards.drop_gibberish=100000"])


# -- bfloat16 ---------------------------------------------------------------------------------------------------------


def policy_of(dtype, seed=0, **settings):
    model = build_model(SIZE, build_tokenizer(["up down"], 300), seed).to(dtype)
    return model, LocalPolicy(model, betas=(0.9, 0.999), max_grad_norm=1e9, **settings)


def towards_texts(policy, lr, steps=1):
    """Steps towards fixed texts."""
    for _ in range(steps):
        for row in IDS:
            out = policy.model(input_ids=row[None], packed_row=PackedRow.of(len(row))).logits[0, :-1]
            policy.backward(torch.nn.functional.cross_entropy(out, row[1:]) / len(IDS))
        policy.step(lr)


def trained(dtype, *, masters=True, lr=1e-6, steps=20):
    """How far the trained weights moved in some steps; the player's model, which got them, and the policy."""
    model, policy = policy_of(dtype)
    before = {n: p.detach().float().clone() for n, p in model.named_parameters()}
    if masters:
        towards_texts(policy, lr, steps)
        load_weights(model, WeightSync("copy").weights(policy))
        after = policy.weights
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.0)
        for _ in range(steps):
            optimizer.zero_grad()
            model(input_ids=IDS, labels=IDS).loss.backward()
            optimizer.step()
        after = dict(model.named_parameters())
    moved = torch.cat([(after[n].detach().float() - before[n]).flatten() for n in before])
    return moved, model, policy


@pytest.mark.integration
def test_at_small_steps_bfloat16_weights_move_as_float32_ones_do():
    exact, rounded = trained(torch.float32)[0], trained(torch.bfloat16)[0]
    plain = trained(torch.bfloat16, masters=False)[0]
    real = exact.abs() > 1e-6
    assert (plain[real] != 0).float().mean() < 0.2, "what is mended: nearly no weight moved"
    assert (rounded[real] != 0).float().mean() > 0.95
    assert torch.corrcoef(torch.stack([exact[real], rounded[real]]))[0, 1] > 0.9
    assert rounded[real].abs().mean().item() == pytest.approx(exact[real].abs().mean().item(), rel=0.1)


@pytest.mark.slow
def test_the_players_weights_are_the_rounded_trained_ones_and_keep_their_type():
    _, model, policy = trained(torch.bfloat16, lr=1e-2, steps=3)
    assert {weight.dtype for weight in policy.weights.values()} == {torch.float32}
    for name, weight in model.named_parameters():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, policy.weights[name].bfloat16())
    model, policy = policy_of(torch.float32, share=True)
    assert all(policy.weights[name] is weight for name, weight in model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_would_round_small_steps_away_are_not_trained_in_place(dtype):
    with pytest.raises(UsageError, match=r"float32.*model\.sync"):
        policy_of(dtype, share=True)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trained_weights_go_on_where_they_were(dtype, tmp_path):
    _, model, policy = trained(dtype, lr=1e-4)
    torch.save(policy.state_dict(), tmp_path / "optimizer.pt")
    twin, other = policy_of(dtype, seed=1)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for each in (policy, other):
        towards_texts(each, 1e-4)
    assert all(torch.equal(weight, other.weights[name]) for name, weight in policy.weights.items())


# -- numbers that are not finite --------------------------------------------------------------------------------------


def poison(monkeypatch, times, value=float("nan")):
    """Have the loss of the steps with these numbers be no number."""
    real, calls = POLICY_LOSSES["ppo_clip"], iter(range(10**6))

    def loss(x, settings):
        result = real(x, settings)
        return replace(result, values=result.values * value) if next(calls) in times else result

    monkeypatch.setitem(POLICY_LOSSES, "ppo_clip", loss)


@pytest.mark.integration
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_left_out_and_counted(tmp_path, small, monkeypatch, caplog, value):
    poison(monkeypatch, {1}, value)
    with start(tmp_path / "run", [*small, "iterations=2", "optimizer.minibatch_sequences=4"]) as run:
        run.fit()
        assert all(torch.isfinite(p).all() for p in run.state.player.model.parameters())
    rows = read_rows(run.run.metrics_file)
    assert sum(row.get("skipped_steps", 0) for row in rows) == 1
    assert "was skipped" in caplog.text


@pytest.mark.integration
def test_the_run_stops_where_asked_to_or_where_nothing_is_left(tmp_path, small, monkeypatch):
    poison(monkeypatch, {0})
    with (
        start(tmp_path / "asked", [*small, "optimizer.on_nonfinite=stop"]) as run,
        pytest.raises(TrainingError, match=r"iteration 1: the loss is nan.*no checkpoint yet"),
    ):
        run.fit()
    poison(monkeypatch, range(3, 10**6))
    overrides = [*small, "checkpoint_every=1", "keep_checkpoints=1", "optimizer.minibatch_sequences=1000"]
    with start(tmp_path / "left", overrides) as run, pytest.raises(TrainingError, match="no loss"):
        run.fit()
    (saved,) = checkpoint.checkpoints(run.run.checkpoints)
    agent, *_ = checkpoint.load(saved)
    assert all(torch.isfinite(p).all() for p in agent.model.parameters()), "the last finite one was kept"


@pytest.mark.integration
def test_weights_that_are_not_finite_are_never_saved(tmp_path, small):
    with start(tmp_path / "run", [*small, "checkpoint_every=1", "keep_checkpoints=1"]) as run:
        real = run.learner._step

        def overflow(*args):
            done = real(*args)
            if run.state.iteration == 2:
                next(iter(run.state.policy.weights.values())).data.view(-1)[0] = float("inf")
            return done

        run.learner._step = overflow
        with pytest.raises(TrainingError, match=r"a weight is no longer.*step-000002, is intact"):
            run.fit()
    assert [p.name for p in checkpoint.checkpoints(run.run.checkpoints)] == ["step-000002"]


# -- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_resumed_run_goes_on_counting_versions(tmp_path, small):
    whole = start(tmp_path / "whole", small)
    with whole:
        whole.fit()
    part = start(tmp_path / "part", small)
    with part:
        part.config.iterations = 4
        part.fit()
    with Trainer(load_config("sokoban", small), part.run) as resumed:
        assert resumed.state.player.version == 4
        resumed.fit()
        assert resumed.state.player.version == whole.state.player.version == 6


def test_a_checkpoint_from_a_gpu_loads_without_one(tmp_path, monkeypatch):
    tokenizer = build_tokenizer(["up down"], 300)
    agent = LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer)
    agent.version = 7
    policy = trained(torch.bfloat16, steps=1)[2]
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")  # as CUDA tensors are saved
    folder = checkpoint.save(tmp_path, 3, agent, {"policy": policy}, keep=1)
    monkeypatch.undo()
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(folder / "optimizer.pt", weights_only=True)
    loaded, state, about = checkpoint.load(folder)
    assert (about["iteration"], loaded.version) == (3, 7)
    assert {m.device.type for m in state["policy"]["masters"].values()} == {"cpu"}


def manifest(folder):
    (folder / checkpoint.MANIFEST).unlink()
    checkpoint._write_manifest(folder)


def test_a_checkpoint_without_a_version_counts_from_its_iteration(tmp_path):
    tokenizer = build_tokenizer(["up down"], 300)
    agent = LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer)
    folder = checkpoint.save(tmp_path, 5, agent, {"policy": LocalPolicy(agent.model)}, keep=1)
    about = json.loads((folder / "trainer.json").read_text())
    del about["version"]
    (folder / "trainer.json").write_text(json.dumps(about))
    manifest(folder)
    assert checkpoint.load(folder)[0].version == 5
    for name, text in (("trainer.json", "{}"), ("trainer.json", "[1]"), ("optimizer.pt", "no tensors")):
        (folder / name).write_text(text)
        manifest(folder)
        with pytest.raises(checkpoint.CheckpointError, match="cannot be read"):
            checkpoint.load(folder)


@pytest.mark.parametrize(
    "wrong", ["plain Adam", "no masters", "other size", "other type", "no optimizer", "other count"]
)
def test_an_optimizer_of_another_model_is_reported_and_changes_nothing(wrong):
    policy = trained(torch.bfloat16, lr=1e-2, steps=1)[2]
    state = copy.deepcopy(policy.state_dict())
    if wrong == "plain Adam":
        state = state["adam"]
    elif wrong == "no masters":
        state["masters"] = {}
    elif wrong == "other size":
        for moments in state["adam"]["state"].values():
            moments["exp_avg"] = torch.zeros(7)
    elif wrong == "no optimizer":
        del state["adam"]
    elif wrong == "other count":
        state["adam"]["param_groups"][0]["params"].pop()
        state["masters"] = {name: weight + 1 for name, weight in state["masters"].items()}
    else:
        state = policy_of(torch.float32, share=True)[1].state_dict()
    before = copy.deepcopy(policy.state_dict())
    with pytest.raises(ValueError, match=r"master|another model|parameter group"):
        policy.load_state_dict(state)
    after = policy.state_dict()
    assert all(torch.equal(before["masters"][name], weight) for name, weight in after["masters"].items())
    for number, moments in before["adam"]["state"].items():
        assert all(torch.equal(value, after["adam"]["state"][number][name]) for name, value in moments.items())


# -- what a batch is divided by ---------------------------------------------------------------------------------------


def turn(prompt, response):
    return Turn(prompt, response, (-1.0,) * len(response), 0.0, "", "")


def batch_of(turns):
    """Each turn as a trajectory."""
    task = Task("test:Any-v0", 0)
    return experience([Group(task, [Trajectory(task, [one], "terminated") for one in turns])], "turn")


TURN = st.builds(
    turn,
    st.lists(st.integers(0, 3), min_size=1, max_size=1).map(tuple),
    st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple),
)


@pytest.mark.integration
@given(st.lists(TURN, min_size=1, max_size=60), st.integers(1, 20), st.integers(0, 5), st.data())
@settings(max_examples=200)
def test_every_token_weighs_the_same_in_whichever_minibatch(turns, sequences, seed, data):
    made = batch_of(turns)
    useful = np.array(data.draw(st.lists(st.booleans(), min_size=len(turns), max_size=len(turns))))
    steps = minibatches(made, sequences, random.Random(seed), useful=useful)
    whole = minibatches(made, sequences, random.Random(seed))
    assert sorted(i for step in steps for i in step) == np.flatnonzero(useful).tolist()
    assert [set(step) for step in steps] == [{i for i in step if useful[i]} for step in whole], "the same steps"
    different = len({one.prompt_ids + one.response_ids[:-1] for one in turns})
    assert len(whole) == max(1, round(different / sequences)), "the factor that makes a step's weights add up to 1"
    loads = [sum(len(turns[i].response_ids) for i in step) for step in whole]
    assert max(loads) <= 2 * sum(loads) / len(loads) + max(len(one.response_ids) for one in turns), "no giant"


def test_a_last_minibatch_is_no_smaller_than_the_others():
    made = batch_of([turn((i,), (1, 2)) for i in range(101)])
    assert sorted(len(step) for step in minibatches(made, 25, random.Random(0))) == [25, 25, 25, 26]


@given(st.lists(TURN, min_size=1, max_size=30), st.integers(1, 40))
@settings(max_examples=100)
def test_a_micro_batch_has_no_more_tokens_than_allowed(turns, most):
    made = batch_of(turns)
    pieces = micro_batches(made, range(len(turns)), most)
    assert sorted(i for piece in pieces for i in piece) == list(range(len(turns)))
    for piece in pieces:
        inputs = {turns[i].prompt_ids + turns[i].response_ids[:-1] for i in piece}
        assert len(inputs) == 1 or sum(map(len, inputs)) <= most


@pytest.mark.slow
def test_the_scale_of_the_loss_does_not_follow_the_share_of_informative_groups(tmp_path, small):
    """A batch whose other half teaches nothing moves the weights half as far as one of the first half alone."""
    with start(tmp_path / "run", [*small, "loss.entropy=0", "optimizer.lr=1e-12"]) as run:
        moved = []
        for groups in ([(1.0, 0.0)], [(1.0, 0.0), (0.0, 0.0)]):
            played = [
                Group(
                    Task("test:Any-v0", 0),
                    [
                        Trajectory(Task("test:Any-v0", 0), [replace(turn((1, 2), (k,)), reward=r)], "terminated")
                        for k, r in enumerate(rewards)
                    ],
                )
                for rewards in groups
            ]
            moved.append(run.learner.update(run.learner.compute_advantages(played, {}))["grad_norm"])
    assert moved[0] == pytest.approx(2 * moved[1], rel=1e-4)


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["gamma=0.9", "step_weight=0.5"])
def test_a_key_that_does_nothing_is_refused(key, tmp_path, small):
    with pytest.raises(UsageError, match=f"algorithm.{key.partition('=')[0]} does nothing under .*'grpo'"):
        load_config("sokoban", [f"algorithm.{key}"])
    load_config("sokoban", [f"algorithm.{key}", "algorithm.name=gigpo"])
    config = load_config("sokoban", small)
    assert RunDir.resume(RunDir.create(config.model_copy(update={"run_dir": str(tmp_path / "r")}), "x").path)[1]


@pytest.mark.parametrize(
    "override",
    [
        "rollout.workers=0", "rollout.workers=-1", "rollout.workers=ray:0", "rollout.workers='2 '",
        "rollout.workers='²'", "rollout.workers=nine", "env.wrappers=['concat', 3]", "env.wrappers=3",
        "env.wrappers={concat=3}",
        "optimizer.betas=[2, 3]", "optimizer.lr=inf", "loss.entropy=inf", "rollout.temperature=inf",
        "threads=1000000",
    ],
)  # fmt: skip
def test_a_value_that_cannot_work_is_refused_before_anything_begins(override):
    with pytest.raises(UsageError, match=override.partition("=")[0]):
        load_config("sokoban", [override])


def test_threads_are_chosen_and_said(tmp_path, small, caplog):
    assert 1 <= idle_cores(0.05) <= len(os.sched_getaffinity(0))
    before = torch.get_num_threads()
    caplog.set_level(logging.INFO)
    try:
        with start(tmp_path / "run", [*small, "threads=0"]) as run:
            assert torch.get_num_threads() == run.threads.count >= 1
        assert "cores as were idle" in caplog.text
    finally:
        torch.set_num_threads(before)


def test_threads_give_way_to_a_neighbour_that_comes_later(monkeypatch):
    """The machine's own figures, in the place of a neighbour: what the cores did, and how much of it was ours."""
    clock = {"now": 0.0, "all": 0.0, "own": 0.0}
    monkeypatch.setattr(cpu_threads, "_snapshot", lambda: tuple(clock.values()))
    monkeypatch.setattr(cpu_threads, "cores", lambda: [0, 1])
    before = torch.get_num_threads()
    try:
        used = CpuThreads(0)
        seen = []
        for others in (0, 1, 1, 0, 2):
            clock["now"] += 10
            clock["own"] += 10
            clock["all"] += 10 + 10 * others
            used.adapt()
            seen.append(torch.get_num_threads())
        assert seen == [2, 1, 1, 2, 1]
        fixed = CpuThreads(2)
        clock["now"] += 10
        clock["all"] += 20
        fixed.adapt()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# -- workers, wrappers and deadlines ----------------------------------------------------------------------------------


@pytest.fixture
def stuck_id(monkeypatch):
    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register(stuck.ID, "stuck:Stuck", abilities=["oracle", "random_action"])


def numbers(run):
    rows = [json.loads(line) for line in run.run.metrics_file.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "cpu/", "tokens_per_s"))} for row in rows]


@pytest.mark.integration
def test_worker_processes_give_the_numbers_of_this_process(tmp_path, small):
    """Up to rounding: log-probabilities depend on what is computed together in their last digits."""
    runs = []
    for name, more in (("inline", []), ("processes", ["rollout.workers=2", "rollout.max_concurrent=5"])):
        with start(tmp_path / name, [*small, "iterations=3", *more]) as run:
            run.fit()
        runs.append(numbers(run))
    assert [row.keys() for row in runs[0]] == [row.keys() for row in runs[1]]
    for here, there in zip(*runs, strict=True):
        assert there == pytest.approx(here, rel=1e-3, abs=1e-6)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "die"])
def test_a_hanging_or_dying_environment_does_not_hold_up_training(tmp_path, small, stuck_id, how):
    overrides = [o for o in small if "min_moves" not in o]
    overrides += [f"env.id={stuck.ID}", "env.kwargs={}", "eval.kwargs={}", "iterations=2", "eval.every=2"]
    overrides += ["env.kwargs.every=7", f"env.kwargs.how={how}", f"env.kwargs.home={os.getpid()}"]
    overrides += ["rollout.workers=2", "rollout.step_deadline=0.5", "rollout.extra_groups=4"]
    overrides += ["rollout.groups_per_batch=12"]
    overrides += ["model.warm_up.steps=50", "eval.episodes=5"]
    with start(tmp_path / "run", overrides) as run:
        run.fit()
    rows = numbers(run)
    assert rows[-1]["iteration"] == 2
    assert rows[-1]["optimizer_steps"] > 0


def _for_training(name: str):
    """One of a kind in every run of the tests, the others where time is no matter."""
    first = name in ("concat_chat", "python_tool", "episode_tracking")
    return pytest.param(name, marks=pytest.mark.slow if first else pytest.mark.integration)


@pytest.mark.integration
@pytest.mark.parametrize("name", [_for_training(name) for name in WRAPPER_FACTORY])
def test_every_wrapper_and_tool_of_the_factory_reaches_training(tmp_path, small, retrieval_url, name):
    tokenizer = build_tokenizer(["a few words"], 300)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    settings = f'{{tokenizer = "{tmp_path / "tokenizer"}"}}' if name in TOKENIZER_REQUIRED else "{}"
    settings = f'{{search_url = "{retrieval_url}"}}' if name.startswith("search_tool") else settings
    overrides = [
        *small,
        f"env.wrappers.{name}={settings}",
        "iterations=1",
        "model.size.context=2048",
        "model.warm_up.steps=20",
    ]
    overrides += ["model.warm_up.episodes=20", "prompt.template='{instructions}{observation}'", "eval.episodes=4"]
    overrides += ["rollout.groups_per_batch=2"]
    with start(tmp_path / "run", overrides) as run:
        run.fit()
    rows = [json.loads(line) for line in run.run.episodes_file.read_text().splitlines()]
    first = rows[-1]["turns"][0]["observation"]
    last = rows[-1]["turns"][-1]["observation"] if len(rows[-1]["turns"]) > 1 else rows[-1]["final_observation"]
    assert rows[-1]["task"]["wrappers"].keys() == {name}
    assert ("Sokoban" in last) is name.startswith("concat"), "the instructions are still there in the last turn"
    assert ("<user>" in first) is (name in TOKENIZER_REQUIRED)
    assert ("<python>" in first) is name.startswith("python_tool")
    assert ("<search>" in first) is name.startswith("search_tool")
