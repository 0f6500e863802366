"""Runs that are killed at any moment, and what else they may meet, come to the numbers of undisturbed ones."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import words
from tiny_runs import numbers

from rollenv import UsageError
from rollenv.core.interrupt import Termination
from rollenv.trainers import checkpoint
from rollenv.trainers.columns import TrainingError
from rollenv.trainers.config import load_config, with_settings
from rollenv.trainers.config.section import union_of
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.updater import StepTotals

pytestmark = pytest.mark.early

PLAIN = [
    *words.RUN, "iterations=3", "keep_checkpoints=2", "model.warm_up.steps=20", "rollout.groups_per_batch=3",
    "rollout.group_size=3", "optimizer.lr=1e-2", "optimizer.minibatch_sequences=4", "optimizer.epochs=1",
]  # fmt: skip
MIXTURE = [
    "tasks.kind=mixture",
    f"tasks.parts=[{{env={{id='{words.ID}'}}, tasks={{kind='rows'}}, ratio=2.0}}, "
    f"{{name='b', env={{id='{words.ID}', kwargs={{turns=2}}}}, tasks={{kind='success_aware', pool=5}}}}]",
]
PPO = ["algorithm.name=ppo", "algorithm.critic.lr=1e-3", "rewards.mean=running", "rewards.std=running"]
LEVELS = ["tasks.kind=curriculum", "tasks.levels=[{turns=1}, {turns=2}, {turns=3}]", "tasks.window=6"]
KL = ["kl.name=reward", "kl.target=0.01", "kl.horizon=100.0"]

#: The command, with the environment of these tests.
COMMAND = [
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(words.__file__).parent)!r}); import rollenv, words; "
    "rollenv.list_envs(); rollenv.register(words.ID, 'words:Words', indexed=True, "
    "abilities=['oracle', 'random_action', 'state_key']); from rollenv.cli.main import main; main()",
    "train",
    "sokoban",
]


def start(path, overrides) -> Trainer:
    config = load_config("sokoban", [*PLAIN, *overrides, f"run_dir={path}"])
    return Trainer(config, RunDir.create(config, "sokoban"))


# -- kills -------------------------------------------------------------------------------------------------------------


def state(run: Path):
    """All that a finished run's last checkpoint has."""
    folder = checkpoint.checkpoints(run / "checkpoints")[-1]
    saved = torch.load(folder / "optimizer.pt", weights_only=True)
    return (folder / "model.safetensors").read_bytes(), json.loads((folder / "trainer.json").read_text()), saved


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def read_iterations(run: Path) -> list[int]:
    return [row["iteration"] for row in read_rows(run / "metrics.jsonl")]


def run_to_its_end(*arguments: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "kills", "overrides"),
    [
        ("grpo", 10, ["model.sync=copy"]),
        ("ppo", 5, [*PPO, *KL, *MIXTURE]),
        ("gigpo", 5, ["algorithm.name=gigpo", "rollout.refill=2", *MIXTURE]),
        ("early", 5, ["batches.kind=early", "algorithm.name=maxrl", "rollout.refill=2"]),
    ],
)
def test_a_run_that_is_killed_many_times_ends_as_one_that_is_not(tmp_path, name, kills, overrides):
    plain = [o for o in PLAIN if name != "early" or "minibatch" not in o]  # such a batch is one step
    overrides = [*plain, *overrides, "iterations=60", "checkpoint_every=3", "eval.every=7"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_to_its_end(f"run_dir={whole}", *overrides)
    rng = random.Random(name)
    for iteration in sorted(rng.sample(range(60), kills)):
        resume = ["--resume"] if (killed / "config.json").exists() else []
        process = subprocess.Popen(
            [*COMMAND, f"run_dir={killed}", *overrides, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while process.poll() is None and max(read_iterations(killed), default=-1) < iteration:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))  # amid the next step, whichever it is
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        _, said = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), said
    run_to_its_end(f"run_dir={killed}", *overrides, "--resume")
    assert numbers(killed) == numbers(whole)
    assert same(state(killed), state(whole))


