"""Training in bfloat16 with and without float32 masters, beside float32: the same data and steps, the loss as it falls.

python benchmarks/masters.py [STEPS]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from common import header, save, table

from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.trainers.optimizer import MasterAdamW

RATES = (1e-6, 1e-5, 1e-4)
SIZE = TinySize(hidden=96, layers=2, heads=4, intermediate=256)


@dataclass
class Run:
    losses: list[float]
    moved: float
    """The share of the weights that are not what they were."""


def train(dtype: torch.dtype, masters: bool, lr: float, steps: int) -> Run:
    tokenizer = build_tokenizer(["up down left right"], 300)
    model = build_model(SIZE, tokenizer, 0).to(dtype)
    data = torch.Generator().manual_seed(0)
    batches = torch.randint(0, 260, (steps, 16, 16), generator=data) // 20 * 20  # some regularity to learn
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    adam = MasterAdamW(model, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    plain = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for ids in batches:
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if masters:
            adam.step(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            plain.step()
        losses.append(loss.item())
    after = adam.masters if masters else dict(model.named_parameters())
    changed = sum(int((after[n].float() != before[n].float()).sum()) for n in before)
    return Run(losses, changed / sum(p.numel() for p in before.values()))


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    torch.set_num_threads(1)
    marks = [0, *range(steps // 5 - 1, steps, steps // 5)]
    rows = []
    kinds = {
        "float32": (torch.float32, True),
        "bfloat16 with float32 masters": (torch.bfloat16, True),
        "bfloat16 alone": (torch.bfloat16, False),
    }
    for lr in RATES:
        for name, (dtype, masters) in kinds.items():
            run = train(dtype, masters, lr, steps)
            rows.append([f"{lr:g}", name, f"{run.moved:.1%}", *(f"{run.losses[m]:.4f}" for m in marks)])
    head = ["lr", "weights", "weights that moved", *(f"loss at step {m + 1}" for m in marks)]
    save("masters", f"{header()}\n{table(head, rows)}")


if __name__ == "__main__":
    main()
