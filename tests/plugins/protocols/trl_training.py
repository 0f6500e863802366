"""Trains a tiny model of random weights with TRL on a served environment; a test runs it in an environment with TRL.

The model has one token for every letter and one for every call of the tool, and samples among the calls. So it plays
from the first step on, and its rewards differ.
"""

import json
import os
from pathlib import Path

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.openreward import OpenRewardSpec

ACTIONS = ("up", "down", "left", "right", "jump")


def tokens():
    """A tokenizer with the chat template of Qwen3, and the ids of its calls."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    calls = [json.dumps({"name": "step", "arguments": {"action": action}}) for action in ACTIONS]
    calls = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    tokenizer.add_tokens(["<|im_start|>", *calls])
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer, tokenizer.convert_tokens_to_ids(calls)


def total(environments, completions, seed, **columns):
    """The sum of the rewards of each episode, which is written down with its actions."""
    for env, messages, number in zip(environments, completions, seed, strict=True):
        calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
        actions = [call["arguments"]["action"] for call in calls][: len(env.rewards)]  # the last turn's are not made
        print(json.dumps({"seed": number, "actions": actions, "rewards": env.rewards, "finished": env.finished}))
    return [sum(reward for reward in env.rewards if reward is not None) for env in environments]


def main():
    """Train, and print what the trainer logged and how far the weights moved."""
    torch.manual_seed(0)
    tokenizer, calls = tokens()
    allowed = {*calls, tokenizer.eos_token_id}
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=8192, **shape, **special
    )
    model = Qwen2ForCausalLM(config)
    before = [weights.detach().clone() for weights in model.parameters()]
    spec = OpenRewardSpec(os.environ["OPENREWARD_API_URL"], env_name="game:Sokoban-v0-tiny", num_tasks=8)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=total,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        args=GRPOConfig(
            output_dir=os.environ["OUT"],
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            max_steps=3,
            learning_rate=5e-3,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=4000,
            max_tool_calling_iterations=3,
            generation_kwargs={"suppress_tokens": [i for i in range(len(tokenizer)) if i not in allowed]},
        ),
    )
    trainer.train()
    moved = sum((now.detach() - then).abs().sum().item() for now, then in zip(model.parameters(), before, strict=True))
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    print(json.dumps({"logged": logged, "moved": moved}))


main()
