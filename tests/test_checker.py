"""Every registered environment passes; for each property there is an environment that breaks just that one."""

import json
import os
import random
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import available
import pytest

import rollenv
from rollenv import Env
from rollenv.core import registry
from rollenv.core.checker import CHECKS, check_env, run_checks
from rollenv.core.checker.digests import TwinProcess
from rollenv.core.errors import Broken
from rollenv.core.registry import ABILITIES

pytestmark = pytest.mark.early
COUNTER = [0]


class Guess(Env):
    """Guess the number; keeps every promise."""

    def __init__(self, limit=6):
        self.limit = limit
        self.secret = self.turn = 0

    def _reset(self, options):
        self.secret, self.turn = self.randint(10), 0
        return "Guess a number from 0 to 9.", {"suffix": f"{self.limit} turns"}

    def _step(self, action):
        self.turn += 1
        guess = action.strip()
        valid = guess.isdecimal() and guess.isascii() and len(guess) == 1
        won = valid and int(guess) == self.secret
        said = "right" if won else "higher" if valid and int(guess) < self.secret else "lower"
        last = self.turn >= self.limit and not won
        info = {"valid": valid}
        if won or last:
            info["success"] = won
        return said, float(won), won, last, info

    def render(self):
        return f"the number is {self.secret}"

    def sample_random_action(self):
        return str(self.action_rng.randrange(10))

    def oracle_action(self):
        return str(self.secret)

    def state_key(self):
        return str(self.secret)

    def _get_state(self):
        return {"secret": self.secret, "turn": self.turn}

    def _set_state(self, state):
        self.secret, self.turn = state["secret"], state["turn"]


class IntegerReward(Guess):
    def _step(self, action):
        observation, reward, *rest = super()._step(action)
        return observation, bool(reward), *rest


class BothFlags(Guess):
    def _step(self, action):
        observation, reward, terminated, truncated, info = super()._step(action)
        return observation, reward, terminated or truncated, truncated, info


class Unseeded(Guess):
    def _reset(self, options):
        result = super()._reset(options)
        COUNTER[0] += 1
        self.secret = COUNTER[0] % 10
        return f"{result[0]} {COUNTER[0]}", result[1]


class Remembers(Guess):
    """What an episode says depends on how many turns were ever played."""

    total = 0

    def _step(self, action):
        self.total += 1
        observation, *rest = super()._step(action)
        return f"{observation} {self.total}", *rest


class Salted(Guess):
    def _reset(self, options):
        result = super()._reset(options)
        return f"{result[0]} {hash('a string')}", result[1]


class DrawsGlobally(Guess):
    def _reset(self, options):
        result = super()._reset(options)
        self.secret = random.randrange(10)
        return result


class Endless(Guess):
    def _step(self, action):
        observation, reward, _, _, info = super()._step(action)
        return observation, reward, False, False, info


class TakesAnyOption(Guess):
    def reset(self, seed=None, *, options=None):
        return super().reset(seed)


class Unguarded(Guess):
    def step(self, action):
        return self._step(action)


class ForgetsTurn(Guess):
    def _get_state(self):
        return {"secret": self.secret}

    def _set_state(self, state):
        self.secret = state["secret"]


class SharesState(Guess):
    def __init__(self, limit=6):
        super().__init__(limit)
        self.played = []

    def _reset(self, options):
        self.played = []
        return super()._reset(options)

    def _step(self, action):
        self.played.append(action)
        observation, *rest = super()._step(action)
        return f"{observation} {len(self.played)}", *rest

    def spawn(self, same_state=False, **kwargs):
        import copy

        if not same_state:
            return super().spawn(**kwargs)

        twin = copy.copy(self)
        twin._np_random = copy.deepcopy(self.np_random)
        return twin


class Unparsable(Guess):
    def sample_random_action(self):
        return "a" if self.action_rng.random() < 0.1 else "3"


class SamplesFromTheEpisode(Guess):
    def _step(self, action):
        self.secret = (self.secret + self.randint(3)) % 10
        return super()._step(action)

    def sample_random_action(self):
        return str(self.randint(10))


class BadOracle(Guess):
    def oracle_action(self):
        return "3"


class OneKey(Guess):
    def state_key(self):
        return "here"


class TooManyKeys(Guess):
    def state_key(self):
        return f"{self.secret} {self.turn}"


class Hidden(Guess):
    """The player does not see the secret; the key stands for it."""

    def render(self):
        return "?"


class Fragile(Guess):
    def _step(self, action):
        int(action)
        return super()._step(action)


