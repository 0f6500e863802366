"""Recipes, overrides, and errors that name the right key."""

import pytest

from rollenv import UsageError
from rollenv.trainers.config import changed_keys, load_config, recipes
from rollenv.trainers.run_dir import RunDir


@pytest.mark.parametrize("recipe", recipes())
def test_every_bundled_recipe_loads(recipe):
    config = load_config(recipe)
    assert config.env.id or config.batches.kind == "stored"


def test_overrides_reach_every_depth():
    config = load_config(
        "sokoban",
        ["seed=3", "algorithm.name=gigpo", "optimizer.lr=1e-3", "env.kwargs.max_turns=9", "prompt.template='{state}>'"],
    )
    assert (config.seed, config.algorithm.name, config.optimizer.lr) == (3, "gigpo", 1e-3)
    assert config.env.kwargs["max_turns"] == 9
    assert config.env.kwargs["split"] == "train"
    assert config.prompt.template == "{state}>"
    assert changed_keys(load_config("sokoban"), load_config("sokoban", ["seed=3"])) == ["seed: 0 -> 3"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algoritm.name=gigpo", "'algorithm'"),
        ("algorithm.nam=gigpo", "'algorithm.name'"),
        ("group_size=4", "'rollout.group_size'"),
        ("model.lora.targets=[]", "all-linear"),
        ("model.lora.targets=['']", "layer"),
        ("model.lora=8", r"model\.lora\.rank"),
        ("batches=stream", r"batches\.kind"),
        ("lr=1e-4", "'optimizer.lr'"),
        ("rollout.lr=1e-4", "'optimizer.lr'"),
        ("temprature=0.5", "'rollout.temperature'"),
        ("tasks={kind='success_aware', distinct=true}", r"tasks\.distinct"),
        ("model.size.hidden=130", "model.size: hidden=130"),
        ("optimizer.lr=fast", "optimizer.lr: .*'fast'"),
        ("optimizer.lr=-1", "optimizer.lr"),
        ("iterations=2.5", "iterations"),
        ("algorithm.name=dqn", "grpo, .*'dqn'"),
        ("rollout.group_size=1", "rollout.group_size"),
        ("seed", "key=value"),
        ("seed.deep=1", "seed"),
        ("iterations.x=1", "iterations"),
        ("report.tokens=true", "tokens takes a number, not true"),
        ("rewards.at_limit=false", "at_limit takes a number, not false"),
        ("rollout.top_k=9223372036854775808", "top_k takes a number of 64 bits"),
    ],
)
def test_a_wrong_override_names_key_and_remedy(override, says):
    with pytest.raises(UsageError, match=says):
        load_config("sokoban", [override])


def test_all_errors_are_reported_at_once():
    with pytest.raises(UsageError, match=r"(?s)optimizer.lr.*nope|nope.*optimizer.lr"):
        load_config("sokoban", ["optimizer.lr=x", "nope=1"])


def test_an_unknown_recipe_names_the_bundled_ones():
    with pytest.raises(UsageError, match="sokoban"):
        load_config("sokobam")


def test_a_recipe_can_be_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('iterations = 3\n[env]\nid = "game:Sokoban-v0-tiny"\n')
    assert load_config(str(file)).iterations == 3
    file.write_text("iterations = \n")
    with pytest.raises(UsageError, match=r"mine\.toml"):
        load_config(str(file))
    file.write_text("iterations = 3\n")
    with pytest.raises(UsageError, match="env: "):
        load_config(str(file))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("env = [1]", "env is a section"),
        ("env = 'x'", "env is a section"),
        (f"a = {'[' * 5000}{']' * 5000}", "not valid TOML"),
        (None, "no recipe (?!.*did you mean)"),
    ],
)
def test_what_is_no_recipe_is_an_error_that_says_so(content, says, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(content) if content else file.mkdir()
    with pytest.raises(UsageError, match=says):
        load_config(str(file))


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("\ufeffextends = 'sokoban'", encoding="utf-8")
    assert load_config(str(file)) == load_config("sokoban")


@pytest.mark.parametrize("key", ["gamma=0.9", "step_weight=0.5"])
def test_a_key_that_does_nothing_is_refused(key, tmp_path, small):
    with pytest.raises(UsageError, match=rf"algorithm.{key.partition('=')[0]} .*'grpo'"):
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


def test_data_that_are_named_twice_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"rows\.jsonl twice"):
        load_config(
            "sft", ["model=somebody/model", f'batches.data=["{tmp_path}/rows.jsonl", "{tmp_path}/./rows.jsonl"]']
        )


def test_calls_are_evaluated_in_the_form_that_is_trained_unless_another_is_named():
    trained = ["env.kwargs.calls=native"]
    assert load_config("tools", trained).eval.kwargs == {"split": "test", "calls": "native"}
    assert load_config("tools", [*trained, "eval.kwargs.calls=json"]).eval.kwargs["calls"] == "json"
