"""inspect_ai's own checks of a sandbox against ours, and its own evaluations of our environments."""

import asyncio
import inspect as reflection
import os
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

os.environ |= {"INSPECT_DISPLAY": "none", "INSPECT_LOG_LEVEL": "error"}

import anyio
import pytest
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox import self_check

import rollenv
from rollenv.core.errors import RollenvError, UnknownEnv
from rollenv.plugins.adapters.inspect_ai import BoxConfig, BoxEnvironment, rollenv_task
from rollenv.sandbox.machine import why_not

ROOT = Path(rollenv.__file__).resolve().parents[1]
CHECKS = {
    name: check
    for name, check in vars(self_check).items()
    if name.startswith("test_") and reflection.iscoroutinefunction(check)
}
#: It runs programs as users of its choice, which a sandbox of one user does not offer.
OTHER_USERS = {"test_exec_as_user"}
#: Root of a machine may read and write every file, as in a container.
OF_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}


@pytest.fixture(scope="module")
def box():
    made = BoxEnvironment.start(BoxConfig())
    yield made
    made.box.kill()


@pytest.fixture(scope="module")
def machine():
    if why_not():
        pytest.skip(why_not())
    made = BoxEnvironment.start(BoxConfig(machine=True))
    yield made
    made.box.kill()


# -- the sandbox -----------------------------------------------------------------------------------------------------


def test_there_are_as_many_checks_as_the_page_says():
    assert len(CHECKS) == 44


@pytest.mark.parametrize("name", sorted(set(CHECKS) - OTHER_USERS))
def test_a_sandbox_passes_the_check(name, box):
    asyncio.run(CHECKS[name](box))


#: Of the checks that take seconds, the sandbox has shown enough.
@pytest.mark.parametrize("name", sorted(n for n in set(CHECKS) - OF_ROOT if "timeout" not in n))
def test_a_machine_passes_the_check(name, machine):
    asyncio.run(CHECKS[name](machine))


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["nosuch"], 127, "nosuch"),
        (["echo", "a\0b"], 126, "null"),
        (["echo", "\ud800"], 126, "surrogates"),
        (["echo", "x" * 3_000_000], 126, "too long"),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["python3", "-c", "import sys; sys.stdout.buffer.write(b'\\xff')"], 0, ""),
        (["python3", "-c", "x = bytearray(2**40)"], 1, "MemoryError"),
    ],
)
def test_what_a_command_does_is_its_result(command, code, said, box):
    done = asyncio.run(box.exec(command))
    assert isinstance(done, ExecResult)
    assert (done.returncode, done.success) == (code, code == 0)
    assert said in done.stderr


def test_a_folder_that_is_missing_is_the_commands_failure(box):
    assert "nowhere" in asyncio.run(box.exec(["true"], cwd="nowhere")).stderr


def test_too_much_output_is_an_error_of_inspects(box):
    with pytest.raises(OutputLimitExceededError, match="10 MiB"):
        asyncio.run(box.exec(["sh", "-c", "head -c 20000000 /dev/zero"]))


def test_another_user_is_refused_in_inspects_words(box):
    with pytest.raises(SandboxUserUnsupportedError, match="machine"):
        asyncio.run(box.exec(["true"], user="root"))


def test_a_cancelled_command_is_killed(box):
    async def cancelled():
        with anyio.move_on_after(0.5):
            await box.exec(["sh", "-c", "sleep 61; :"])
        await anyio.sleep(0.3)
        return await box.exec(["sh", "-c", "ps aux | grep 'sleep 6[1]'"])

    assert asyncio.run(cancelled()).stdout == ""


def test_a_sandbox_whose_start_is_cancelled_is_not_left():
    made = []

    class Noted(BoxEnvironment):
        @classmethod
        def start(cls, *arguments):
            made.append(super().start(*arguments))
            return made[0]

    async def cancelled():
        with anyio.move_on_after(0.01):
            await Noted.sample_init("task", None, {})

    asyncio.run(cancelled())
    for _ in range(200):
        if made and not made[0].box.alive:
            break
        time.sleep(0.1)
    assert not made[0].box.alive