def interrupt_after(iteration: int):
    """Ends a run when the numbers of that iteration are told, before its checkpoint is written."""

    def watch(stage, done, total, numbers):
        if stage == "training" and done >= iteration + 1:
            raise KeyboardInterrupt

    return watch


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [["model.sync=copy", *KL], [*PPO, *MIXTURE], ["model.lora.rank=4", "model.sync=auto", "kl.name=loss"], LEVELS],
    ids=["copy", "critic", "adapters", "curriculum"],
)
def test_a_run_that_stops_after_any_iteration_goes_on_to_the_same_state(tmp_path, overrides):
    with start(tmp_path / "whole", overrides) as whole:
        whole.fit()
    for stop in (0, 1, 1, 2, 3):
        if not (tmp_path / "part").exists():
            run = start(tmp_path / "part", overrides)
        else:
            run = Trainer(RunDir.resume(tmp_path / "part")[1], RunDir(tmp_path / "part"))
        with run, contextlib.suppress(KeyboardInterrupt):
            if stop < 3:
                run.watch = interrupt_after(stop)
            run.fit()
    assert numbers(tmp_path / "part") == numbers(tmp_path / "whole")
    assert same(state(tmp_path / "part"), state(tmp_path / "whole"))


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["model.sync=copy", *KL], [*PPO, *MIXTURE]], ids=["copy", "critic"])
def test_a_run_that_is_terminated_saves_and_goes_on_to_the_same_state(tmp_path, overrides, monkeypatch):
    overrides = [*overrides, "checkpoint_every=100", "eval.every=1"]
    with start(tmp_path / "whole", overrides) as whole:
        whole.fit()
    before = signal.getsignal(signal.SIGTERM)
    moments = ("_evaluate", 0), ("_collect", 0), ("_log", 1), ("_collect", 1), ("update", 1), ("_evaluate", 2)
    for step, iteration in (*moments, ("_collect", 2)):
        if not (tmp_path / "part").exists():
            run = start(tmp_path / "part", overrides)
        else:
            run = Trainer(RunDir.resume(tmp_path / "part")[1], RunDir(tmp_path / "part"))
        owner = run.learner if step == "update" else run
        real = getattr(owner, step)

        def terminated(*given, real=real, iteration=iteration, run=run):
            if run.state.iteration == iteration:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*given)

        monkeypatch.setattr(owner, step, terminated)
        with run, pytest.raises(SystemExit) as ended:
            run.fit()
        assert ended.value.code == 143
        assert signal.getsignal(signal.SIGTERM) == before
    with Trainer(RunDir.resume(tmp_path / "part")[1], RunDir(tmp_path / "part")) as last:
        last.fit()
    assert numbers(tmp_path / "part") == numbers(tmp_path / "whole")
    assert same(state(tmp_path / "part"), state(tmp_path / "whole"))


@pytest.mark.parametrize(("module", "handled"), [("ray._private.worker", True), ("program", False)])
def test_a_program_keeps_its_own_handler_of_termination_but_not_rays(module, handled):
    def handler(number, frame):
        asked.append(number)

    asked, handler.__module__ = [], module
    before = signal.signal(signal.SIGTERM, handler)
    try:
        termination = Termination()
        with pytest.raises(KeyboardInterrupt) if handled else contextlib.nullcontext(), termination.handled():
            os.kill(os.getpid(), signal.SIGTERM)
        assert (termination.asked, bool(asked)) == (handled, not handled)
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)


