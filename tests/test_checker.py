"""For each property there is an environment that breaks just that one, and the checker names it."""

import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
from checked import Guess, Salted

import rollenv
from rollenv.core.checker import CHECKS, check_env, run_checks
from rollenv.core.errors import Broken
from rollenv.core.wrappers.tracking import EpisodeTrackingWrapper

COUNTER = [0]


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


class TakesDigits(Guess):
    def _step(self, action):
        if action.isdigit():
            int(action)
        return super()._step(action)


class TakesJson(Guess):
    def _step(self, action):
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(action).get("tool")
        return super()._step(action)


class PaysInARow(Guess):
    """A reward that depends on whether the last episode was won."""

    won = 0.0

    def _step(self, action):
        observation, reward, *rest = super()._step(action)
        reward, self.won = reward + reward * self.won, float(reward)
        return observation, reward, *rest


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


class UsesTorch(Guess):
    def _reset(self, options):
        import torch

        torch.ones(3).sum()
        return super()._reset(options)


BROKEN = [
    (IntegerReward, "types"),
    (Surrogate, "types"),
    (WordAsMetric, "types"),
    (PathInInfo, "types"),
    (BothFlags, "types"),
    (Unseeded, "seeds"),
    (Remembers, "replay"),
    (PaysInARow, "replay"),
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
    (TakesDigits, "hostile"),
    (TakesJson, "hostile"),
    (Echoes, "hostile"),
    (LeavesThread, "leaks"),
    (LeavesFile, "leaks"),
    (ChangesALimit, "leaks"),
    (SharesInfo, "gymnasium"),
]


@pytest.mark.smoke
def test_an_environment_that_keeps_every_promise(spec_of):
    findings = check_env(spec_of(Guess))
    assert [f.name for f in findings] == list(CHECKS)
    assert all(f.ok for f in findings if f.name not in ("indexed", "players")), findings


@pytest.mark.integration
@pytest.mark.parametrize(("cls", "property_name"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_a_broken_promise_is_found_and_named(cls, property_name, spec_of):
    spec = spec_of(cls)
    findings = {f.name: f for f in run_checks(spec)}
    assert findings[property_name].ok is False, findings
    assert findings[property_name].detail
    with pytest.raises(Broken, match=property_name):
        check_env(spec)


@pytest.mark.parametrize(("cls", "property_name"), [(Hidden, "state key"), (UsesTorch, "global rng")])
def test_what_is_allowed_is_no_finding(cls, property_name, spec_of):
    found = {f.name: f for f in run_checks(spec_of(cls), episodes=3)}
    assert found[property_name].ok, found


class NoRoom(Guess):
    def _reset(self, options):
        if self.np_random_seed == 2:
            raise ValueError("no room")
        return super()._reset(options)


def test_a_seed_that_raises_is_one_finding_that_names_it(spec_of):
    assert [f.detail for f in run_checks(spec_of(NoRoom), episodes=3) if f.ok is False] == [
        "reset(2) failed: ValueError: no room"
    ]


class Warns(Guess):
    def _step(self, action):
        warnings.warn("an odd step", stacklevel=1)
        return super()._step(action)


def with_a_wrapper():
    """GEM's wrapper tells of the episode before."""
    return EpisodeTrackingWrapper(Guess())


@pytest.mark.filterwarnings("ignore:an odd step")
@pytest.mark.parametrize(("made", "property_name"), [(Warns, "gymnasium"), (with_a_wrapper, "replay")])
def test_what_a_wrapper_tells_and_an_environment_warns_of_is_no_finding(made, property_name):
    found = {f.name: f for f in run_checks(made, episodes=2)}
    assert found[property_name].ok, found


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


def test_a_spec_that_cannot_be_pickled_is_found(spec_of):
    spec_of(Guess)
    rollenv.register("test:Lambda-v0", "checked:Guess", limit=lambda: 3)
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
    assert {f.name: f.ok for f in findings} == {**dict.fromkeys(CHECKS), "types": False}, (
        "one fault, not one for each check"
    )
    assert all("no such level" in f.detail for f in findings)


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
    good = run_checks(rollenv.Wrapper(rollenv.make("test:Guess-v0")))
    assert [f.name for f in good if f.ok is False] == []
    assert {f.name for f in good if f.ok} >= {"state", "spawn", "oracle"}, "held to what the inner spec declares"


class Leaves(Guess):
    def _step(self, action):
        raise SystemExit(0)


def test_an_environment_that_exits_is_a_finding(spec_of):
    found = {f.name: f.detail for f in run_checks(spec_of(Leaves), episodes=2) if f.ok is False}
    assert "SystemExit" in found["types"]