def test_input_that_nobody_reads_does_not_hold_up_a_cancelled_command(box):
    async def cancelled():
        with anyio.move_on_after(0.5):
            await box.exec(["sleep", "67"], input=b"x" * (8 << 20))
        return (await box.exec(["sh", "-c", "ps aux | grep 'sleep 6[7]'"])).stdout

    assert asyncio.run(cancelled()) == ""


def test_many_commands_run_at_once(box):
    async def many():
        meet = "mkdir -p met; touch met/{}; until test $(ls met | wc -l) = 12; do sleep 0.1; done"
        return await asyncio.gather(*(box.exec(["sh", "-c", meet.format(n)], timeout=120) for n in range(12)))

    assert all(done.success for done in asyncio.run(many()))


def test_a_sandbox_that_has_ended_is_unavailable():
    made = BoxEnvironment.start(BoxConfig(memory_mb=256, disk_mb=16))
    made.box.kill()
    with pytest.raises(SandboxUnavailableError):
        asyncio.run(made.exec(["true"]))


@pytest.mark.parametrize("given", ["nowhere/Dockerfile", 5, "machines"])
def test_what_is_no_config_is_refused_in_one_line(given):
    with pytest.raises(RollenvError, match="takes BoxConfig"):
        BoxConfig.of(given)


# -- evaluations in it -----------------------------------------------------------------------------------------------


@solver
def running(*commands):
    async def solve(state, generate):
        done = [await sandbox().exec(list(command)) for command in commands]
        state.store.set("said", [one.stdout for one in done])
        state.store.set("file", await sandbox().read_file("given.txt"))
        return state

    return solve


@scorer(metrics=[mean()])
def said(*expected):
    async def score(state, target):
        right = state.store.get("said") == list(expected) and state.store.get("file") == "from the sample"
        return Score(value=float(right), explanation=str(state.store.get("said")))

    return score


