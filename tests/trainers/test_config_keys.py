# ruff: noqa: E501
"""Every key of the configuration changes what a run computes or writes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import words
from pydantic import BaseModel
from tiny_runs import numbers

from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.trainers.config import TrainConfig, load_config
from rollenv.trainers.config.section import union_of
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

#: Keys that change no number and no file that a run compares by, and why.
NO_DIFFERENCE = {
    "run_dir": "where all is written",
    "threads": "speed",
    "rollout.workers": "where environments live",
    "rollout.max_concurrent": "speed",
    "rollout.reset_deadline": "for what never ends",
    "rollout.step_deadline": "for what never ends",
    "rollout.processes": "who plays a group changes nothing that is drawn",
    **{f"rollout.{key}": "who plays; test_rollout_shards.py" for key in ("shards", "shard_options", "shard_losses")},
    "rollout.extra_groups": "which groups are late is a matter of time",
    "rollout.extra_members": "which members are late is a matter of time",
    "batches.kind": "which groups come first is a matter of time; test_batches.py, test_early.py",
    "eval.panel": "what is evaluated and passed over; test_panels.py",
    "algorithm.parted": "for pairs that begin alike; test_preferences.py",
    "batches.data": "another data set; test_stored_episodes.py",
    "batches.unusable": "for rows that cannot be learned; test_stored_episodes.py",
    "batches.max_staleness": "a matter of time; test_batches.py",
    "batches.colocated": "a matter of time; test_batches.py",
    "player.kind": "another engine, in its own environment; test_vllm.py",
    "player.options": "of that engine",
    "player.precision": "rounding; test_engine.py",
    "launch": "where the run is; test_launch.py",
    **{f"player.{key}": "of that engine" for key in ("url", "patience", "sleep", "lora")},
    "model.size.context": "a limit that short prompts do not reach",
    "model.gradient_checkpointing": "memory",
    "prompt.thoughts": "for models that think; test_conversation.py",
    "prompt.max_observation": "for observations longer than the note that is put there; test_token_session.py",
    "prompt.tools": "for environments with tools; test_token_session.py",
    "distill.decay": "a run with siblings that teach in later iterations; test_distill.py",
    "model.sync": "memory",
    "optimizer.micro_batch_tokens": "memory",
    "optimizer.share_prefixes": "speed and memory",
    "optimizer.kind": "of bitsandbytes; test_optimizers.py",
    "optimizer.offload": "memory; test_optimizers.py",
    "optimizer.on_nonfinite": "for numbers that are not finite",
    "trackers.project": "a name at Weights & Biases",
    "report.tokens": "stored, not trained on; test_shown.py",
    "trackers.alerts": "for a server; test_tracking.py",
    "env.id": "another environment is another run",
}

#: Sections and variants whose keys are tried in tests of their own.
ELSEWHERE = {
    "rewards.domains": "test_rlvr.py and test_rewards.py",
    "env.images": "test_visual_training.py",
    "model.vision": "test_visual_training.py",
    "model.size.patch": "for pictures; test_visual_training.py",
    "model.size.vision_layers": "for pictures; test_visual_training.py",
    "placement": "test_ranks.py and test_ranks_ray.py",
    "harness": "test_harness_training.py",
    "BradleyTerry": "it plays nothing; test_reward_model.py",
    "seats": "test_seats_in_training.py",
    "player.schema": "vllm_suite.py and test_sglang.py",
    "player.grammar": "vllm_suite.py and test_sglang.py",
}

CHAT = ["prompt.kind=conversation", "model.path={MODEL}"]
STEPS = ["algorithm.name=gigpo"]
PPO = ["algorithm.name=ppo", "algorithm.critic.lr=0.05"]
KL = ["kl.name=reward", "algorithm.name=reinforce"]
TEACHER = ["model.path={MODEL}", "distill.name=teacher", "distill.path={MODEL}"]
MIXED = ["tasks.kind=mixture"]
LEVELS = [
    "model.warm_up.steps=200", "tasks.kind=curriculum", "tasks.levels=[{turns=1}, {turns=2}, {turns=3}]",
    "tasks.window=6", "iterations=3",
]  # fmt: skip


def loss(name: str, *keys: str, base: tuple[str, ...] = ()) -> dict[str, list[str]]:
    return {f"loss.{key}": [f"loss.name={name}", "optimizer.epochs=3", *base] for key in keys}


def correction(name: str, *keys: str) -> dict[str, list[str]]:
    return {f"correction.{key}": [f"correction.name={name}", "model.precision=bfloat16"] for key in keys}


PREFER = ["rollout.group_size=6", "prompt.kind=conversation", "model.path={MODEL}", "rollout.temperature=0.5"]

#: What is set first, for keys that mean something under it only.
CASES: list[dict[str, list[str]]] = [
    {k: [] for k in (
        "seed=1", "iterations=1", "checkpoint_every=2", "keep_checkpoints=1", "env.kwargs={turns=2}",
        "env.wrappers={concat={}}", "env.options={start=1}", "tasks.kind=rows", "model.path={MODEL}",
        "model.size={layers=2, hidden=16, heads=2, intermediate=16}", "model.size.hidden=32", "model.size.layers=2",
        "model.size.heads=4", "model.size.intermediate=32", "model.size.vocabulary=258",
        "model.warm_up={steps=3, episodes=30, batch_size=16}", "model.warm_up.noise=0.1", "model.warm_up.wandering=0.1",
        "model.warm_up.episodes=20", "model.warm_up.steps=10", "model.warm_up.batch_size=8", "model.warm_up.lr=1e-3",
        "model.precision=bfloat16", "model.lora.rank=2", "prompt.template='{observation}:'",
        "rollout.groups_per_batch=2", "rollout.group_size=2", "rollout.episode_tokens=1", "prompt.stop=['p']",         "rollout.temperature=0.5", "rollout.max_new_tokens=2", "rewards.mean=batch",
        "rewards.success_only=true", "rewards.invalid_penalty=0.5", "rewards.overlong=2",
        "rewards.group='words:ranked'", "rewards.function='words:letters'", "rewards.at_limit=0.5", "rewards.at_limit=drop", "rewards.at_limit=drop_failed", "rewards.drop_repetition=1", "rewards.drop_gibberish=1", "rewards.length_weight=true", "rewards.difficulty_weight=true",
        "algorithm.name=rloo", "algorithm.whiten=true", "algorithm.clip_advantage=0.1", "algorithm.normalize_std=true",
        "loss.aggregate=sequence", "loss.entropy=1.0", "loss.imitate=1.0", "loss.name=sapo", "correction.name=tis",
        "kl.name=loss", "optimizer.lr=1e-3", "optimizer.final_lr=0.1", "optimizer.warmup_iterations=3",
        "optimizer.weight_decay=0.5", "optimizer.betas=[0.1, 0.2]", "optimizer.max_grad_norm=1e-4",
        "optimizer.minibatch_sequences=2", "optimizer.epochs=1", "eval.kwargs={turns=1}",
        f"eval.parts=[{{env={{id='{words.ID}'}}, episodes=3}}]", "model.warm_up.turns=1", "rollout.top_k=1",
        "rollout.top_p=0.2", "eval.episodes=3", "eval.every=1", "eval.seed=3", "eval.temperature=0", "eval.measures=['words:measured']", "trackers.use=['tensorboard']",
    )},
    {"prompt.template='{history}{observation}>'": ["prompt.history_length=1"],
     "prompt.history_length=2": ["prompt.template='{history}{observation}>'"],
     "rollout.max_prompt_tokens=6": ["prompt.history_length=2", "prompt.template='{history}{observation}>'"]},
    {"prompt.kind=conversation": ["model.path={MODEL}"], "prompt.system=Say": CHAT, "rollout.samples=turn": [*CHAT, "loss.aggregate=sequence"],
     "prompt.examples=2": ["model.path={MODEL}"], "prompt.chat=true": ["model.path={MODEL}"], "prompt.template_args={loud=true}": CHAT, "loss.observations=1.0": CHAT},
    {"rollout.refill=3": ["rollout.group_size=2", "env.kwargs={turns=1}", "rewards.success_only=true"]},
    {"rollout.keep.strict=false": ["rollout.refill=3", "rollout.keep.mean=[0.9, 1.0]", "env.kwargs={turns=1}"]},
    {k: ["rollout.refill=3", "env.kwargs={turns=1}"] for k in ("rollout.keep.std=0.3", "rollout.keep.mean=[0.9, 1.0]")},
    {k: ["algorithm.name=reinforce"] for k in (
        "rewards.scale=3.0", "rewards.shift=1.0", "rewards.clip=0.2", "rewards.mean=running", "rewards.std=batch",
    )},
    {k: ["model.lora.rank=2"] for k in ("model.lora.alpha=64.0", "model.lora.targets=['q_proj']")},
    {"loss.final_entropy=1.0": ["loss.entropy=1.0"], "loss.entropy_samples=all": ["loss.entropy=1.0", "rewards.success_only=true"], "optimizer.old_logprobs=recomputed": ["model.precision=bfloat16"]},
    {"tasks.shuffle=false": ["tasks.kind=rows"], "tasks.pool=2": ["tasks.kind=success_aware"], "tasks.distinct=true": ["tasks.kind=success_aware", "tasks.pool=20"],
     "tasks.explore=1.0": ["tasks.kind=success_aware", "iterations=8"],
     "tasks.half_life=0.5": ["tasks.kind=success_aware", "iterations=4", "tasks.explore=0"]},
    {"tasks.levels=[{turns=2}, {turns=3}]": LEVELS, "tasks.window=1000": [*LEVELS, "tasks.up=0.01", "tasks.down=0"],
     "tasks.up=0.01": [*LEVELS, "tasks.down=0", "optimizer.lr=1e-3"],
     "tasks.down=0.39": [*LEVELS, "tasks.up=0.4", "iterations=12", "optimizer.lr=1e-3"],
     "tasks.review=0.9": [*LEVELS, "tasks.up=0.01", "tasks.down=0", "iterations=4"]},
    {f"tasks.parts=[{{env={{id='{words.ID}'}}}}, {{name='b', env={{id='{words.ID}', kwargs={{turns=1}}}}}}]":
     [*MIXED, f"tasks.parts=[{{env={{id='{words.ID}'}}}}]"]},
    {"algorithm.baseline=false": ["algorithm.name=reinforce_pp"], "algorithm.gamma=0.2": ["algorithm.name=rebn"]},
    {k: ["algorithm.name=step_reinforce"] for k in ("algorithm.gamma=0.2", "algorithm.mean=batch", "algorithm.std=none")},
    dict.fromkeys(("algorithm.normalize_std=false", "algorithm.gamma=0.2", "algorithm.step_weight=3.0", "algorithm.statistics=rows", "algorithm.similarity=0.1"), STEPS),
    {k: ["algorithm.name=hgpo", "rollout.group_size=6"] for k in (
        "algorithm.normalize_std=false", "algorithm.gamma=0.2", "algorithm.history=0", "algorithm.alpha=5.0",
        "algorithm.base_group=true",
    )},
    {k: ["algorithm.name=empg", "rollout.group_size=6"] for k in (
        "algorithm.normalize_std=false", "algorithm.scale=3.0", "algorithm.bonus=1.0", "algorithm.future_scale=9.0",
    )},
    {"algorithm.decay=0.1": ["algorithm.name=role_baseline"]},
    {k: ["algorithm.name=mt_grpo"] for k in ("algorithm.normalize_std=false", "algorithm.turn_weight=3.0")},
    {k: [*TEACHER, "optimizer.epochs=3"] for k in (
        "distill.path={MODEL}/other", "distill.coef=9.0", "distill.low=0", "distill.square=9.0", "distill.alone=true",
    )},
    {k: ["distill.name=sibling", "optimizer.epochs=3"] for k in (
        "distill.coef=9.0", "distill.low=0", "distill.square=9.0", "distill.alone=true",
    )},
    {"loss.router=9.0": ["model.size.experts=4"], "model.size.experts=4": [],
     "loss.routing=replay": ["model.size.experts=8", "optimizer.epochs=3", "optimizer.minibatch_sequences=2"]},
    {"distill.name=sibling": []},
    dict.fromkeys(("algorithm.credit=turn", "algorithm.gamma=0.5", "algorithm.lam=0.1", "algorithm.critic={lr=0.1}", "algorithm.critic.kind=head", "algorithm.critic.lr=0.001", "algorithm.critic.warm_up=1"), PPO),
    {"algorithm.critic.clip=0.0001": [*PPO, "optimizer.epochs=2"]},
    {k: [*PPO, "algorithm.credit=turn"] for k in ("algorithm.turn_gamma=0.2", "algorithm.turn_lam=0.1")},
    {f"{k}=0.001": v for k, v in loss("ppo_clip", "clip_low", "clip_high").items()},
    {"loss.dual=1.01": ["optimizer.epochs=4", "optimizer.lr=0.1"]},
    {"loss.ratio=sequence": ["optimizer.epochs=3"]},
    {f"{k}=0.5": v for k, v in loss("gspo", "clip_low", "clip_high").items()},
    {f"{k}=true": v for k, v in loss("gspo", "tokens", base=("algorithm.name=gigpo", "rollout.samples=trajectory", *CHAT, "loss.clip_low=0.9", "loss.clip_high=9.0")).items()},
    {f"{k}=token": v for k, v in loss("gspo", "aggregate").items()},
    {f"{k}=0.9": v for k, v in loss("cispo", "cap").items()},
    {f"{k}=1.5": v for k, v in loss("cispo", "floor").items()},
    {f"{k}=3.0": v for k, v in loss("topr", "positive", "negative").items()},
    {f"{k}=token": v for k, v in loss("topr", "ratio").items()},
    {f"{k}=0.01": v for k, v in loss("dppo", "low", "high").items()},
    {f"{k}=5.0": v for k, v in loss("dppo", "square").items()},
    {f"{k}=truncated": v for k, v in loss("dppo", "variant").items()},
    {f"{k}=3.0": v for k, v in loss("sapo", "positive", "negative").items()},
    {f"{k}=0.001": v for k, v in loss("gmpo", "low", "high").items()},
    {f"{k}=token": v for k, v in loss("gmpo", "aggregate").items()},
    {f"{k}=0.9": v for k, v in correction("tis", "cap").items()},
    {f"{k}=0.999": v for k, v in correction("mis", "cap").items()},
    {f"{k}=0.5": v for k, v in correction("geo", "band").items()},
    {f"{k}=0.999": ["correction.band=0.5", *v] for k, v in correction("geo", "cap").items()},
    {f"{k}=0.999": v for k, v in correction("opsm", "cap").items()},
    {f"{k}=0.999": v for k, v in correction("icepop", "low").items()},
    {f"{k}=1.001": v for k, v in correction("icepop", "high").items()},
    {f"{k}=0.5": v for k, v in correction("opsm", "delta").items()},
    {k: ["kl.name=loss"] for k in ("kl.coef=5.0", "kl.kind=k2")},
    {k: ["algorithm=dpo", *PREFER] for k in ("algorithm.beta=5.0", "algorithm.pairs=extremes", "algorithm.margin=0.4", "algorithm.sft=1.0", "algorithm.smoothing=0.4")},
    {"rewards.own=0.5": ["rewards.domains=[{kind='format', pattern='u.*', matched=0.5}]"]},
    {"algorithm.robust=true": ["algorithm=dpo", "algorithm.smoothing=0.3"]},
    {k: ["algorithm=ipo", *PREFER] for k in ("algorithm.beta=5.0", "algorithm.pairs=extremes", "algorithm.margin=0.4", "algorithm.sft=1.0")},
    {k: ["algorithm=simpo", *PREFER] for k in ("algorithm.beta=5.0", "algorithm.gamma=0.1", "algorithm.pairs=extremes", "algorithm.margin=0.4", "algorithm.sft=1.0")},
    {k: ["algorithm=dmpo", *PREFER] for k in ("algorithm.beta=5.0", "algorithm.gamma=0.1", "algorithm.pairs=extremes", "algorithm.margin=0.4", "algorithm.sft=1.0")},
    {k: ["algorithm=kto", *PREFER] for k in ("algorithm.beta=5.0", "algorithm.desirable=9.0", "algorithm.undesirable=9.0")},
    {k: ["algorithm=sft", "batches.kind=stored", "batches.episodes=20", "batches.size=3"] for k in ("batches.size=5", "batches.episodes=30", "batches.noise=0.5", "batches.epochs=1", "batches.held_out=0.5", "batches.where='seed % 2 == 0'")},
    {"kl.coef=5.0": KL, "kl.kind=k2": KL, "kl.target=0.0001": KL, "kl.horizon=20.0": [*KL, "kl.target=0.0001"]},
]  # fmt: skip

#: A few of each kind are in every quick run.
QUICK = {
    "seed=1", "distill.low=0", "rewards.clip=0.2", "algorithm.turn_lam=0.1", "kl.coef=5.0", "loss.cap=0.9",
    "tasks.shuffle=false",
}  # fmt: skip

ALL = [(tuple(base), change) for case in CASES for change, base in case.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A chat model."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["up down left right"], 280)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tokenizer.chat_template += "{% if loud %}!{% endif %}<assistant>"
    size = TinySize(hidden=16, layers=1, heads=2, intermediate=16)
    for seed, place in enumerate((path, path / "other")):
        LocalAgent(build_model(size, tokenizer, seed), tokenizer).save(place)
    return path


@pytest.fixture(scope="module")
def outcome(folder, tmp_path_factory):
    """What a run with these overrides gives; a run with the same ones is made once."""

    @functools.cache
    def run(overrides: tuple[str, ...]) -> tuple[object, ...]:
        path = tmp_path_factory.mktemp("run") / "run"
        config = load_config("sokoban", [*base_of(overrides, folder), f"run_dir={path}"])
        with Trainer(config, RunDir.create(config, "sokoban")) as trainer:
            trainer.fit()
        weights = sorted(path.glob("checkpoints/*/model.safetensors"))[-1]
        episodes = [json.loads(line) for line in (path / "episodes.jsonl").read_text().splitlines()]
        played = [[(t["prompt_ids"], t["response_ids"]) for t in e["turns"]] for e in episodes]
        files = sorted({str(p.relative_to(path)).partition(".tfevents")[0] for p in path.rglob("*")})
        return (
            json.dumps(numbers(path)),
            hashlib.sha256(weights.read_bytes()).hexdigest(),
            json.dumps(played),
            tuple(files),
        )

    return run


def base_of(overrides, folder=Path("model")) -> list[str]:
    chosen = [o.replace("{MODEL}", str(folder)) for o in overrides]
    sized = [o for o in words.TRAINED if not (o.startswith("model.size") and any("model.size={" in c for c in chosen))]
    sized = [o for o in sized if not (o.startswith("model.warm_up") and any("model.warm_up={" in c for c in chosen))]
    if any(o.startswith("model.path") for o in chosen):
        sized = [o for o in sized if not o.startswith(("model.size", "model.warm_up"))]
    if any(o.startswith("algorithm=") for o in chosen):  # presets with one step a batch
        sized = [o for o in sized if not o.startswith("optimizer.minibatch")]
    if any(o.startswith("batches.epochs") for o in chosen):
        sized = [o for o in sized if not o.startswith("iterations")]
    if "batches.kind=stored" in chosen:
        sized = [o for o in sized if not o.startswith("rollout.group")]
    if "prompt.kind=conversation" in chosen:
        sized = [o for o in sized if not o.startswith("prompt.template")]
    return [*sized, *chosen]


def named(case) -> str:
    return " ".join([*case[0], case[1]])


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c[1] in QUICK else pytest.mark.integration) for c in ALL], ids=named
)
def test_a_key_changes_the_run(outcome, case):
    base, change = case
    if "tensorboard" in change:
        pytest.importorskip("tensorboard")
    assert outcome(base) != outcome((*base, change))


@pytest.mark.integration
def test_a_run_is_the_same_twice(outcome):
    """Otherwise anything would seem to change something."""
    assert outcome(()) == outcome(("seed=0",))
    ppo = tuple(PPO)
    assert outcome(ppo) == outcome((*ppo, "seed=0"))


@pytest.mark.integration
@pytest.mark.parametrize(
    "change", ["rollout.max_concurrent=2", "optimizer.micro_batch_tokens=10", "optimizer.on_nonfinite=stop"]
)
def test_what_changes_nothing_changes_nothing(outcome, change):
    rows, there = (json.loads(outcome(overrides)[0]) for overrides in ((), (change,)))
    for row, other in zip(rows, there, strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)


def leaves(model: type[BaseModel] = TrainConfig, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(variant, key) of every key; the variant is "" for what all variants have."""
    for name, field in model.model_fields.items():
        key = prefix + name
        if union := union_of(key):
            yield "", f"{key}.{union.tag}"
            yield from (("", f"{key}.{name}") for name in union.common if name != union.tag)
            for section in dict.fromkeys(union.variants.values()):
                own = {k: f for k, f in section.model_fields.items() if k not in (*union.common, union.tag)}
                for k, f in own.items():
                    below = f.annotation
                    if isinstance(below, type) and issubclass(below, BaseModel):
                        yield from leaves(below, f"{key}.{k}.")
                    else:
                        yield section.__name__, f"{key}.{k}"
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, key + ".")
        else:
            yield "", key


