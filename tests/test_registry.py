"""Ids, lookup, arguments, plug-ins."""

import pickle
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from packages import declare

import rollenv
from rollenv import MissingExtra, UnknownEnv, UsageError
from rollenv.agents.base import OracleAgent
from rollenv.core import cards, registry
from rollenv.core.errors import BadEntryPoint, did_you_mean
from rollenv.core.needs import Ability
from rollenv.core.wrappers import EpisodeTrackingWrapper
from rollenv.envs.game.frozen_lake import FrozenLake
from rollenv.rollout.evaluate import evaluate


@pytest.fixture
def scratch_registry(monkeypatch):
    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        ("game:Sokoban-v0-esay", "game:Sokoban-v0-easy"),
        ("game:sokoban-v0-hard", "game:Sokoban-v0-hard"),
        ("Sokoban-v0-easy", "game:Sokoban-v0-easy"),
        ("roll:FrozenLake", "roll:FrozenLake-v0"),
    ],
)
def test_an_unknown_id_names_the_nearest(asked, suggested):
    with pytest.raises(UnknownEnv, match=suggested):
        rollenv.make(asked)


def test_swapped_letters_are_the_nearest():
    assert did_you_mean("gpro", ["hgpo", "grpo", "gspo"]) == "did you mean grpo?"


def test_files_are_not_alike_by_their_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    for name, near in (("x.toml", False), ("pyprojcet.toml", True)):
        with pytest.raises(UnknownEnv) as unknown:
            rollenv.make(name)
        assert ("pyproject.toml" in str(unknown.value)) == near


def test_what_an_environment_raises_is_said_on_its_card(scratch_registry):
    class Broken(rollenv.Env):
        """Breaks."""

        def _reset(self, options):
            raise ZeroDivisionError("no start")

    rollenv.register("mine:Broken-v0", Broken)
    assert "ZeroDivisionError: no start" in cards.card(rollenv.spec("mine:Broken-v0")).problem


def test_a_mistyped_file_names_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").touch()
    for asked in ("sums.jsnl", str(tmp_path / "sum.jsonl")):
        with pytest.raises(UnknownEnv, match=r"did you mean .*sums\.jsonl"):
            rollenv.spec(asked)


def test_an_id_like_no_other_points_to_the_list():
    with pytest.raises(UnknownEnv, match="rollenv list"):
        rollenv.make("qqqqqqqqqqqq")


def test_a_mistyped_argument_names_the_nearest():
    with pytest.raises(UsageError, match="'num_boxes'"):
        rollenv.make("game:Sokoban-v0-easy", num_box=3)


def test_arguments_override_the_registered_ones_and_are_kept_in_the_spec():
    env = rollenv.make("game:Sokoban-v0-easy", num_boxes=1)
    assert env.num_boxes == 1
    assert env.spec.kwargs["num_boxes"] == 1
    assert rollenv.spec("game:Sokoban-v0-easy").kwargs["num_boxes"] == 2
    assert rollenv.make(env.spec).num_boxes == 1


def test_register_refuses_taken_and_malformed_ids_and_unknown_abilities(scratch_registry):
    rollenv.register("test:Mine-v0", "rollenv.envs.game.sokoban:Sokoban", num_boxes=1)
    assert rollenv.make("test:Mine-v0").num_boxes == 1
    with pytest.raises(UsageError, match="taken"):
        rollenv.register("test:Mine-v0", "rollenv.envs.game.sokoban:Sokoban")
    with pytest.raises(UsageError, match="namespace:Name"):
        rollenv.register("NoNamespace", "rollenv.envs.game.sokoban:Sokoban")
    with pytest.raises(UsageError, match="fly"):
        rollenv.register("test:Other-v0", "rollenv.envs.game.sokoban:Sokoban", abilities=["fly"])


@pytest.mark.parametrize(
    ("env_id", "entry_point", "says"),
    [(5, dict, "5"), ("test:A-v0", None, "None"), ("test:A-v0", "json", "module:name")],
)
def test_register_refuses_what_cannot_be_an_id_or_an_entry_point(scratch_registry, env_id, entry_point, says):
    with pytest.raises(UsageError, match=says):
        rollenv.register(env_id, entry_point)