class Echoes(Guess):
    def _step(self, action):
        _, *rest = super()._step(action)
        return f"you said {action}", *rest


class LeavesThread(Guess):
    def __init__(self, limit=6):
        super().__init__(limit)
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait, daemon=True).start()


class LeavesFile(Guess):
    kept: list = []

    def __init__(self, limit=6):
        super().__init__(limit)
        self.kept.append(open(__file__))  # noqa: SIM115


class SeedsTorch(Guess):
    def _reset(self, options):
        import torch

        torch.manual_seed(1)
        return super()._reset(options)


class ChangesALimit(Guess):
    def _reset(self, options):
        sys.setrecursionlimit(sys.getrecursionlimit() + 1)
        return super()._reset(options)


class SharesInfo(Guess):
    info: dict = {}

    def _reset(self, options):
        return super()._reset(options)[0], self.info


class Surrogate(Guess):
    def _step(self, action):
        return "a\ud800", *super()._step(action)[1:]


class WordAsMetric(Guess):
    info = {"metrics": {"speed": "fast"}}

    def _step(self, action):
        *rest, info = super()._step(action)
        return *rest, {**info, **self.info}


class PathInInfo(WordAsMetric):
    info = {"file": Path("board.txt")}


BROKEN = [
    (IntegerReward, "types"),
    (Surrogate, "types"),
    (WordAsMetric, "types"),
    (PathInInfo, "types"),
    (BothFlags, "types"),
    (Unseeded, "seeds"),
    (Remembers, "replay"),
    (Salted, "processes"),
    (DrawsGlobally, "global rng"),
    (SeedsTorch, "global rng"),
    (Unguarded, "over"),
    (Endless, "over"),
    (TakesAnyOption, "options"),
    (ForgetsTurn, "state"),
    (SharesState, "spawn"),
    (Unparsable, "random actions"),
    (SamplesFromTheEpisode, "random actions"),
    (BadOracle, "oracle"),
    (OneKey, "state key"),
    (TooManyKeys, "state key"),
    (Fragile, "hostile"),
    (Echoes, "hostile"),
    (LeavesThread, "leaks"),
    (LeavesFile, "leaks"),
    (ChangesALimit, "leaks"),
    (SharesInfo, "gymnasium"),
]


@pytest.fixture(scope="module")
def twin():
    with TwinProcess() as process:
        yield process


def test_a_state_may_have_parts_that_the_player_does_not_see():
    found = {
        finding.name: finding for finding in run_checks(Hidden, abilities=["random_action", "state_key"], episodes=3)
    }
    assert found["state key"].ok, found["state key"].detail


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("env_id", available.CHECKED)
def test_every_registered_environment_keeps_its_promises(env_id, twin):
    findings = run_checks(env_id, episodes=4 if env_id in available.COSTLY else 10, twin_process=twin)
    assert [f"{f.name}: {f.detail}" for f in findings if f.ok is False] == []
    always = {"types", "global rng", "over", "options", "hostile", "leaks", "gymnasium"}
    assert always <= {f.name for f in findings if f.ok}


@pytest.fixture
def spec_of(monkeypatch, tmp_path):
    """Register a class of this module; another process finds it through PYTHONPATH."""
    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))

    def add(cls, **kwargs):
        rollenv.register(f"test:{cls.__name__}-v0", f"{__name__}:{cls.__name__}", abilities=ABILITIES, **kwargs)
        return rollenv.spec(f"test:{cls.__name__}-v0")

    monkeypatch.setenv("PYTHONPATH", str(__import__("pathlib").Path(__file__).parent))
    return add


@pytest.mark.smoke
def test_an_environment_that_keeps_every_promise(spec_of):
    findings = check_env(spec_of(Guess))
    assert [f.name for f in findings] == list(CHECKS)
    assert all(f.ok for f in findings if f.name not in ("indexed", "players")), findings


