"""TRL's own GRPOTrainer over rollenv's environments, by a rollout function and by tools; tiny models, no network."""

import gc
import json
import logging
import os
import pickle
import sys
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

import rollenv
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import UnknownEnv, UsageError
from rollenv.core.pictures import picture
from rollenv.plugins.adapters import OVER, EpisodeFailed
from rollenv.rollout.episode import EpisodeLimits

with warnings.catch_warnings():
    warnings.simplefilter("error")  # the version is the tested one
    from rollenv.plugins.adapters.trl import Rollout, dataset, env_reward, environment

SOKOBAN = "game:Sokoban-v0-tiny"
QWEN3 = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
OPEN = []


class Talk(rollenv.Env):
    """Two turns; half a point for each answer of more than one character. ``trouble`` comes in the second turn."""

    def __init__(self, trouble=""):
        self.trouble = trouble
        OPEN.append(self)

    def _reset(self, options):
        self.turn = 0
        return f"Say something long. Task {self.randint(1000)}.", {}

    def _step(self, action):
        self.turn += 1
        if self.turn == 2 and (self.trouble == "always" or (self.trouble == "short" and len(action) < 2)):
            raise OSError("the disk\nis full")
        long = len(action) > 1
        return f"You said {len(action)} characters.", long / 2, self.turn == 2, False, {"success": long}

    def close(self):
        if self in OPEN:
            OPEN.remove(self)


rollenv.register("test:Talk-v0", Talk)


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    yield
    gc.collect()
    assert not OPEN


def tiny(seed=0):
    """A random model, and a tokenizer with a chat template; a third of its tokens are longer than a character."""
    corpus = ["Say something long. Task 123.", "You said 3 characters."] * 2 + ["up", "down", "left", "right"] * 9
    tokenizer = build_tokenizer(corpus, 400, chat=True)
    return build_model(
        TinySize(hidden=32, layers=2, heads=2, intermediate=64, context=2048), tokenizer, seed
    ), tokenizer