def test_abilities_and_needs_may_be_one_text(scratch_registry):
    rollenv.register("test:A-v0", FrozenLake, abilities="oracle, state", needs="datasets")
    assert (rollenv.spec("test:A-v0").abilities, rollenv.spec("test:A-v0").needs) == (
        {"oracle", "state"},
        ("datasets",),
    )


@pytest.mark.parametrize("why", [None, "", "switch it on"])
def test_what_a_host_has_to_allow_is_asked_of_a_function(scratch_registry, monkeypatch, rollenv_command, why):
    asked = types.ModuleType("asked_of_host")
    asked.why_not = lambda: why
    monkeypatch.setitem(sys.modules, "asked_of_host", asked)
    rollenv.register("test:A-v0", FrozenLake, needs=[Ability("a switch", "asked_of_host:why_not")])
    assert [str(need) for need in rollenv.spec("test:A-v0").missing] == (["a switch"] if why else [])
    shown = rollenv_command("list", "test:A-v0", "--all").stdout
    assert ("needs a switch: switch it on" in " ".join(shown.split())) == bool(why)


@pytest.mark.parametrize("returned", [None, {}, "env"])
def test_a_factory_that_returns_no_environment_is_named(scratch_registry, returned):
    rollenv.register("test:Odd-v0", lambda: returned)
    with pytest.raises(UsageError, match=rf"test:Odd-v0.*{type(returned).__name__}"):
        rollenv.make("test:Odd-v0")


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3), np.array(3)])
def test_seeds_of_an_environment_may_be_numpy_integers(seed):
    first = rollenv.make("game:GuessTheNumber-v0", seed=3).reset()
    assert rollenv.make("game:GuessTheNumber-v0", seed=seed).reset() == first
    assert rollenv.make("game:GuessTheNumber-v0").reset(seed) == rollenv.make("game:GuessTheNumber-v0").reset(3)


@pytest.mark.parametrize("seed", ["3", -1, 1.5])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(UsageError, match="seed"):
        rollenv.make("game:GuessTheNumber-v0").reset(seed)


def test_a_type_error_inside_an_environment_is_not_taken_for_a_wrong_argument(scratch_registry):
    def broken(size=1):
        return size + "1"

    rollenv.register("test:Broken-v0", broken)
    with pytest.raises(TypeError, match="unsupported operand"):
        rollenv.make("test:Broken-v0")


def test_specs_are_sorted_filtered_and_picklable():
    ids = [s.id for s in rollenv.list_envs()]
    assert ids == sorted(ids)
    assert {s.id for s in rollenv.list_envs("frozenlake")} == {i for i in ids if "FrozenLake" in i}
    assert [s.id for s in rollenv.list_envs("game:*-v0-tiny")] == ["game:Sokoban-v0-tiny"]
    for spec in rollenv.list_envs():
        assert pickle.loads(pickle.dumps(spec)) == spec