def cut_in_the_middle(text: str) -> str:
    first, second, *rest = text.splitlines(keepends=True)
    return "".join([first, second[: len(second) // 2] + "\n", *rest])


DAMAGES = {
    "empty": lambda text: "",
    "a cut line": cut_in_the_middle,
    "no rows": lambda text: "5\nnull\n[]\n{}\n" + '{"iteration": "x"}\n' + text,
    "bytes": lambda text: "\udcff\udcfe\n" + text,
    "a cut end": lambda text: text[:-20],
}


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_goes_on_whatever_became_of_its_metrics(tmp_path, finished, damage, caplog):
    """What can be read of them stays, all else is told, and weights do not depend on them."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    file = path / "metrics.jsonl"
    before = numbers(path)
    text = DAMAGES[damage](file.read_text())
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    left = [row for row in numbers(path) if row in before]
    assert ("holds no row" in caplog.text) == (damage != "empty")
    assert len(left) == len(before) - {"empty": 2, "a cut line": 1, "a cut end": 1}.get(damage, 0)
    run, config = RunDir.resume(path)
    for iterations in (1, 2):
        with Trainer(config.model_copy(update={"iterations": iterations}), run) as trainer:
            result = trainer.fit()
        assert {"eval/success", "eval/reward"} <= result.before.keys() & result.after.keys()
        assert numbers(path)[: len(left)] == left
    run.discard_unless_begun()
    assert path.exists()


def test_a_folder_with_checkpoints_is_never_discarded(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    run.metrics_file.write_text("")
    run.discard_unless_begun()
    assert checkpoint.checkpoints(run.checkpoints)
    shutil.rmtree(run.checkpoints)
    run.discard_unless_begun()
    assert not run.path.exists()


# -- other settings ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    with start(path, ["iterations=1"]) as run:
        run.fit()
    return path


@pytest.mark.parametrize(
    "setting",
    [
        "iterations=2", "checkpoint_every=5", "keep_checkpoints=7", "threads=2", "eval.episodes=9", "eval.every=1",
        "eval.seed=4", "eval.temperature=0", "eval.kwargs.turns=1", "trackers.use=['tensorboard']",
    ],
)  # fmt: skip
def test_what_changes_no_training_may_change_on_resume(finished, setting):
    run, started = RunDir.resume(finished)
    before = run.config_file.read_bytes()
    config = run.extend(started, with_settings(started, [setting]))
    assert config == with_settings(started, [setting])
    assert RunDir.resume(finished)[1] == config, "the file says what holds now"
    run.config_file.write_bytes(before)


def test_what_does_nothing_is_an_error_on_resume_too(finished):
    with pytest.raises(UsageError, match=r"rollout\.shard_losses"):
        with_settings(RunDir.resume(finished)[1], ["rollout.shard_losses=1"])


def test_a_run_whose_settings_this_version_cannot_read_is_not_resumed(tmp_path):
    (tmp_path / "config.json").write_text('{"data": ["pairs.jsonl"], "lr": 1e-5}')
    with pytest.raises(UsageError, match="version") as refused:
        RunDir.resume(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "setting",
    [
        "seed=4", "env.kwargs.turns=2", "tasks.kind=rows", "model.precision=bfloat16", "rollout.group_size=4",
        "algorithm.name=ppo", "loss.name=gspo", "correction.name=tis", "kl.name=loss", "rewards.scale=2.0",
        "iterations=0", "optimizer.lr=1.0", "prompt.template='{state}'", "rollout.workers=2",
    ],
)  # fmt: skip
def test_what_changes_training_may_not_change_on_resume(finished, setting):
    run, started = RunDir.resume(finished)
    before = run.config_file.read_bytes()
    with pytest.raises(UsageError, match=setting.partition("=")[0]):
        run.extend(started, with_settings(started, [setting, "eval.every=1"]))
    assert run.config_file.read_bytes() == before


# -- numbers that are not finite ---------------------------------------------------------------------------------------


def poisoned(run: Trainer, where: str, step: int) -> None:
    """From this step on nothing, at this step a loss, gradient or weight that is no number."""
    policy, critic, count = run.state.policy, run.state.critic, iter(range(10**6))
    if where == "critic loss":
        real = critic.backward

        def backward(batch, hidden, share):
            return real(batch, hidden, share * float("nan") if next(count) == step else share)

        critic.backward = backward
        return
    real_backward = policy.backward

    def poison(loss):
        now = next(count) == step
        real_backward(loss * float("nan") if now and where == "loss" else loss)
        if now and where == "gradient":
            next(iter(policy.weights.values())).grad.view(-1)[0] = float("inf")
        if now and where == "weight":
            next(iter(policy.weights.values())).data.view(-1)[0] = float("nan")
        if now and where == "critic weight":
            critic.head.weight.data.view(-1)[0] = float("nan")

    policy.backward = poison


def everything_finite(run: Trainer) -> bool:
    def finite(value) -> bool:
        if isinstance(value, dict):
            return all(map(finite, value.values()))
        return not isinstance(value, torch.Tensor) or bool(torch.isfinite(value).all())

    parts = run.state
    states = [parts.policy.state_dict(), parts.shaper.running.state_dict(), dict(parts.player.model.state_dict())]
    states += [parts.critic.state_dict()] if parts.critic else []
    states += [dict(parts.reference.named_weights())] if parts.reference else []
    return all(map(finite, states))


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "overrides"),
    [
        ("loss", []), ("loss", ["model.sync=copy", "kl.name=loss"]), ("gradient", []), ("loss", PPO),
        ("gradient", [*PPO, "algorithm.critic.kind=head"]), ("critic loss", PPO),
        ("critic loss", [*PPO, "algorithm.critic.kind=head"]),
    ],
)  # fmt: skip
def test_a_loss_or_gradient_that_is_not_finite_is_left_out_or_stops_and_spoils_nothing(
    tmp_path, caplog, where, overrides
):
    with start(tmp_path / "skip", overrides) as run:
        poisoned(run, where, 2)
        run.fit()
        assert everything_finite(run)
    assert sum(row.get("skipped_steps", 0) for row in numbers(tmp_path / "skip")) == 1
    assert "was skipped" in caplog.text
    assert all(abs(v) < float("inf") for row in numbers(tmp_path / "skip") for v in row.values())
    with start(tmp_path / "stop", [*overrides, "optimizer.on_nonfinite=stop"]) as run:
        poisoned(run, where, 2)
        with pytest.raises(TrainingError, match=r"nan|inf"):
            run.fit()
        assert everything_finite(run)


def weights_of(part) -> torch.Tensor:
    parameters = part.weights.values() if hasattr(part, "weights") else part.module.parameters()
    return torch.cat([p.detach().flatten() for p in parameters]).clone()


@pytest.mark.combinations
@pytest.mark.parametrize("kind", ["head", "model"])
@pytest.mark.parametrize("where", ["loss", "gradient", "critic loss"])
def test_policy_and_critic_step_together_or_not_at_all(tmp_path, where, kind):
    """What one of them could not learn from, the other does not learn from either."""
    with start(tmp_path / "run", [*PPO, f"algorithm.critic.kind={kind}", "optimizer.micro_batch_tokens=10000"]) as run:
        learner, parts = run.learner, run.state
        data = learner.compute_advantages(run._collect({}), {})
        steps = len(data.samples) // 2
        poisoned(run, where, 1)
        for samples in (list(range(steps)), list(range(steps, len(data.samples)))):
            before = weights_of(parts.policy), weights_of(parts.critic)
            totals = StepTotals()
            learner._step(data, samples, 2, totals)
            after = weights_of(parts.policy), weights_of(parts.critic)
            moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
            assert moved == [totals.skipped == 0] * 2
            assert totals.skipped == (samples[0] > 0)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(("where", "overrides"), [("weight", []), ("weight", PPO), ("critic weight", PPO)])
def test_a_weight_that_is_not_finite_stops_the_run_and_is_not_saved(tmp_path, where, overrides):
    with start(tmp_path / "run", [*overrides, "optimizer.minibatch_sequences=1000"]) as run:
        poisoned(run, where, 1)
        with pytest.raises(TrainingError):
            run.fit()
    (saved,) = checkpoint.checkpoints(tmp_path / "run" / "checkpoints")
    assert saved.name == "step-000001"
    agent, states, _ = checkpoint.load(saved)
    assert all(torch.isfinite(p).all() for p in agent.model.parameters())
    assert all(torch.isfinite(v).all() for v in states.get("critic", {}).get("module", {}).values())


def test_an_evaluation_that_breaks_leaves_training_as_it_was(tmp_path, monkeypatch):
    """Who catches the error and goes on trains with training's temperature, and without what evaluations keep."""
    with start(tmp_path / "run", ["eval.temperature=0"]) as run:
        before = run.state.player.sampling

        def broken(player, *args, **kwargs):
            assert player.sampling.temperature == 0
            assert kwargs["manager"].keep_views
            raise KeyboardInterrupt

        monkeypatch.setattr("rollenv.trainers.trainer.evaluate", broken)
        with pytest.raises(KeyboardInterrupt):
            run.fit()
        assert run.state.player.sampling == before
        assert not run.manager.keep_views


# -- the ends of what is possible --------------------------------------------------------------------------------------


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.minibatch_sequences=1"],
        ["optimizer.micro_batch_tokens=1", "loss.aggregate=prompt"],
        ["rollout.max_new_tokens=1"],
        ["rollout.max_new_tokens=40", "rewards.overlong=40"],
        ["rollout.group_size=2", "rollout.groups_per_batch=1", "algorithm.name=rloo"],
        ["env.kwargs.pay=1e30"],
        ["env.kwargs.pay=1e30", "algorithm.name=reinforce"],
        ["env.kwargs.pay=1e30", *PPO],
        ["env.kwargs.end=false", "rewards.success_only=true", "rewards.difficulty_weight=true"],
        ["tasks.kind=rows", "rollout.groups_per_batch=11"],
        ["tasks.kind=success_aware", "tasks.pool=1"],
        ["rollout.samples=trajectory", "loss.name=gspo", "loss.tokens=true"],
        [*PPO, "algorithm.credit=turn", "rollout.samples=trajectory", "algorithm.critic.warm_up=2"],
        ["model.precision=float16", "optimizer.minibatch_sequences=1000"],
        ["model.precision=bfloat16", "correction.name=seq_tis", "kl.name=loss", "loss.imitate=1.0"],
        ["rollout.temperature=100.0"],
        ["rollout.temperature=0.01", "rollout.refill=3"],
        ["rollout.extra_members=2", "algorithm.name=empg", "rollout.max_new_tokens=1"],
        ["algorithm.name=mt_grpo", "env.kwargs.turns=1", "env.kwargs.pay=-0.0"],
        ["distill.name=sibling", "rollout.groups_per_batch=1", "env.kwargs.end=false"],
    ],
    ids=" ".join,
)
def test_runs_at_the_ends_of_what_is_possible_stay_finite(tmp_path, overrides):
    with start(tmp_path / "run", overrides) as run:
        run.fit()
        assert everything_finite(run)
    assert [row["iteration"] for row in numbers(tmp_path / "run")] == [0, 1, 2, 3]


@pytest.mark.integration
@pytest.mark.slow
def test_micro_batches_of_any_size_and_without_sharing_give_the_same_weights(tmp_path):
    weights, sharing = [], []
    for setting in ("micro_batch_tokens=1000000", "micro_batch_tokens=1", "share_prefixes=false"):
        settings = [f"optimizer.{setting}", "iterations=1", "prompt.template=" + "play " * 20 + "{state}"]
        with start(tmp_path / setting, settings) as run:
            run.fit()
            weights.append(torch.cat([w.detach().flatten() for w in run.state.policy.weights.values()]))
            sharing.append(run.rows[-1]["sharing"])
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], atol=1e-3, rtol=1e-2)
    assert sharing[0] > 1.1 * sharing[1] == 1.1 * sharing[2] >= 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["rewards.overlong=4", "rollout.max_new_tokens=3"], "rewards.overlong"),
        (["rewards.group=nowhere"], "nowhere"),
        (["rewards.group=nowhere:x"], "nowhere:x"),
        (["rewards.group=words:ID"], "words:ID"),
        (["rewards.group=words:ranked", "rewards.success_only=true"], "rewards.group"),
        (["rewards.drop_repetition=4", "rollout.max_new_tokens=3"], "rewards.drop_repetition"),
        (["loss.observations=0.5"], "loss.observations"),
        (["kl.name=reward", "kl.target=0.1", "kl.horizon=1.0"], "kl.horizon"),
        (["loss.dual=0.5"], "loss.dual"),
        (["tasks.kind=curriculum", "tasks.up=0.2", "tasks.down=0.8"], "tasks.down"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused_before_anything_begins(settings, says):
    with pytest.raises(UsageError, match=says):
        load_config("sokoban", [o for o in PLAIN if not o.startswith("prompt")] + settings)


# -- any settings that are allowed -------------------------------------------------------------------------------------


def combination(number: int) -> list[str]:
    """An algorithm, a loss, an aggregation, a correction and more, drawn from those that there are."""
    rng = random.Random(number)
    choice = {key: rng.choice(list(union_of(key).variants)) for key in ("algorithm", "loss", "correction", "kl")}
    drawn = [f"{key}.name={name}" for key, name in choice.items()]
    drawn += [f"loss.aggregate={rng.choice(['token', 'sequence', 'prompt', 'fixed'])}"]
    drawn += rng.choice([[], [], ["distill.name=sibling"]])
    drawn += [f"rollout.samples={rng.choice(['turn', 'trajectory'])}"]
    drawn += [f"optimizer.minibatch_sequences={rng.choice([1, 3, 10**6])}", f"optimizer.epochs={rng.choice([1, 2])}"]
    drawn += [f"optimizer.micro_batch_tokens={rng.choice([1, 20, 10**6])}"]
    drawn += [f"rollout.group_size={rng.choice([2, 4])}", f"rollout.groups_per_batch={rng.choice([1, 3])}"]
    drawn += [f"rollout.extra_members={rng.choice([0, 1])}", f"env.kwargs.turns={rng.choice([1, 2, 5])}"]
    if choice["algorithm"] == "ppo":
        drawn += [f"algorithm.credit={rng.choice(['token', 'turn', 'bi_level'])}"]
        drawn += [f"algorithm.critic.kind={rng.choice(['head', 'model'])}"]
    return [*drawn, "iterations=2", "eval.episodes=2"]


#: Algorithms that learn from given answers.
GIVEN = ("imitation", "dpo", "ipo", "kto", "simpo", "dmpo", "reward_model")


@pytest.mark.integration
@pytest.mark.parametrize("number", range(40))
def test_any_combination_trains_or_says_why_not(tmp_path, number, caplog):
    """No raw error, nothing that is not finite, and no step that silently changes nothing."""
    settings = combination(number)
    if settings[0].partition("=")[2] in GIVEN:
        with pytest.raises(UsageError, match=settings[0]):
            load_config("sokoban", [*PLAIN, *settings])
        return
    with start(tmp_path / "run", settings) as run:
        before = weights_of(run.state.policy)
        run.fit()
        assert everything_finite(run)
        moved = not torch.equal(before, weights_of(run.state.policy))
    found = numbers(tmp_path / "run")
    assert [row["iteration"] for row in found] == [0, 1, 2]
    assert all(math.isfinite(v) for row in found for v in row.values())
    told = "no learning signal" in caplog.text
    masked = all(row.get("correction/masked", 0) == 1 for row in found[1:])
    assert moved or told or masked
    assert all(row["optimizer_steps"] > 0 or told for row in found[1:])
