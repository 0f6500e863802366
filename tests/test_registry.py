"""Ids, lookup, arguments, plug-ins."""

import pickle
import random
import subprocess
import sys
import textwrap

import pytest

import rollenv
from rollenv import MissingExtra, UnknownEnv, UsageError, registry


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


def test_an_id_like_no_other_points_to_the_list():
    with pytest.raises(UnknownEnv, match="rollenv list"):
        rollenv.make("qqqqqqqqqqqq")


def test_a_mistyped_argument_names_the_nearest():
    with pytest.raises(UsageError, match="'num_box'; did you mean 'num_boxes'"):
        rollenv.make("game:Sokoban-v0-easy", num_box=3)


def test_arguments_override_the_registered_ones_and_are_kept_in_the_spec():
    env = rollenv.make("game:Sokoban-v0-easy", num_boxes=1)
    assert env.num_boxes == 1
    assert env.spec.kwargs["num_boxes"] == 1
    assert rollenv.spec("game:Sokoban-v0-easy").kwargs["num_boxes"] == 2
    assert rollenv.make(env.spec).num_boxes == 1


def test_the_seed_argument_starts_the_private_stream():
    def boards(seed):
        env = rollenv.make("game:Sokoban-v0-easy", seed=seed)
        return [env.reset()[1]["suffix"] for _ in range(3)]

    random.seed(0)
    first = boards(5)
    random.seed(1)
    assert boards(5) == first
    assert boards(6) != first


def test_register_refuses_taken_and_malformed_ids_and_unknown_abilities(scratch_registry):
    rollenv.register("test:Mine-v0", "rollenv.envs.sokoban:Sokoban", num_boxes=1)
    assert rollenv.make("test:Mine-v0").num_boxes == 1
    with pytest.raises(UsageError, match="taken"):
        rollenv.register("test:Mine-v0", "rollenv.envs.sokoban:Sokoban")
    with pytest.raises(UsageError, match="namespace:Name"):
        rollenv.register("NoNamespace", "rollenv.envs.sokoban:Sokoban")
    with pytest.raises(UsageError, match="fly"):
        rollenv.register("test:Other-v0", "rollenv.envs.sokoban:Sokoban", abilities=["fly"])


def test_a_broken_entry_point_says_which(scratch_registry):
    rollenv.register("test:Gone-v0", "no_such_module:Thing")
    with pytest.raises(UsageError, match=r"test:Gone-v0.*no_such_module"):
        rollenv.make("test:Gone-v0")


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
    for spec in rollenv.list_envs():
        assert pickle.loads(pickle.dumps(spec)) == spec


def test_another_package_adds_environments_through_its_entry_point(tmp_path):
    (tmp_path / "lake_pack.py").write_text(
        textwrap.dedent(
            """
            import rollenv
            def add():
                rollenv.register("pack:Lake-v0", "rollenv.envs.frozen_lake:FrozenLake", size=3)
            """
        )
    )
    info = tmp_path / "lake_pack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lake-pack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollenv.envs]\ngood = lake_pack:add\nbad = lake_pack:missing\n")
    code = (
        "import warnings, rollenv\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    env = rollenv.make('pack:Lake-v0')\n"
        "assert env.size == 3\n"
        "assert 'lake_pack:missing' in str(caught[0].message), caught\n"
        "assert 'pack:Lake-v0' in [s.id for s in rollenv.list_envs()]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_importing_rollenv_is_quick_and_light():
    code = (
        "import sys, time; t = time.perf_counter(); import rollenv; t = time.perf_counter() - t\n"
        "heavy = {'torch', 'transformers', 'ray', 'typer', 'fastapi', 'starlette', 'matplotlib'} & set(sys.modules)\n"
        "print(t, *heavy)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() for _ in range(5)
    ]
    assert all(len(run) == 1 for run in runs), runs
    assert min(float(run[0]) for run in runs) < 0.3


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