@pytest.mark.parametrize("given", ["rollenv", ("rollenv", "machine"), SandboxEnvironmentSpec("rollenv", BoxConfig())])
def test_samples_have_sandboxes_of_their_own(given, tmp_path):
    if given == ("rollenv", "machine") and why_not():
        pytest.skip(why_not())
    samples = [Sample(id=i, input="x", files={"given.txt": "from the sample"}, setup="echo set > up") for i in (1, 2)]
    commands = ["cat", "up"], ["sh", "-c", "ls"], ["touch", "mine"]
    task = Task(samples, solver=running(*commands), scorer=said("set\n", "given.txt\nup\n", ""), sandbox=given)
    (log,) = eval(task, model="mockllm/model", log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["mean"].value == 1.0, [s.scores for s in log.samples]


def test_a_dockerfile_is_built(tmp_path):
    if why_not():
        pytest.skip(why_not())
    (tmp_path / "Dockerfile").write_text("FROM debian:bookworm\nWORKDIR /work\nRUN echo built > /work/given.txt\n")
    made = BoxEnvironment.start(BoxConfig.of(str(tmp_path / "Dockerfile")))
    try:
        assert asyncio.run(made.read_file("given.txt")) == "built\n"
        assert asyncio.run(made.exec(["pwd"])).stdout == "/work\n"
    finally:
        made.box.kill()


# -- environments ----------------------------------------------------------------------------------------------------


class Count(rollenv.Env):
    """Wants 1, 2, 3 ...; may break, hang or say odd things at a turn."""

    closed = 0

    def __init__(self, upto: int = 3, broken_at: int = 0, hangs_at: int = 0, only: int | None = None):
        self.upto, self.broken_at, self.hangs_at, self.only = upto, broken_at, hangs_at, only

    def _reset(self, options):
        self.turn, self.touched = 0, self.only is None or int(self.np_random.integers(2)) == self.only
        return f"Say 1, then 2, up to {self.upto}.", {}

    def _step(self, action):
        self.turn += 1
        if self.turn == self.broken_at and self.touched:
            raise ValueError("the pipe\nburst")
        if self.turn == self.hangs_at:
            time.sleep(3600)
        right, last = action.strip() == str(self.turn), self.turn == self.upto
        return f"turn {self.turn}", float(right), last, False, {"success": last and right}

    def close(self):
        type(self).closed += 1
        super().close()


rollenv.register("suite:Count-v0", Count)


def output(reply):
    said = ModelOutput.from_content("mockllm/model", reply)
    said.usage = ModelUsage()  # else the model looks for a tokenizer, in the network
    return said


def model(*replies):
    return get_model("mockllm/model", custom_outputs=[output(reply) for reply in replies])


def counting_model():
    """Its reply depends on the conversation, so that samples may run side by side."""

    def reply(messages, *_):
        return output(str(sum(message.role == "assistant" for message in messages) + 1))

    return get_model("mockllm/model", custom_outputs=reply)


def means(log):
    return {score.name: score.metrics["mean"].value for score in log.results.scores}


def test_an_environment_is_played_over_several_turns(tmp_path):
    task = rollenv_task("suite:Count-v0", episodes=3, seed=5, system="Count.")
    (log,) = eval(task, model=counting_model(), log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert means(log) == {"reward": 3.0, "success": 1.0}
    assert [sample.id for sample in log.samples] == ["seed-5", "seed-6", "seed-7"]
    roles = [message.role for message in log.samples[0].messages]
    assert roles == ["system", *["user", "assistant"] * 3, "user"]
    assert [m.text for m in log.samples[0].messages[1:4]] == ["Say 1, then 2, up to 3.", "1", "turn 1"]
    assert list(tmp_path.glob("*.eval"))


def test_a_wrong_reply_costs_the_reward_and_the_success(tmp_path):
    (log,) = eval(rollenv_task("suite:Count-v0", episodes=1), model=model("1", "", "x" * 10**6), log_dir=str(tmp_path))
    assert means(log) == {"reward": 1.0, "success": 0.0}
    assert log.samples[0].scores["episode_reward"].metadata["turns"] == 3


def test_arguments_and_limits_reach_the_environment(tmp_path):
    task = rollenv_task("suite:Count-v0", episodes=1, max_turns=2, env={"upto": 9})
    (log,) = eval(task, model=counting_model(), log_dir=str(tmp_path))
    score = log.samples[0].scores["episode_reward"]
    assert (score.value, score.explanation) == ({"reward": 2.0, "success": 0.0}, "2 turns, cut off")


def test_a_limit_of_inspects_ends_the_episode_with_what_it_has(tmp_path):
    task = rollenv_task("suite:Count-v0", episodes=1, env={"upto": 9})
    (log,) = eval(task, model=counting_model(), log_dir=str(tmp_path), message_limit=7)
    assert log.status == "success"
    assert log.samples[0].limit.type == "message"
    assert log.samples[0].scores["episode_reward"].value["reward"] >= 2.0


def test_a_real_game_gives_equal_tasks_for_equal_seeds(tmp_path):
    logs = [
        eval(
            rollenv_task("game:GuessTheNumber-v0-easy", episodes=2),
            model=model(*["\\boxed{5}"] * 99),
            log_dir=str(tmp_path),
        )[0]
        for _ in range(2)
    ]
    assert all(log.status == "success" for log in logs)
    played = [[[m.text for m in s.messages] for s in log.samples] for log in logs]
    assert played[0] == played[1]


def test_an_environment_that_raises_fails_its_sample_in_one_line_and_no_other(tmp_path):
    task = rollenv_task("suite:Count-v0", episodes=6, env={"broken_at": 2, "only": 0})
    before = Count.closed
    (log,) = eval(task, model=counting_model(), log_dir=str(tmp_path), fail_on_error=False)
    failed = [sample for sample in log.samples if sample.error]
    assert log.status == "success"
    assert 0 < len(failed) < 6
    assert failed[0].error.message.count("\n") == 0
    assert "suite:Count-v0 (seed" in failed[0].error.message
    assert "failed at turn 2: ValueError: the pipe burst" in failed[0].error.message
    assert means(log)["reward"] == 3.0
    assert Count.closed - before == 6


def test_inspect_stops_at_a_failure_unless_told_otherwise(tmp_path):
    task = rollenv_task("suite:Count-v0", episodes=1, env={"broken_at": 1})
    (log,) = eval(task, model=counting_model(), log_dir=str(tmp_path))
    assert log.status == "error"
    assert "the pipe burst" in log.error.message


def test_what_cannot_be_made_is_said_before_anything_is_played():
    with pytest.raises(UnknownEnv, match="suite:Nothing"):
        rollenv_task("suite:Nothing-v0")


def test_an_environment_that_hangs_does_not_keep_inspect_or_the_process(tmp_path):
    code = f"""
    import sys, time
    sys.argv = ["x"]
    sys.path[:0] = [{str(Path(__file__).parent)!r}]
    import inspect_suite as suite
    task = suite.rollenv_task("suite:Count-v0", episodes=2, env={{"hangs_at": 2}})
    (log,) = suite.eval(task, model=suite.counting_model(), log_dir={str(tmp_path)!r}, time_limit=2)
    rewards = [sample.scores["episode_reward"].value["reward"] for sample in log.samples]
    print(log.status, [sample.limit.type for sample in log.samples], rewards)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["success ['time', 'time'] [1.0, 1.0]"], done.stderr[-2000:]


def test_a_slow_step_that_was_given_up_is_over_before_the_episode_is_closed(tmp_path):
    events = []

    class Slow(Count):
        def _step(self, action):
            time.sleep(1.5)
            events.append("stepped")
            return super()._step(action)

        def close(self):
            events.append("closed")

    rollenv.register("suite:Slow-v0", Slow)
    task = rollenv_task("suite:Slow-v0", episodes=1)
    events.clear()
    (log,) = eval(task, model=counting_model(), log_dir=str(tmp_path), time_limit=1)
    assert log.samples[0].limit.type == "time"
    assert events == ["stepped", "closed"]


def test_another_solver_is_not_scored(tmp_path):
    @solver
    def idle():
        async def solve(state, generate):
            return state

        return solve

    (log,) = eval(rollenv_task("suite:Count-v0", episodes=1), solver=idle(), model=model(), log_dir=str(tmp_path))
    assert "no episode was played" in log.samples[0].scores["episode_reward"].explanation


# -- the package -----------------------------------------------------------------------------------------------------


def test_inspect_finds_the_task_and_the_sandbox_by_the_entry_point(tmp_path):
    """As with rollenv installed: by what pyproject.toml declares."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["inspect_ai"]
    metadata = tmp_path / "site-packages" / "rollenv-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rollenv\nVersion: 0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in declared.items())
    (metadata / "entry_points.txt").write_text(f"[inspect_ai]\n{lines}")
    (tmp_path / "site-packages" / "rollenv").symlink_to(ROOT / "rollenv")
    code = f"""
    from inspect_ai import eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    said = ModelOutput.from_content("mockllm/model", "5")
    said.usage = ModelUsage()
    model = get_model("mockllm/model", custom_outputs=lambda *_: said)
    settings = {{"env_id": "game:GuessTheNumber-v0-easy", "episodes": 1, "max_turns": 1}}
    (log,) = eval("rollenv/rollenv_task", task_args=settings, model=model, sandbox="rollenv", log_dir={str(tmp_path)!r})
    print(log.status, log.eval.task, log.samples[0].scores["episode_reward"].metadata["turns"])
    """
    settings = {"env": os.environ | {"PYTHONPATH": str(tmp_path / "site-packages")}, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, **settings)
    assert done.stdout.splitlines()[-1:] == ["success rollenv/rollenv_task 1"], done.stdout[-999:] + done.stderr[-999:]


def test_pictures_are_images_of_messages(tmp_path):
    task = rollenv_task("game:Sokoban-v0-tiny", episodes=1, seed=3, max_turns=2, env={"images": "only"})
    (log,) = eval(task, model=model("right", "down"), log_dir=str(tmp_path))
    asked = [message.content for message in log.samples[0].messages if message.role == "user"]
    env = rollenv.make("game:Sokoban-v0-tiny", images="only")
    images = [env.reset(3)[1]["images"], env.step("right")[4]["images"]]
    kept = {f"attachment://{name}": data for name, data in log.samples[0].attachments.items()}
    shown = [[kept[part.image] for part in content if part.type == "image"] for content in asked[:2]]
    assert shown == [[image.url for image in each] for each in images]
