"""Advantages and losses of the user: functions that a recipe names, or that a trainer is given."""

from __future__ import annotations

import functools
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import words
from tiny_runs import numbers

from rollenv import UsageError
from rollenv.core.plugins import function_at
from rollenv.trainers import Trainer
from rollenv.trainers.config import differences, load_config, with_settings
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources.configured import source_of

MODULE = """
from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import numpy as np
from rollenv.trainers import grpo
from rollenv.trainers.losses import ppo_clip

def same(x, *, std: bool = True):
    return grpo(x.returns, x.groups, std=std)[x.trajectory]

def median(x, scale: float = 1.0, *, kind: str = "all"):
    middle = np.array([np.median(x.returns[x.groups == group]) for group in x.groups])
    return scale * (x.returns - middle)[x.trajectory]

def needs(x, scale: float):
    return np.full(len(x.turn), scale)

def with_common_key(x, whiten=True):
    return x.returns[x.trajectory]

def nothing():
    return 0

def of_trajectories(x):
    return x.returns

def not_finite(x):
    return (x.returns / 0.0)[x.trajectory]

def mutating(x):
    x.rewards[:] = 0
    return x.returns[x.trajectory]


def leaving(x):
    raise SystemExit(3)


def reading(x):
    return json.loads("nothing")


def raising(x):
    return {}["missing"]

def surprise(x):
    return x.entropy - x.entropy.mean()

def clip(x, *, low: float = 0.2):
    return ppo_clip(x, low=low, high=0.28)

def mean(x):
    return -(x.logprobs * x.advantages).mean()

def detached(x):
    return -x.logprobs.detach() * x.advantages

def in_place(x):
    x.advantages -= 1
    return -x.logprobs * x.advantages

def infinite(x):
    return -x.logprobs * x.advantages / 0.0

def number(x):
    return 1.0

def plain(x):
    return -x.logprobs * x.advantages

def evens(first, *, step: int = 2):
    for seed in count(first.seed, step):
        yield replace(first, seed=seed)

def seeds(first, *, step: int = 1):
    for seed in range(first.seed, first.seed + 5, step):
        yield seed if seed > first.seed + 2 else replace(first, seed=seed)

def once(first):
    yield first
    raise ValueError("no more")

def no_generator(first):
    return 3

def length(answer, reward):
    return 10 * reward + len(answer)

constant = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a module that nothing has imported yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_test.py").write_text(MODULE)
    sys.modules.pop("own_test", None)
    yield tmp_path
    sys.modules.pop("own_test", None)


def config_of(*overrides: str):
    return load_config("sokoban", [*words.TRAINED, *overrides])


def trained(name: str, *overrides: str, **functions):
    config = config_of(*overrides, f"run_dir={name}")
    run = RunDir.create(config, "sokoban")
    with Trainer(config, run, **functions) as trainer:
        trainer.fit()
    return numbers(run.path), run


def test_a_function_that_computes_grpo_trains_as_grpo(folder):
    plain = ["algorithm.normalize_std=true", "loss.clip_low=0.2", "loss.clip_high=0.28", "loss.dual=0"]
    built_in, _ = trained("built-in", "algorithm.name=grpo", "loss.name=ppo_clip", *plain)
    own, run = trained("own", "algorithm.name=own_test:same", "loss.name=own_test:clip")
    module = sys.modules["own_test"]
    given, same = trained("given", advantage=module.same, loss=module.clip)
    assert built_in == own == given
    for each in (run, same):
        stored = json.loads(each.config_file.read_text())
        assert (stored["algorithm"]["name"], stored["loss"]["name"]) == ("own_test:same", "own_test:clip")
    assert trained("other", "algorithm.name=own_test:median", "loss.name=own_test:plain")[0] != own


def test_a_run_is_resumed_with_the_function_and_its_arguments(folder):
    whole, _ = trained("whole", "iterations=2", "algorithm.name=own_test:median", "algorithm.scale=0.5")
    _, run = trained("cut", "iterations=1", "algorithm.name=own_test:median", "algorithm.scale=0.5")
    del run  # and its lock
    again, started = RunDir.resume(folder / "cut")
    assert started.algorithm.model_extra == {"scale": 0.5}
    with pytest.raises(UsageError, match=r"algorithm.scale: 0.5 -> 0.25"):
        again.extend(started, with_settings(started, ["algorithm.scale=0.25"]))
    with Trainer(again.extend(started, with_settings(started, ["iterations=2"])), again) as trainer:
        trainer.fit()
    assert len(whole) == len(again.metrics_file.read_text().splitlines()) == 3
    del trainer, again, started
    sys.modules.pop("own_test")
    (folder / "own_test.py").unlink()
    again, started = RunDir.resume(folder / "cut")  # its settings can be read without the module
    with pytest.raises(UsageError, match=r"algorithm.name 'own_test:median' cannot be loaded.*PYTHONPATH=FOLDER"):
        Trainer(started, again)


def test_a_changed_file_of_a_function_is_said_when_a_run_is_resumed(folder, caplog):
    _, run = trained("cut", "iterations=1", "algorithm.name=own_test:median", "rewards.function=own_test:length")
    del run
    again, started = RunDir.resume(folder / "cut")
    again.extend(started, started)
    assert "own_test" not in caplog.text
    (folder / "own_test.py").write_text(MODULE + "\n# another one\n")
    again.extend(started, started)
    assert "the file of own_test:median changed" in caplog.text
    assert "the file of own_test:length changed" in caplog.text


def test_tasks_of_ones_own_are_trained_on_and_continue_where_they_were(folder):
    config = config_of("tasks.kind=own_test:evens", "tasks.step=3", "seed=10")
    source = source_of(config, {})
    assert [next(source).seed for _ in range(3)] == [10, 13, 16]
    again = source_of(config, {})
    again.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert next(again).seed == 19
    rows, _ = trained("run", "tasks.kind=own_test:evens", "iterations=1")
    assert rows[-1]["drawn"] > 0
    part = {"env": {"id": config.env.id, "kwargs": config.env.kwargs}, "tasks": {"kind": "own_test:evens", "step": 4}}
    mixed = source_of(config_of(f"tasks={json.dumps({'kind': 'mixture', 'parts': [part]})}".replace(": ", "=")), {})
    first, second = next(mixed).seed, next(mixed).seed
    assert second - first == 4


def test_tasks_of_ones_own_that_end_are_errors(folder):
    source = source_of(config_of("tasks.kind=own_test:seeds"), {})
    assert [next(source).seed for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UsageError, match=r"gave 3 after 3 tasks"):
        next(source)
    ending = source_of(config_of("tasks.kind=own_test:once"), {})
    next(ending)
    with pytest.raises(UsageError, match=r"failed: ValueError: no more \(own_test.py, line \d+"):
        next(ending)
    with pytest.raises(UsageError, match=r"ended after 1 tasks"):
        next(ending)
    with pytest.raises(UsageError, match="TypeError"):
        next(source_of(config_of("tasks.kind=own_test:no_generator"), {}))


def test_a_function_is_a_reward_of_a_domain_and_keeps_the_environments_own(folder):
    reward = '{ kind = "function", function = "own_test:length", weight = 0.5 }'
    rows, _ = trained("run", f"rewards.domains=[{reward}]", "iterations=1")
    assert rows[-1]["added/*"] > 0
    assert rows[-1]["trained_reward"] == pytest.approx(rows[-1]["reward"] + rows[-1]["added/*"])


def test_a_partial_functions_arguments_are_stored_as_keys(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    import own_test

    _, run = trained("run", advantage=functools.partial(own_test.median, scale=2.0))
    stored = json.loads(run.config_file.read_text())["algorithm"]
    assert (stored["name"], stored["scale"]) == ("own_test:median", 2.0)
    with pytest.raises(UsageError, match=r"no key algorithm.scael: own_test:median has no such argument; did you mean"):
        trained("wrong", advantage=functools.partial(own_test.median, scael=2.0))


def test_a_lambda_trains_and_says_that_it_cannot_be_resumed_by_name(folder):
    _, run = trained("run", advantage=lambda x: x.returns[x.trajectory])
    again, started = RunDir.resume(folder / "run")
    del run
    with pytest.raises(UsageError, match=r"algorithm.name '.*<lambda>' cannot be loaded"):
        Trainer(started, again)
    Trainer(started, again, advantage=lambda x: x.returns[x.trajectory]).close()
    with pytest.raises(UsageError, match=r"with another function \(algorithm.name: .*lambda.*_flat'"):
        Trainer(started, again, advantage=_flat)


def _flat(x):
    return np.ones(len(x.turn))


def test_the_recipes_folder_is_importable_and_installed_modules_come_first(folder, monkeypatch):
    (folder / "there").mkdir()
    (folder / "there" / "beside_test.py").write_text(MODULE)
    (folder / "there" / "json.py").write_text("raise SystemExit")
    (folder / "there" / "recipe.toml").write_text(
        f'extends = "sokoban"\nenv.id = "{words.ID}"\nalgorithm = {{ name = "beside_test:median", scale = 2 }}\n'
    )
    config = load_config("there/recipe.toml", ["env.kwargs={}", "eval.kwargs={}"])
    assert config.algorithm.model_extra == {"scale": 2}
    assert "algorithm.scale = 2" in differences(config)
    assert 'algorithm.name = "beside_test:median"' in differences(config)
    with pytest.raises(UsageError, match="'json:no_such' cannot be loaded: AttributeError"):
        load_config("there/recipe.toml", ["env.kwargs={}", "eval.kwargs={}", "algorithm.name=json:no_such"])
    assert json.__file__ != str(folder / "there" / "json.py")


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["algorithm.name=median"], r"algorithm.name is one of grpo.*, or module:function, not 'median'"),
        (["loss.name=ppo_cilp"], r"loss.name is one of .*or module:function.*did you mean 'ppo_clip'"),
        (["algorithm.name=no_such_module_:f"], r"No module named 'no_such_module_'; looked into .*PYTHONPATH=FOLDER"),
        (["algorithm.name=own_test:no_such"], r"algorithm.name 'own_test:no_such' cannot be loaded: AttributeError"),
        (["algorithm.name=own_test:constant"], r"'own_test:constant' is no function, but int"),
        (["loss.name=own_test:"], r"loss.name 'own_test:' is no module:function"),
        (["algorithm.name=own_test:nothing"], r"own_test:nothing takes nothing"),
        (["algorithm.name=own_test:with_common_key"], r"an argument 'whiten', a key of every algorithm; rename"),
        (["algorithm.name=own_test:needs"], r"algorithm.scale is missing"),
        (["algorithm.name=own_test:median", "algorithm.scal=2"], r"algorithm.scal: .*did you mean 'scale'\?"),
        (["algorithm.name=own_test:median", "algorithm.scale=much"], r"algorithm.scale, an argument .*number, got 'mu"),
        (["algorithm.name=own_test:median", "algorithm.scale=nan"], r"algorithm.scale, an argument .*finite"),
        (["algorithm.name=own_test:median", "algorithm.kind=3"], r"algorithm.kind, an argument .*valid string, got 3"),
        (["algorithm.name=own_test:median", "algorithm.whiten=3"], r"algorithm.whiten: "),
        (["loss.name=own_test:clip", "loss.clip_low=0.1"], r"no key loss.clip_low: own_test:clip .*it takes low"),
        (["tasks.kind=own_test:evens", "tasks.stepp=2"], r"no key tasks.stepp: own_test:evens .*did you mean 'step'"),
        (["tasks.kind=own_test:nothing"], r"tasks.kind: own_test:nothing takes nothing"),
        (["tasks.kind=evens"], r"tasks.kind is one of seeds.*or module:function"),
        (['rewards.domains=[{kind="function", function="own_test:median"}]'], r"domains.0.function: .*:median takes"),
        (["rewards.group=no_such_module_:f"], r"rewards.group 'no_such_module_:f' cannot be loaded"),
    ],
)
def test_a_wrong_name_or_key_is_refused_before_anything_begins(overrides, error):
    with pytest.raises(UsageError, match=error):
        config_of(*overrides)


def test_a_module_that_raises_on_import_is_named_with_the_line(folder):
    (folder / "broken_test.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(UsageError, match=r"ZeroDivisionError: division by zero \(broken_test.py, line 2\)"):
        config_of("algorithm.name=broken_test:f")
    (folder / "syntax_test.py").write_text("def f(:\n")
    with pytest.raises(UsageError, match=r"'syntax_test:f' cannot be loaded: SyntaxError.*syntax_test.py, line 1"):
        config_of("algorithm.name=syntax_test:f")


def test_a_module_that_changes_the_folder_on_import_is_refused(folder):
    here = os.getcwd()
    (folder / "moving_test.py").write_text("import os\nos.chdir('/')\nf = print\n")
    with pytest.raises(UsageError, match=r"os\.chdir"):
        config_of("algorithm.name=moving_test:f")
    assert os.getcwd() == here


def test_an_environment_that_changes_the_folder_of_its_worker_is_not_taken_for_the_module(folder, monkeypatch):
    monkeypatch.chdir(folder)  # and back at the end
    (folder / "innocent_test.py").write_text("import os\nos.chdir('/')\nf = print\n")
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(function_at, "innocent_test:f", "the function").result() is print


def test_a_measure_that_fails_is_named(folder):
    with pytest.raises(UsageError, match=r"eval.measures=own_test:raising failed: .*argument"):
        trained("run", "eval.measures=['own_test:raising']")


@pytest.mark.parametrize(
    ("key", "function", "error"),
    [
        ("algorithm", "of_trajectories", r"shape \(9,\); .* one for each of the \d+ response tokens.*x.trajectory\]"),
        ("algorithm", "not_finite", r"returned (inf|-inf|nan) for token \d+, of trajectory \d; \d+ of \d+"),
        ("algorithm", "mutating", r"read-only.*copy them first"),
        ("algorithm", "raising", r"failed: KeyError: 'missing' \(own_test.py, line \d+\)"),
        ("algorithm", "leaving", r"failed: SystemExit: 3 \(own_test.py, line \d+\)"),
        ("algorithm", "reading", r"failed: JSONDecodeError: .*own_test.py, line \d+\)"),
        ("loss", "mean", r"loss values of the shape \(\); .* one for each of the \d+ tokens.*loss.aggregate"),
        ("loss", "detached", r"without a gradient; it has to depend on x.logprobs"),
        ("loss", "in_place", r"changes x.advantages in place"),
        ("loss", "infinite", r"returned -?(inf|nan) for \d+ tokens, of inputs that are finite"),
        ("loss", "number", r"returned float; it has to return a tensor or a TokenLoss"),
    ],
)
def test_a_wrong_function_ends_the_run_with_its_name_and_the_remedy(key, function, error):
    with pytest.raises(UsageError, match=rf"{key}.name=own_test:{function} .*?{error}"):
        trained("run", f"{key}.name=own_test:{function}")


def test_a_function_may_read_the_entropy_of_the_policy():
    rows, _ = trained("run", "algorithm.name=own_test:surprise", "algorithm.clip_advantage=0.5")
    assert 0 < rows[-1]["advantage/q100"] <= 0.5