def of_letters(*added):
    """A tokenizer of letters and these texts, with Qwen3's chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_tokens(["<|im_start|>", *added])
    made.chat_template = QWEN3
    return made


def trainer_of(out, rollout, tasks, model=None, group=8, groups=2, **settings):
    model, tokenizer = model or tiny()
    given = {
        "output_dir": str(out), "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no",
        "logging_steps": 1, "disable_tqdm": True, "per_device_train_batch_size": group * groups,
        "num_generations": group, "max_completion_length": 200, "max_steps": 2,
        "learning_rate": 1e-2, "lr_scheduler_type": "constant", "beta": 0.0,
    }  # fmt: skip
    more = {"peft_config": settings.pop("peft_config")} if "peft_config" in settings else {}
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=env_reward,
        rollout_func=rollout,
        train_dataset=tasks,
        args=GRPOConfig(**(given | settings)),
        **more,
    )


def logged(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


# -- the rollout function ----------------------------------------------------------------------------------------------


def test_training_by_rollouts_makes_success_rise(tmp_path):
    tasks = dataset("test:Talk-v0", 400)
    trainer = trainer_of(tmp_path, Rollout(1), tasks, groups=4, max_steps=40, learning_rate=2e-2)
    trainer.train()
    success = logged(trainer, "env_success")
    assert len(success) == 40
    assert sum(success[:5]) / 5 < 0.5
    assert sum(success[-5:]) / 5 > 0.9
    assert logged(trainer, "rewards/env_reward/mean") == logged(trainer, "reward")


def test_tokens_go_back_as_they_were_drawn(tmp_path):
    seen = []

    class Kept(Rollout):
        def _play(self, prompts, player):
            seen.append((played := super()._play(prompts, player), player))
            return played

    tasks = dataset("test:Talk-v0", 2)
    trainer = trainer_of(tmp_path, Kept(6), tasks, temperature=0.7)
    prompts = [name for name in tasks["prompt"] for _ in range(8)]
    out = trainer.rollout_func(prompts, trainer)
    ((played, player),) = seen
    assert trainer.model.training, "it is as it was before"
    for i, trajectory in enumerate(played):
        ids = torch.tensor([[*out["prompt_ids"][i], *out["completion_ids"][i]]])
        with torch.no_grad():
            logits = trainer.model.eval()(ids).logits[0, :-1] / 0.7
        own = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0][len(out["prompt_ids"][i]) - 1 :]
        mask = torch.tensor(out["env_mask"][i], dtype=torch.bool)
        assert torch.allclose(own[mask], torch.tensor(out["logprobs"][i])[mask], atol=1e-4)
        drawn = torch.tensor(out["completion_ids"][i])[mask].tolist()
        assert drawn == [t for turn in trajectory.turns for t in turn.response_ids]
        assert len(mask) == len(out["logprobs"][i]) > mask.sum()
        assert out["env_reward"][i] == trajectory.reward
        assert "You said" in player.tokenizer.decode(out["completion_ids"][i])
    assert len({tuple(ids) for ids in out["prompt_ids"][:8]}) == 1, "a group has one task"
    assert out["prompt_ids"][0] != out["prompt_ids"][8]
    again = trainer.rollout_func(prompts, trainer)
    assert again["prompt_ids"] == out["prompt_ids"]
    assert again["completion_ids"] != out["completion_ids"], "another batch draws differently"
    assert Kept(6)(prompts, trainer)["completion_ids"] == out["completion_ids"], "but follows TRL's seed"


def test_prompts_in_any_order_and_as_conversations(tmp_path):
    tasks = dataset("test:Talk-v0", 3)["prompt"]
    trainer = trainer_of(tmp_path, Rollout(1), dataset("test:Talk-v0", 3))
    prompts = [tasks[0], tasks[1], tasks[0], tasks[2], tasks[0]]
    plain = Rollout(1)(prompts, trainer)
    assert plain["prompt_ids"][0] == plain["prompt_ids"][2] == plain["prompt_ids"][4] != plain["prompt_ids"][1]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    assert Rollout(1)(chats, trainer) == plain


def test_completions_keep_to_the_length_that_trl_trains_on(tmp_path):
    trainer = trainer_of(tmp_path, Rollout(8), dataset("test:Talk-v0", 2), max_completion_length=10)
    out = trainer.rollout_func(dataset("test:Talk-v0", 2)["prompt"], trainer)
    assert out["env_turns"] == [1, 1]
    assert all(len(ids) <= 10 for ids in out["completion_ids"])
    assert Rollout(8, max_turns=1)(dataset("test:Talk-v0", 1)["prompt"], trainer)["env_turns"] == [1]


def test_adapters_are_played_with_and_trained(tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    trainer = trainer_of(tmp_path, Rollout(1), dataset("test:Talk-v0", 20), peft_config=lora)
    prompts = dataset("test:Talk-v0", 1)["prompt"]
    adapted = Rollout(1)(prompts, trainer)
    ids = torch.tensor([[*adapted["prompt_ids"][0], *adapted["completion_ids"][0]]])
    with torch.no_grad():
        own = trainer.model.eval()(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    first = len(adapted["prompt_ids"][0]) - 1
    assert own[first].item() == pytest.approx(adapted["logprobs"][0][0], abs=1e-4)
    trainer.train()
    assert len(logged(trainer, "reward")) == 2


def test_thoughts_stay_in_the_history_as_they_were_drawn(tmp_path):
    tokenizer = of_letters("<think>\nhm\n</think>\n\nup")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=False, **shape)
    )
    model.lm_head = torch.nn.Linear(16, len(tokenizer))
    model.lm_head.bias.data[-1] = 1e4  # it thinks
    trainer = trainer_of(
        tmp_path, Rollout(1), dataset("test:Talk-v0", 2), (model, tokenizer), max_completion_length=900
    )
    prompts = dataset("test:Talk-v0", 2)["prompt"]
    out = Rollout(1)(prompts, trainer)
    assert [sum(mask) for mask in out["env_mask"]] == [2, 2]
    assert tokenizer.chat_template == QWEN3, "the trainer's tokenizer is left alone"
    completion = out["completion_ids"][0]
    assert completion[0] == completion[-1] == len(tokenizer) - 1, "its thoughts, twice"
    assert "You said" in tokenizer.decode(completion)


@pytest.mark.parametrize(
    "prompt", ["What is 2 + 2?", "[" * 100_000, "{}", "null", "", '{"env_id": "a:B-v0", "seed": "x"}']
)
def test_a_prompt_that_names_no_task(tmp_path, prompt):
    trainer = trainer_of(tmp_path, Rollout(1), dataset("test:Talk-v0", 2))
    with pytest.raises(UsageError, match="dataset") as told:
        trainer.rollout_func([prompt], trainer)
    assert len(str(told.value)) < 300


def test_episodes_of_a_failing_environment_are_not_trained_on(tmp_path, caplog):
    tasks = dataset("test:Talk-v0", 50, trouble="short")
    limits = EpisodeLimits(max_replays=0, max_replacements=0)
    trainer = trainer_of(tmp_path, Rollout(1, limits=limits), tasks, max_steps=1)
    with caplog.at_level(logging.WARNING, "rollenv.plugins.adapters.trl"):
        trainer.train()
    (told,) = [r.getMessage() for r in caplog.records if "episodes failed" in r.getMessage()]
    assert "OSError: the disk" in told
    assert "\n" not in told
    assert 0 < logged(trainer, "reward")[0] <= 1
    out = trainer.rollout_func(list(tasks["prompt"][:1]) * 16, trainer)
    assert None in out["env_reward"]
    assert [not any(m) for m in out["env_mask"]] == [reward is None for reward in out["env_reward"]]


def test_an_environment_that_always_fails_ends_the_training(tmp_path):
    limits = EpisodeLimits(max_replays=0, max_replacements=0)
    tasks = dataset("test:Talk-v0", 5, trouble="always")
    trainer = trainer_of(tmp_path, Rollout(1, limits=limits), tasks)
    with pytest.raises(EpisodeFailed) as told:
        trainer.train()
    assert "no episode could be played. The first: test:Talk-v0" in str(told.value)
    assert "\n" not in str(told.value)


def test_environments_may_live_in_processes(tmp_path):
    rollout = Rollout(1, workers="1")
    prompts = list(dataset(SOKOBAN, 2, max_turns=3)["prompt"])
    trainer = trainer_of(tmp_path, rollout, dataset(SOKOBAN, 2), max_completion_length=1500)
    there, here = rollout(prompts, trainer), Rollout(1)(prompts, trainer)
    assert there.pop("logprobs") == [pytest.approx(row, abs=1e-4) for row in here.pop("logprobs")]
    assert there == here
    rollout.close()
    rollout.close()


def test_in_a_notebook_an_event_loop_is_running(tmp_path):
    import asyncio

    trainer = trainer_of(tmp_path, Rollout(1), dataset("test:Talk-v0", 8), max_steps=1)

    async def cell():
        trainer.train()

    asyncio.run(cell())
    assert len(logged(trainer, "reward")) == 1


# -- environments as tools ---------------------------------------------------------------------------------------------


def calling():
    """A model that samples among calls of the tool, as :mod:`tests.serve.trl_training` has."""
    made = [{"action": a} for a in ("up", "down", "left", "right")] + [{"action": 5}, {}, {"action": "up", "more": 1}]
    calls = [f"<tool_call>\n{json.dumps({'name': 'step', 'arguments': each})}\n</tool_call>" for each in made]
    tokenizer = of_letters(*calls)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=8192, **shape, **special
    )
    allowed = {*tokenizer.convert_tokens_to_ids(calls), tokenizer.eos_token_id}
    return Qwen2ForCausalLM(config), tokenizer, [i for i in range(len(tokenizer)) if i not in allowed]


def test_training_with_tools_plays_and_rewards(tmp_path):
    torch.manual_seed(0)
    model, tokenizer, refused = calling()
    rows = {"prompt": [[{"role": "user", "content": ""}]] * 8, "seed": list(range(8))}
    episodes = []

    def seen(environments, completions, seed, **_):
        for env, messages, number in zip(environments, completions, seed, strict=True):
            said = [m["content"] for m in messages if m["role"] == "tool"]
            calls = [c["function"]["arguments"] for m in messages for c in m.get("tool_calls") or ()]
            episodes.append((number, calls[: len(said)], said, env.get_reward()))
        return [0.0] * len(seed)

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=seen,
        train_dataset=Dataset.from_dict(rows),
        environment_factory=environment(SOKOBAN, max_turns=3),
        args=GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", save_strategy="no", max_steps=2,
            logging_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=4000,
            max_tool_calling_iterations=5, learning_rate=5e-3, generation_kwargs={"suppress_tokens": refused},
        ),
    )  # fmt: skip
    trainer.train()
    assert len(episodes) == 8
    assert any(OVER in text for _, _, said, _ in episodes for text in said)
    for seed, calls, said, reward in episodes:
        shown, total = at_home(seed, calls)
        assert [text for text in said if not text.startswith("{'error'")] == shown
        assert reward == pytest.approx(total)
    assert "rewards/Environment/mean" in trainer.state.log_history[0]


def at_home(seed, calls):
    """What the calls give where TRL is not."""
    env = environment(SOKOBAN, max_turns=3)()
    env.reset(seed=seed)
    shown = [env.step(call["action"]) for call in calls if list(call) == ["action"]]
    return shown, env.get_reward()


def test_an_environment_as_a_tool_by_hand():
    env = pickle.loads(pickle.dumps(environment("test:Talk-v0")))()
    first = env.reset(seed=3, other="column")
    assert first == env.reset(seed=3)
    assert first.startswith("Say something long. Task ")
    assert env.step("hello") == "You said 5 characters."
    assert env.step("x") == f"You said 1 characters.\n{OVER}"
    assert env.step("more") == OVER
    assert env.get_reward() == 0.5
    del env


def test_the_state_is_shown_with_the_observation():
    env = environment(SOKOBAN)()
    assert "#" in env.reset(seed=1)
    assert "#" in env.step("up")


def test_a_tool_never_raises_and_says_nothing_of_failures_to_the_model(caplog):
    env = environment("test:Talk-v0", trouble="always")()
    env.reset(seed=1)
    for odd in ("", "\ud800", "x" * 1_000_000):
        env.step(odd)
    assert env.step("on") == OVER
    assert env.get_reward() is None
    assert "failed at turn 2: OSError: the disk is full" in caplog.text
    for missing in ({}, {"seed": float("nan")}, {"seed": None, "index": float("nan")}):
        with pytest.raises(UsageError, match="'seed'"):
            env.reset(**missing)
    with pytest.raises(UsageError, match="seed"):
        env.reset(seed="x")
    with pytest.raises(UnknownEnv):
        environment("game:Nothing-v0")


# -- pictures ----------------------------------------------------------------------------------------------------------

SEEN = {"images": "only", "max_turns": 3}


def test_observations_with_pictures_are_parts_of_messages():
    pytest.importorskip("PIL")
    env, own = environment(SOKOBAN, **SEEN)(), rollenv.make(SOKOBAN, **SEEN)
    for parts, images in (
        (env.reset(seed=3), own.reset(3)[1]["images"]),
        (env.step("right"), own.step("right")[4]["images"]),
    ):
        assert {part["type"] for part in parts} == {"text", "image"}
        assert [picture(part["image"]).data for part in parts if part["type"] == "image"] == [i.data for i in images]


def test_rollouts_refuse_pictures_in_a_line(tmp_path):
    with pytest.raises(UsageError, match="reads texts only"):
        trainer_of(tmp_path, Rollout(1), dataset(SOKOBAN, 8, **SEEN), max_steps=1).train()


def test_training_with_tools_shows_pictures(tmp_path):
    """A processor without its part for videos, which needs torchvision; all else is TRL's and transformers' own."""
    pytest.importorskip("PIL")
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from seeing import processor, seeing

    agent = seeing("qwen3_vl")
    model, tokenizer = agent.model, agent.tokenizer
    calls = [
        f"<tool_call>\n{json.dumps({'name': 'step', 'arguments': {'action': move}})}\n</tool_call>"
        for move in ("up", "down", "left", "right")
    ]
    tokenizer.add_tokens(calls)
    model.resize_token_embeddings(len(tokenizer))
    model.config.text_config.max_position_embeddings = 8192
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3_vl.jinja").read_text()
    allowed = {*tokenizer.convert_tokens_to_ids(calls), tokenizer.eos_token_id}
    patches, episodes = [], []

    def looked(part, inputs, output):
        if torch.is_grad_enabled():  # in the update
            patches.append(len(inputs[0]))

    model.model.visual.register_forward_hook(looked)

    def told(environments, completions, **_):
        episodes.extend(completions)
        return [env.get_reward() or 0.0 for env in environments]

    rows = {"prompt": [[{"role": "user", "content": "Play. "}]] * 4, "seed": [0, 1, 2, 3]}
    trainer = GRPOTrainer(
        model=model,
        processing_class=processor(agent),
        reward_funcs=told,
        train_dataset=Dataset.from_dict(rows),
        environment_factory=environment(SOKOBAN, **SEEN),
        args=GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", save_strategy="no", max_steps=1,
            logging_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=3000,
            max_tool_calling_iterations=2, learning_rate=1e-3,
            generation_kwargs={"suppress_tokens": [i for i in range(len(tokenizer)) if i not in allowed]},
        ),
    )  # fmt: skip
    trainer.train()
    shown = [part for messages in episodes for m in messages if m["role"] == "tool" for part in m["content"]]
    images = [part["image"] for part in shown if isinstance(part, dict) and part["type"] == "image"]
    assert len(images) > 4
    assert sum(patches) >= len(images) * (168 // 14) ** 2, "the update sees those of results, and of the task"