def test_every_key_of_every_variant_is_tried():
    covered = set()
    for base, change in ALL:
        key = change.partition("=")[0]
        config = load_config("sokoban", base_of((*base, change)))
        section = getattr(config, key.split(".")[0])
        covered |= {("", key), (type(section).__name__, key)}
    wanted = set(leaves())
    assert get_args(TrainConfig.model_fields["loss"].annotation)
    wanted = {(v, key) for v, key in wanted if v not in ELSEWHERE and not key.startswith(tuple(ELSEWHERE))}
    assert not {key for variant, key in wanted if (variant, key) not in covered} - NO_DIFFERENCE.keys()
    assert NO_DIFFERENCE.keys() <= {key for _, key in wanted}
    assert not {key for _, key in covered} & NO_DIFFERENCE.keys()


@pytest.mark.parametrize(
    ("former", "now"),
    [
        (["rewards.drop_truncated=false", "rewards.limit_penalty=0", "rewards.drop_long_failures=0"], []),
        (["rewards.drop_truncated=true", "rewards.limit_penalty=0"], ["rewards.at_limit=drop"]),
        (["rewards.drop_truncated=false", "rewards.limit_penalty=0.5"], ["rewards.at_limit=0.5"]),
        (["algorithm=sft", "batches.long=drop"], ["algorithm=sft", "batches.unusable=drop"]),
    ],
)
def test_keys_of_earlier_versions_are_read(former, now):
    assert load_config(words.ID, former) == load_config(words.ID, now)