def test_another_package_adds_environments_through_its_entry_point(tmp_path):
    (tmp_path / "lake_pack.py").write_text(
        textwrap.dedent(
            """
            import rollenv, sys
            def leave():
                sys.exit(3)
            def add():
                rollenv.register("pack:Lake-v0", "rollenv.envs.game.frozen_lake:FrozenLake", size=3)
            """
        )
    )
    points = "[rollenv.envs]\na = lake_pack:leave\nbad = lake_pack:missing\ngood = lake_pack:add\n"
    declare(tmp_path, "lake_pack", points)
    code = (
        "import warnings, rollenv\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    env = rollenv.make('pack:Lake-v0')\n"
        "assert env.size == 3\n"
        "said = [str(one.message) for one in caught]\n"
        "assert 'lake_pack:leave' in said[0] and 'lake_pack:missing' in said[1], said\n"
        "assert 'pack:Lake-v0' in [s.id for s in rollenv.list_envs()]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_importing_rollenv_and_listing_its_ids_loads_nothing_heavy():
    heavy = {"torch", "transformers", "ray", "typer", "fastapi", "starlette", "matplotlib", "pandas"}
    heavy |= {"datasets", "libcst"}
    code = f"import sys, rollenv; rollenv.list_envs(); print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_missing_extra_names_the_install_command():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from rollenv import MissingExtra\n"
        "try:\n    import rollenv.agents.local\n"
        "except MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'rollenv[train]'" in done.stdout, done.stderr
    assert issubclass(MissingExtra, ImportError)


def test_a_command_names_the_install_command_of_what_it_imports(tmp_path):
    code = "import sys; sys.modules['torch'] = None; from rollenv.cli.main import main; main()"
    command = [sys.executable, "-c", code, "probe", "game:Sokoban-v0-tiny"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "pip install 'rollenv[train]'" in done.stderr
    assert done.stderr.count("\n") == 1


# -- first use, from many threads, and taken ids ----------------------------------------------------------------------


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("first", ["make('game:Sokoban-v0-easy')", "list_envs()", "register(f'test:E{i}-v0', Env)"])
def test_sixteen_threads_may_use_it_first(first):
    in_a_new_process(
        f"""
        import threading, rollenv
        from rollenv import Env, list_envs, make, register
        barrier, failures, counts = threading.Barrier(16), [], []
        def use(i):
            barrier.wait()
            try:
                {first}
                counts.append(len([s for s in rollenv.list_envs() if s.namespace != "test"]))
                make('game:Sokoban-v0-easy')
            except Exception as error:
                failures.append(repr(error))
        threads = [threading.Thread(target=use, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not failures, failures
        assert len(set(counts)) == 1 and counts[0] > 300, counts
        """
    )


@pytest.mark.slow
def test_an_own_id_that_is_taken_first_is_refused_and_harms_no_other():
    in_a_new_process(
        """
        import rollenv
        try:
            rollenv.register("game:Sokoban-v0-easy", lambda: None)
        except rollenv.UsageError as error:
            assert "taken" in str(error)
        else:
            raise SystemExit("it was not refused")
        assert len(rollenv.list_envs()) > 300
        rollenv.make("game:Sokoban-v0-easy"), rollenv.make("game:Wordle-v0")
        """
    )


def test_an_own_id_put_into_the_registry_by_hand_wins_and_harms_no_other():
    in_a_new_process(
        """
        import rollenv
        from rollenv.core.registry import ENV_REGISTRY, EnvSpec
        ENV_REGISTRY["game:Sokoban-v0-easy"] = EnvSpec("game:Sokoban-v0-easy", rollenv.Env)
        assert type(rollenv.make("game:Sokoban-v0-easy")) is rollenv.Env
        assert len(rollenv.list_envs()) > 300
        """
    )


# -- specs with wrappers and options ----------------------------------------------------------------------------------


def lake(**kwargs):
    """A factory that returns a wrapped environment."""
    return EpisodeTrackingWrapper(FrozenLake(is_slippery=False, **kwargs))


@pytest.mark.parametrize("how", ["factory", "names", "settings", "both"])
def test_a_spec_may_be_wrapped(scratch_registry, how):
    entry = f"{__name__}:lake" if how in ("factory", "both") else "rollenv.envs.game.frozen_lake:FrozenLake"
    settings = {"concat_with_action": {"max_history_length": 1}} if how == "settings" else "concat, episode_tracking"
    rollenv.register("test:Lake-v0", entry, abilities=["spawn"], wrappers=() if how == "factory" else settings, size=3)
    env = rollenv.make("test:Lake-v0", max_turns=4)
    assert env.spec.id == "test:Lake-v0"
    assert env.env_id == "test:Lake-v0"
    for each in (env, env.spawn(), pickle.loads(pickle.dumps(env.spec)).make()):
        depth, inner = 0, each
        while isinstance(inner, rollenv.Wrapper):
            depth, inner = depth + 1, inner.env
        assert depth == {"factory": 1, "names": 2, "settings": 1, "both": 3}[how]
        assert (inner.size, inner.max_turns) == (3, 4)
        _, info = each.reset(0)
        assert ("step_counter" in info) is (how != "settings")
    env.step("x")
    assert env.spawn(same_state=True).reset() == env.reset()


@pytest.mark.parametrize(
    ("wrappers", "says"),
    [
        ("concatt", "concat"),
        ("concat_chat", "tokenizer"),
        ({"concat": {"no_such": 1}}, "no_such"),
        ("no_such_module:wrap", "no_such_module"),
    ],
)
def test_wrappers_of_a_spec_that_are_wrong_are_errors_when_it_is_made(scratch_registry, wrappers, says):
    rollenv.register("test:Lake-v0", "rollenv.envs.game.frozen_lake:FrozenLake", wrappers=wrappers)
    with pytest.raises(UsageError, match=says):
        rollenv.make("test:Lake-v0")


def test_a_spec_may_have_reset_options(scratch_registry):
    rows = [{"problem": f"{i}?", "answer": str(i)} for i in range(5)]
    rollenv.register("test:Rows-v0", "rollenv.envs.math.env:MathEnv", options={"index": 3}, dataset=rows)
    env = rollenv.make("test:Rows-v0")
    assert {env.reset(seed)[1]["idx"] for seed in range(9)} == {3}
    assert env.reset(options={"index": 1})[1]["idx"] == 1
    with pytest.raises(UsageError, match="mean index"):
        env.reset(options={"indx": 1})


#: Gymnasium's own are about wrappers; a state is the wrapper's too.
NOT_PASSED_ON = {"spec", "unwrapped", "env_id", "reset", "get_wrapper_attr", "has_wrapper_attr", "set_wrapper_attr"}
NOT_PASSED_ON |= {"get_state", "set_state"}
DELEGATED = [name for name in dir(rollenv.Env) if not name.startswith("_") and name not in NOT_PASSED_ON]


@pytest.mark.parametrize("name", DELEGATED)
def test_a_wrapper_passes_on_all_that_an_environment_has(name):
    """Whatever Env defines is the inner environment's, although Wrapper inherits it from Env."""

    class Inner(rollenv.Env):
        pass

    asked = []
    if callable(getattr(rollenv.Env, name)):
        setattr(Inner, name, lambda self, *args, **kwargs: asked.append(name) or {})
        arguments = {"step": ("x",), "seed_stream": (1,), "seed_actions": (1,), "randint": (3,)}
        arguments |= {"set_state": ({"env": {}, "wrapper": {}},)}
        getattr(rollenv.Wrapper(Inner()), name)(*arguments.get(name, ()))
        assert asked == [name]
    else:
        marker = object()
        setattr(Inner, name, property(lambda self: marker))
        assert getattr(rollenv.Wrapper(Inner()), name) is marker


@pytest.fixture
def guess_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "guess_of_mine.py"
    file.write_text(
        textwrap.dedent(
            """
            import rollenv

            class Guess(rollenv.Env):
                def _reset(self, options):
                    self.secret = str(self.randint(3))
                    return "0, 1 or 2?", {"actions": ["0", "1", "2"]}

                def _step(self, action):
                    return "", float(action == self.secret), True, False, {"success": action == self.secret}

                def oracle_action(self):
                    return self.secret
            """
        )
    )
    return file


@pytest.mark.parametrize("env_id", ["guess_of_mine:Guess", "guess_of_mine.py:Guess", "./guess_of_mine.py:Guess"])
def test_a_class_is_an_id(guess_file, env_id):
    env = rollenv.make(env_id, seed=1)
    env.reset()
    assert env.sample_random_action() in ("0", "1", "2")
    assert env.spec.abilities == {"oracle"}
    assert env.step(env.oracle_action())[1] == 1.0
    assert evaluate(OracleAgent(), env_id, n=2).success == 1.0
    assert pickle.loads(pickle.dumps(rollenv.spec(env_id))).make().reset(seed=1)[1]


@pytest.mark.parametrize(
    ("env_id", "error"),
    [
        ("guess_of_mine:Nothing", BadEntryPoint),
        ("absent.py:Guess", BadEntryPoint),
        ("guess_of_mine.py:textless", BadEntryPoint),
        ("textwrap:TextWrapper", UsageError),
        ("no_such_module_:Guess", UnknownEnv),
        ("game:wordle", UnknownEnv),
        ("guess_of_mine:Guess-v0", UnknownEnv),
    ],
)
def test_what_is_no_class_of_an_environment_is_no_id(guess_file, env_id, error):
    with pytest.raises(error):
        rollenv.spec(env_id)
