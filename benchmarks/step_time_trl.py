"""GRPO steps of TRL on a guessing game, timed; runs in an environment that has TRL (see step_time.py).

Also makes the model that both play with: a random Qwen2 that imitated players of the game for a few seconds, so that
its tool calls can be parsed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

HIGH, TURNS = 15, 4
QUESTION = f"Find the secret number from 0 to {HIGH}."


class Guess:
    """The game; TRL offers its method as a tool."""

    def reset(self, secret: int = 0, **_: Any) -> None:
        self.secret, self.turns, self.found = secret, 0, False

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: The guess.

        Returns:
            higher, lower or correct.
        """
        self.turns += 1
        self.found |= number == self.secret
        return "correct" if number == self.secret else "higher" if number < self.secret else "lower"


def reward(completions: Any, environments: Any = None, **_: Any) -> list[float]:
    """One by the number of guesses."""
    return [1.0 / env.turns if env.found else 0.0 for env in environments]


def transcript(rng: random.Random) -> list[dict[str, Any]]:
    """A game of somebody who guesses at random."""
    game = Guess()
    game.reset(rng.randint(0, HIGH))
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        number = rng.randint(0, HIGH)
        call = {"type": "function", "function": {"name": "guess", "arguments": {"number": number}}}
        said = game.guess(number)
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "guess", "content": said},
        ]
        if said == "correct":
            break
    return [*messages, {"role": "assistant", "content": "Done."}]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A small vocabulary from transcripts, with the chat template of Qwen2.5."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    settings = trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )

    def wrapped() -> PreTrainedTokenizerFast:
        ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "padding_side": "left"}
        return PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=qwen2_5_chat_template, **ends)

    rng = random.Random(0)
    tools = [Guess().guess]
    texts = [wrapped().apply_chat_template(transcript(rng), tools=tools, tokenize=False) for _ in range(200)]
    raw.train_from_iterator([t.replace("<|im_end|>", "").replace("<|im_start|>", "") for t in texts], settings)
    return wrapped()


def make_model(folder: Path, layers: int, hidden: int, steps: int) -> None:
    """Build and warm up a model, and save it with its tokenizer."""
    torch.manual_seed(0)
    made, rng = make_tokenizer(), random.Random(1)
    config = Qwen2Config(
        vocab_size=len(made), hidden_size=hidden, intermediate_size=hidden * 7 // 2, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=made.eos_token_id, pad_token_id=made.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    config.save_pretrained(folder)
    made.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)  # which splits words as Qwen2 does, unlike the one just made
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        texts = [
            tokenizer.apply_chat_template(transcript(rng), tools=[Guess().guess], tokenize=False) for _ in range(8)
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], tools=[Guess().guess], tokenize=False
    )
    system = rendered.split("<|im_start|>system\n")[1].split("<|im_end|>")[0]
    (folder / "system.txt").write_text(system)


class Clock(TrainerCallback):
    """Seconds of every step, and the tokens that TRL counts."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.tokens: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "completions/mean_length" in logs:
            self.tokens.append(logs["completions/mean_length"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, value in {"prompts": 2, "group": 8, "steps": 6, "layers": 4, "hidden": 128, "warm-up": 300}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not (given.folder / "system.txt").exists():
        make_model(given.folder, given.layers, given.hidden, given.warm_up)
    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    rows = [{"prompt": [{"role": "user", "content": QUESTION}], "secret": i % (HIGH + 1)} for i in range(999)]
    clock, members = Clock(), given.prompts * given.group
    spent = {"_generate": 0.0, "_compute_loss": 0.0, "training_step": 0.0, "_prepare_inputs": 0.0}
    trainer = GRPOTrainer(
        model=Qwen2ForCausalLM.from_pretrained(given.folder),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        environment_factory=Guess,
        callbacks=[clock],
        args=GRPOConfig(
            output_dir=str(given.folder / "out"), max_steps=given.steps, use_cpu=True, bf16=False,
            per_device_train_batch_size=members, num_generations=given.group, max_completion_length=256,
            max_tool_calling_iterations=TURNS, temperature=1.0, learning_rate=1e-7, beta=0.0, loss_type="dapo",
            gradient_checkpointing=False, logging_steps=1, report_to="none", save_strategy="no", seed=0,
            disable_tqdm=True, generation_kwargs={"max_new_tokens": 48},
        ),
    )  # fmt: skip
    for name in spent:
        _time(trainer, name, spent)
    trainer.train()
    steps = [{"seconds": s, "tokens": t * members} for s, t in zip(clock.seconds, clock.tokens, strict=False)]
    print("RESULT " + json.dumps({"steps": steps, "spent": {k: v / given.steps for k, v in spent.items()}}))


def _time(trainer: Any, name: str, spent: dict[str, float]) -> None:
    inner = getattr(trainer, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        out = inner(*args, **kwargs)
        spent[name] += time.perf_counter() - started
        return out

    setattr(trainer, name, timed)


if __name__ == "__main__":
    main()
