"""Runs and policies that are small enough to be made many times."""

from __future__ import annotations

import torch

from rollenv.agents.engines.local import load_weights
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.trainers.batches import weights_for_player
from rollenv.trainers.config import load_config
from rollenv.trainers.policies.attention import PackedRow
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZE = TinySize(hidden=32, layers=1, heads=2, intermediate=64)
IDS = torch.randint(0, 200, (8, 12), generator=torch.Generator().manual_seed(0))


def start(path, overrides, recipe="sokoban"):
    config = load_config(recipe, [*overrides, f"run_dir={path}"])
    return Trainer(config, RunDir.create(config, recipe))


def saved(make, path):
    """The folder of a model, made for the tokenizer beside it."""
    tokenizer = build_tokenizer(["What is 2 + 3? 5"] * 9, 300, chat=True)
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    make(tokenizer).save_pretrained(path)
    return path


def chat_model(path):
    """The folder of a chat model of 200 tokens."""
    tokenizer = build_tokenizer(["what is 2 + 3 5 system user assistant up down left right"] * 9, 320)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token, tokenizer.chat_template = "<|im_end|>", CHATML
    size = TinySize(hidden=16, layers=1, heads=2, intermediate=16, context=200)
    LocalAgent(build_model(size, tokenizer, 0), tokenizer).save(path)
    return path


def numbers(path):
    """The metrics of a run's folder, without what depends on the clock."""
    rows = read_rows(path / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "cpu/", "tokens_per_s"))} for row in rows]


def policy_of(dtype, seed=0, **settings):
    model = build_model(SIZE, build_tokenizer(["up down"], 300), seed).to(dtype)
    return model, LocalPolicy(model, betas=(0.9, 0.999), max_grad_norm=1e9, **settings)


def towards_texts(policy, lr, steps=1):
    """Steps towards fixed texts."""
    for _ in range(steps):
        for row in IDS:
            out = policy.model(input_ids=row[None], packed_row=PackedRow.of(len(row))).logits[0, :-1]
            policy.backward(torch.nn.functional.cross_entropy(out, row[1:]) / len(IDS))
        policy.step(lr)


def trained(dtype, *, masters=True, lr=1e-6, steps=20):
    """How far the trained weights moved in some steps; the player's model, which got them, and the policy."""
    model, policy = policy_of(dtype)
    before = {n: p.detach().float().clone() for n, p in model.named_parameters()}
    if masters:
        towards_texts(policy, lr, steps)
        load_weights(model, weights_for_player(policy, "copy"))
        after = policy.weights
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.0)
        for _ in range(steps):
            optimizer.zero_grad()
            model(input_ids=IDS, labels=IDS).loss.backward()
            optimizer.step()
        after = dict(model.named_parameters())
    moved = torch.cat([(after[n].detach().float() - before[n]).flatten() for n in before])
    return moved, model, policy