@pytest.mark.integration
@pytest.mark.parametrize(("cls", "property_name"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_a_broken_promise_is_found_and_named(cls, property_name, spec_of):
    findings = {f.name: f for f in run_checks(spec_of(cls))}
    assert findings[property_name].ok is False, findings
    assert findings[property_name].detail
    with pytest.raises(Broken, match=property_name):
        check_env(spec_of_again(cls))


class UsesTorch(Guess):
    def _reset(self, options):
        import torch

        torch.ones(3).sum()
        return super()._reset(options)


def test_torch_may_be_used_without_its_generator(spec_of):
    found = {f.name: f for f in run_checks(spec_of(UsesTorch), episodes=1)}
    assert found["global rng"].ok, found


class LeavesNoFolder(Guess):
    def _reset(self, options):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
        return super()._reset(options)


class PrintsNowhere(Guess):
    def _reset(self, options):
        sys.stdout = None
        return super()._reset(options)


class ImportsOpenCV(Guess):
    def _reset(self, options):
        os.environ["LD_LIBRARY_PATH"] = f"/cv2:{os.environ['LD_LIBRARY_PATH']}"
        return super()._reset(options)


@pytest.mark.parametrize(
    ("cls", "what"), [(LeavesNoFolder, "the working folder"), (PrintsNowhere, "sys.stdout"), (ImportsOpenCV, "")]
)
def test_what_an_environment_changes_in_its_process_is_named(cls, what, spec_of, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/cuda")
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.chdir(os.getcwd())
    found = {f.name: f for f in run_checks(spec_of(cls), episodes=1)}
    assert found["leaks"].ok == (not what)
    assert what in str(found["leaks"])


def spec_of_again(cls):
    return rollenv.spec(f"test:{cls.__name__}-v0")


class Clock(Guess):
    """Tells the time."""

    def _step(self, action):
        said, *rest = super()._step(action)
        return f"{said} {time.time_ns()}", *rest


@pytest.mark.integration
def test_what_is_declared_nondeterministic_may_differ(spec_of):
    settings = {"abilities": ["random_action", "oracle"]}
    assert any(f.ok is False for f in run_checks(spec_of(Clock), **settings))
    rollenv.register("test:Clock-v1", f"{__name__}:Clock", abilities=settings["abilities"], nondeterministic=True)
    assert not [f for f in run_checks("test:Clock-v1") if f.ok is False]


class CountsInstances(Guess):
    """Its info differs between instances."""

    def _reset(self, options):
        COUNTER[0] += 1
        observation, info = super()._reset(options)
        return observation, {**info, "instance": COUNTER[0]}


def test_what_differs_is_named(spec_of):
    found = {f.name: f for f in run_checks(spec_of(CountsInstances), episodes=2)}
    assert found["seeds"].detail.endswith("they differ at reset, in info['instance']")


class SeldomBeaten(Guess):
    """Its oracle loses the first episode of each, and every one from ``bad`` on."""

    def __init__(self, bad=10**9):
        super().__init__()
        self.bad = bad

    def reset(self, seed=None, *, options=None):
        self.weak = seed is not None and (seed == 0 or seed >= self.bad)
        return super().reset(seed, options=options)

    def oracle_action(self):
        return "none" if self.weak else super().oracle_action()


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("promised", "bad", "kept"),
    [
        (1.0, 10**9, False),
        (0.99, 10**9, True),
        (0.99, 50, False),
        (0.95, 10**9, True),
        (0.95, 9, False),
        (0.9, 5, False),
    ],
)
def test_one_loss_of_an_oracle_is_judged_by_as_many_episodes_as_its_promise_needs(promised, bad, kept, spec_of, twin):
    spec = spec_of(SeldomBeaten, oracle_success=promised, bad=bad)
    found = {f.name: f for f in run_checks(spec, ["oracle"], episodes=5, twin_process=twin)}
    assert found["oracle"].ok is kept, found


def test_a_spec_that_cannot_be_pickled_is_found(spec_of):
    spec_of(Guess)
    rollenv.register("test:Lambda-v0", f"{__name__}:Guess", limit=lambda: 3)
    findings = {f.name: f for f in run_checks("test:Lambda-v0", abilities=[])}
    assert findings["spec"].ok is False


def test_what_is_not_declared_is_not_demanded():
    findings = {f.name: f for f in run_checks(Guess)}
    assert findings["types"].ok
    assert findings["oracle"].ok is None
    assert "oracle" in findings["oracle"].detail
    assert findings["processes"].ok is None


def test_an_exception_in_the_environment_is_a_finding_not_a_crash():
    class Explodes(Guess):
        def _reset(self, options):
            raise ValueError("no such level")

    findings = run_checks(Explodes)
    assert all(f.ok is False for f in findings if f.name in ("types", "seeds", "hostile"))
    assert any("no such level" in f.detail for f in findings)


@pytest.mark.integration
def test_the_command_shows_a_table_and_exits_with_1_when_something_is_broken(rollenv_command):
    good = rollenv_command("check", "roll:FrozenLake-v0", "-n", "5")
    assert good.returncode == 0, good.stderr
    assert "0 broken" in good.stdout
    unknown = rollenv_command("check", "roll:FrozenLake-v9")
    assert unknown.returncode == 2
    assert "roll:FrozenLake-v0" in unknown.stderr
    listed = rollenv_command("list", "--json")
    assert len(json.loads(listed.stdout)) == len(rollenv.list_envs())


class TypesWrong(rollenv.Wrapper):
    """Returns what no environment may."""

    def step(self, action):
        return 1.0, "no", 1, 0, None


@pytest.mark.integration
def test_a_wrapper_is_checked_and_not_what_it_wraps(spec_of):
    env = TypesWrong(spec_of(Guess).make())
    with pytest.raises(Broken, match="types"):
        check_env(env)
    assert {f.name for f in run_checks(lambda: TypesWrong(Guess())) if f.ok is False} >= {"types", "hostile"}
    good = run_checks(rollenv.Wrapper(spec_of_again(Guess).make()))
    assert [f.name for f in good if f.ok is False] == []
    assert {f.name for f in good if f.ok} >= {"state", "spawn", "oracle"}, "held to what the inner spec declares"


class DiesElsewhere(Guess):
    """Takes down, or holds up, any process but the one that it was first made in."""

    home = 0

    def _reset(self, options):
        if "PYTEST_CURRENT_TEST" in os.environ and os.environ.get("PYTHONHASHSEED") == "4321":
            os._exit(3)
        return super()._reset(options)


class HangsElsewhere(Guess):
    def _reset(self, options):
        if os.environ.get("PYTHONHASHSEED") == "4321":
            time.sleep(3600)
        return super()._reset(options)


class PrintsElsewhere(Guess):
    def _reset(self, options):
        os.write(1, b"noise" * 1000)
        return super()._reset(options)


@pytest.mark.integration
def test_an_environment_that_kills_or_holds_up_the_twin_process_harms_no_other(spec_of):
    with TwinProcess() as twin:
        broken = []
        for cls in (DiesElsewhere, Guess, HangsElsewhere, PrintsElsewhere, Salted):
            twin.timeout = 2.0 if cls is HangsElsewhere else 120.0
            findings = run_checks(spec_of(cls), episodes=2, twin_process=twin)
            broken += [(cls.__name__, f.name) for f in findings if f.ok is False]
    assert broken == [("DiesElsewhere", "processes"), ("HangsElsewhere", "processes"), ("Salted", "processes")]


@pytest.mark.slow
@pytest.mark.integration
def test_the_command_goes_on_after_an_environment_that_hangs_or_dies(tmp_path, rollenv_process):
    (tmp_path / "bad_pack.py").write_text(
        textwrap.dedent(
            """
            import os, time, rollenv
            class Hangs(rollenv.Env):
                def _reset(self, options):
                    time.sleep(3600)
            class Dies(rollenv.Env):
                def _reset(self, options):
                    os._exit(1)
            def add():
                rollenv.register("bad:Hangs-v0", "bad_pack:Hangs")
                rollenv.register("bad:Dies-v0", "bad_pack:Dies")
            """
        )
    )
    info = tmp_path / "bad_pack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-pack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollenv.envs]\nbad = bad_pack:add\n")
    ids = ["bad:Dies-v0", "bad:Hangs-v0", "roll:FrozenLake-v0"]
    done = rollenv_process("check", *ids, "-n", "2", "--timeout", "15", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stderr
    assert "bad:Dies-v0, types: another process" in done.stdout
    assert "did not answer in 15 s" in done.stdout.replace("\n", " ")
    assert "roll:FrozenLake-v0," not in done.stdout, "it is not broken"
    assert "2 broken" in done.stdout


class Leaves(Guess):
    def _step(self, action):
        raise SystemExit(0)


class LeavesAChild(Guess):
    """Its child holds what the process had open; the process itself dies."""

    def _reset(self, options):
        if os.environ.get("PYTHONHASHSEED") == "4321":
            if os.fork() == 0:
                time.sleep(30)
            os._exit(1)
        return super()._reset(options)


def test_an_environment_that_exits_is_a_finding(spec_of):
    found = {f.name: f.detail for f in run_checks(spec_of(Leaves), episodes=2) if f.ok is False}
    assert "SystemExit" in found["types"]


@pytest.mark.integration
def test_a_twin_process_that_died_is_not_waited_for(spec_of):
    started = time.monotonic()
    findings = run_checks(spec_of(LeavesAChild), episodes=1)
    assert [f.name for f in findings if f.ok is False] == ["processes"]
    assert time.monotonic() - started < 25, "it waited for the child"
