"""``rollenv train --dry-run``: it says what a run would do and need, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import sys

import pytest

from rollenv.core.errors import MissingExtra

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def parts(text: str) -> tuple[dict, str, dict[str, str]]:
    """The settings, the first prompt, and the needs by name."""
    shown, _, rest = text.partition("all settings")
    settings, _ = json.JSONDecoder().raw_decode(rest.strip())
    prompt, _, needs = shown.partition("what the run needs")
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in needs.splitlines()]
    return settings, prompt.partition("the first prompt")[2].strip(), {r[0]: r[1] for r in rows if len(r) == 2}


@pytest.mark.slow
def test_it_counts_what_an_iteration_needs_and_leaves_nothing_behind(rollenv_command, tmp_path):
    changes = ["rollout.groups_per_batch=3", "rollout.group_size=4", "iterations=50", "eval.every=20"]
    changes += ["algorithm.name=gigpo"]
    done = rollenv_command(
        "train", "sokoban", "--dry-run", "env.kwargs={ max_turns = 7 }", "eval.episodes=10", *changes
    )
    assert done.returncode == 0, done.stderr
    settings, prompt, needs = parts(done.stdout)
    assert settings["rollout"]["groups_per_batch"] == 3
    assert settings["env"]["kwargs"]["max_turns"] == 7
    assert prompt
    assert needs["trajectories an iteration"] == "12"
    assert needs["turns an iteration, at most"] == "84"
    assert needs["response tokens an iteration, at most"] == str(84 * settings["rollout"]["max_new_tokens"])
    assert needs["trajectories in all"] == "600"
    assert re.match(r"the environment's state_key; \d+% of \d+", needs["states of turns"])
    assert needs["evaluation episodes in all"] == "40"  # before the first iteration, and after 20, 40 and 50
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_the_prompt_is_the_template_filled_by_a_task_that_follows_the_seed(rollenv_command):
    pytest.importorskip("bm25s")
    shown = [
        parts(rollenv_command("train", "webshop", "--dry-run", f"seed={seed}", "prompt.template='buy! {state}'").stdout)
        for seed in (1, 1, 2)
    ]
    prompts = [prompt for _, prompt, _ in shown]
    assert prompts[0].startswith("buy! WebShop | Instruction:")
    assert prompts[0] == prompts[1] != prompts[2]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "code", "says"),
    [
        ("env.id=game:Nothing-v0", 2, "no environment is registered"),
        ("run_dir=/etc", 2, "/etc exists"),
        ("env.kwargs.max_turn=3", 2, "did you mean 'max_turns'"),
        ("eval.kwargs.splitt=test", 2, "did you mean 'split'"),
        ("model.path=nowhere", 2, "there is no folder 'nowhere'"),
        ("model.path=./a/b", 2, "there is no folder './a/b'"),
        ("prompt.template='{what}'", 2, "unknown field {what}"),
        ("prompt.template='{state'", 2, "a brace that is no field is written twice"),
    ],
)
def test_what_would_stop_the_run_stops_the_dry_run(rollenv_command, tmp_path, override, code, says):
    done = rollenv_command("train", "sokoban", "--dry-run", override)
    assert done.returncode == code
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "package"),
    [
        ("optimizer.kind=adamw8bit", "bitsandbytes"),
        ("model.lora.rank=4", "peft"),
        ("player.kind=vllm", "vllm"),
        ("rollout.shards=2", "ray"),
        ("trackers.use=['swanlab']", "swanlab"),
        ("trackers.use=['wandb']", "wandb"),
        ("trackers.use=['mlflow']", "mlflow"),
    ],
)
def test_a_missing_package_stops_a_run_and_its_dry_run_before_anything(override, package, monkeypatch, tmp_path):
    from rollenv.cli.dry_run import dry_run
    from rollenv.trainers.config import load_config
    from rollenv.trainers.run_dir import RunDir
    from rollenv.trainers.trainer import Trainer

    monkeypatch.setitem(sys.modules, package, None)
    config = load_config("sokoban", [override])
    with pytest.raises(MissingExtra, match=package):
        dry_run(config)
    with pytest.raises(MissingExtra, match=package):
        Trainer(config, RunDir.create(config.model_copy(update={"run_dir": str(tmp_path / "run")}), "sokoban"))


@pytest.mark.integration
def test_a_model_folder_is_checked_and_its_tokens_counted_without_its_weights(rollenv_command, tmp_path):
    from rollenv.agents.local import LocalAgent
    from rollenv.agents.tiny.model import build_model, build_tokenizer
    from rollenv.agents.tiny.settings import TinySize

    size = TinySize(hidden=16, layers=1, heads=2, intermediate=16, context=96, vocabulary=300)
    tokenizer = build_tokenizer(["####", "#__P#"], size.vocabulary)
    folder = tmp_path / "model"
    LocalAgent(build_model(size, tokenizer, 0), tokenizer).save(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(b"not weights")  # whoever reads them fails
    done = rollenv_command("train", "sokoban", "--dry-run", f"model.path={folder}", "env.kwargs={ max_turns = 5 }")
    assert done.returncode == 0, done.stderr
    settings, prompt, needs = parts(done.stdout)
    assert needs["tokens of the first prompt"] == str(len(tokenizer.encode(prompt)))
    turns = 5 * settings["rollout"]["groups_per_batch"] * settings["rollout"]["group_size"]
    length = len(tokenizer.encode(prompt))
    assert needs["prompt tokens an iteration, about"] == f"{turns * length:,}"

    weights.unlink()
    bare = rollenv_command("train", "sokoban", "--dry-run", f"model.path={folder}")
    assert bare.returncode == 2
    assert "holds no weights" in " ".join(bare.stderr.split())


def test_what_differs_from_the_defaults_is_all_that_differs():
    from rollenv.trainers.config import differences, load_config

    base = differences(load_config("sokoban"))
    changes = ["algorithm.name=gigpo", "algorithm.gamma=0.5", "kl.name=reward", "rollout.top_k=3", "seed=0"]
    lines = differences(load_config("sokoban", changes))
    new = {'algorithm.name = "gigpo"', "algorithm.gamma = 0.5", 'kl.name = "reward"', "rollout.top_k = 3"}
    assert set(lines) - set(base) == new
    assert 'env.id = "game:Sokoban-v0-tiny"' in lines
    assert not [line for line in lines if line.startswith(("seed", "kl.kind", "loss.clip", "algorithm.step_weight"))]


def test_a_full_gpu_says_what_takes_less_of_it(rollenv_command, monkeypatch, tmp_path):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore lines")

    monkeypatch.setattr("rollenv.cli.train._train", full)
    done = rollenv_command("train", "sokoban", f"run_dir={tmp_path / 'run'}", "optimizer.micro_batch_tokens=4096")
    assert done.returncode == 2
    assert "Tried to allocate 20.00 MiB" in done.stderr
    assert "optimizer.micro_batch_tokens=2048" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture
def four_rows(monkeypatch):
    """The rows of test:FourRows-v0."""
    import rollenv
    from rollenv.core import registry

    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rows = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(4)]
    rollenv.register(
        "test:FourRows-v0",
        "rollenv.envs.math.env:MathEnv",
        abilities=["oracle", "random_action"],
        indexed=True,
        dataset=rows,
    )
    return rows


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["env.wrappers=nosuch"], "'nosuch'"),
        (["tasks.kind=rows"], "numbered"),
        (["env.id=test:FourRows-v0"], "4 tasks"),
        (["tasks.kind=success_aware"], "numbered"),
        (["tasks={kind='mixture', parts=[{env={id='rg:chain_sum', wrappers={nosuch={}}}}]}"], "'nosuch'"),
        (["env={id='multi:Nim-v0-seats'}", "eval.kwargs={}", "seats.others=['self', 'random']"], "3 agents"),
        (["seats.others=past"], "alone"),
    ],
)
def test_what_would_stop_the_run_after_the_warm_up_is_said_before_it(four_rows, overrides, says):
    from rollenv.core.errors import UsageError
    from rollenv.trainers.config import load_config
    from rollenv.trainers.preflight import try_environments

    with pytest.raises(UsageError, match=says):
        try_environments(load_config("sokoban", overrides))


def test_options_of_training_are_not_those_of_evaluation(four_rows):
    from rollenv.trainers.config import load_config
    from rollenv.trainers.preflight import try_environments

    config = load_config("sokoban", ["env.id=test:FourRows-v0", "env.kwargs={}", "env.options.index=3"])
    fewer = {"kwargs": {"dataset": four_rows[:2]}, "episodes": 2}
    config = config.model_copy(update={"eval": config.eval.model_copy(update=fewer)})
    try_environments(config)  # row 3 is there in training alone


@pytest.mark.parametrize("wrapper", ["python_tool", "concat_chat"])
def test_the_first_prompt_is_that_of_the_wrapped_environment(capsys, wrapper):
    from rollenv.cli.main import app

    settings = [f"env.wrappers={wrapper}", "prompt.template={instructions}"]
    assert not app(["train", "sokoban", *settings, "--dry-run"], standalone_mode=False)
    assert ("<python>" in capsys.readouterr().out) is (wrapper == "python_tool")
