"""The checker beside other processes: the twin that plays the same, the command, and every registered environment."""

import os
import signal
import textwrap
import time
from pathlib import Path

import available
import pytest
from checked import Guess, Salted
from packages import declare

from rollenv.core.checker import run_checks
from rollenv.core.checker.digests import TwinProcess

pytestmark = pytest.mark.early


@pytest.fixture(scope="module")
def twin():
    with TwinProcess() as process:
        yield process


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("env_id", available.CHECKED)
def test_every_registered_environment_keeps_its_promises(env_id, twin):
    findings = run_checks(env_id, episodes=4 if env_id in available.COSTLY else 10, twin_process=twin)
    assert [f"{f.name}: {f.detail}" for f in findings if f.ok is False] == []
    always = {"types", "global rng", "over", "options", "hostile", "leaks", "gymnasium"}
    assert always <= {f.name for f in findings if f.ok}


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
    declare(tmp_path, "bad_pack", "[rollenv.envs]\nbad = bad_pack:add\n")
    ids = ["bad:Dies-v0", "bad:Hangs-v0", "roll:FrozenLake-v0"]
    done = rollenv_process("check", *ids, "-n", "2", "--timeout", "15", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stderr
    assert "bad:Dies-v0, types: another process" in done.stdout
    assert "did not answer in 15 s" in done.stdout.replace("\n", " ")
    assert "roll:FrozenLake-v0," not in done.stdout, "it is not broken"
    assert "2 broken" in done.stdout


class LeavesAChild(Guess):
    """Its child holds what the process had open; the process itself dies."""

    def _reset(self, options):
        if os.environ.get("PYTHONHASHSEED") == "4321":
            if child := os.fork():
                Path(os.environ["LEFT_CHILD"]).write_text(str(child))
                os._exit(1)
            time.sleep(600)
            os._exit(0)
        return super()._reset(options)


@pytest.mark.integration
def test_a_twin_process_that_died_is_not_waited_for(spec_of, tmp_path, monkeypatch):
    monkeypatch.setenv("LEFT_CHILD", str(tmp_path / "child"))
    findings = run_checks(spec_of(LeavesAChild), episodes=1)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # raises if the child has come to its end
    assert [f.name for f in findings if f.ok is False] == ["processes"]
