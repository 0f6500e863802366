"""Loss and gradient of SFT and preference learning beside TRL's trainers, on the same batch.

    python benchmarks/learners_beside_trl.py TRL_PYTHON

TRL_PYTHON is the interpreter of an environment with trl and torch. A random Llama, whose tokenizer of whole words drops
white space, reads eight rows; each side computes one step without updating.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rollenv.trainers.config import load_config
from rollenv.trainers.reward_model import RewardModel
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

#: ChatML whose answers are marked for TRL; the white space behind a mark maps to no token of the tokenizer.
TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m.role }} : "
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant : {% endif %}"
)
_MORE = "red blue green house tree river stone cloud mouse cat dog bird now say again"
WORDS = [*["system", "user", "assistant", ":"], *_MORE.split()]
#: Roles and words of the rows by which speed is measured.
SPOKEN = (("user", 40), ("assistant", 120))

#: TRL's side: a trainer's loss and gradients for a file of rows.
PEER = r"""
import json, sys
import numpy as np, torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
import trl

kind, model_path, data, out, packing = sys.argv[1:]
steps = 8 if packing == "speed" else 1
how = dict(output_dir=out + ".d", use_cpu=True, bf16=False, gradient_checkpointing=False, max_grad_norm=0.0,
           learning_rate=0.0, max_steps=steps, report_to=[], logging_steps=1, save_strategy="no", max_length=None,
           per_device_train_batch_size=8, disable_tqdm=True, seed=0)
model = None if kind == "reward" else AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(model_path)
rows = load_dataset("json", data_files=data, split="train")
if kind == "sft":
    if packing == "packed":
        how |= dict(packing=True, max_length=512, per_device_train_batch_size=1)
    args, make = trl.SFTConfig(assistant_only_loss=True, **how), trl.SFTTrainer
elif kind == "reward":
    from transformers import AutoModelForSequenceClassification
    model = AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=1, dtype=torch.float32)
    args, make = trl.RewardConfig(**how), trl.RewardTrainer
elif kind == "kto":
    args, make = trl.KTOConfig(beta=0.1, train_sampling_strategy="sequential", **how), trl.KTOTrainer
else:
    args = trl.DPOConfig(beta=0.1, loss_type={"dpo": "sigmoid", "ipo": "ipo"}[kind], **how)
    make = trl.DPOTrainer
grads = {}
class Keep(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        grads.update({n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.grad is not None})
trainer = make(model=model, args=args, train_dataset=rows, processing_class=tokenizer, callbacks=[Keep()])
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
mean = [row for row in trainer.state.log_history if "train_loss" in row]
np.savez(out, **grads)
print(json.dumps({"seconds": mean[0]["train_runtime"], "loss": mean[0]["train_loss"] if mean else losses[0]}))
"""


def make_model(folder: Path, **size: int) -> None:
    """Write a random Llama, and a tokenizer of whole words that drops white space."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<|pad|>", "<|im_start|>", "<|im_end|>", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<|pad|>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<|pad|>", "eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, **special)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4} | size
    ids = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=512, **shape, **ids))
    with torch.no_grad():  # probabilities far from uniform
        for weights in model.parameters():
            weights.mul_(4 if weights.ndim > 1 else 1)
    model.save_pretrained(folder)


def make_rows(kind: str, file: Path) -> None:
    """Write eight rows: conversations of two turns, pairs, or labelled answers."""
    rng = np.random.default_rng(0)

    def say(least: int, most: int) -> str:
        return " ".join(rng.choice(WORDS[4:], rng.integers(least, most)).tolist())

    rows: list[dict[str, Any]] = []
    for number in range(8):
        asked = [{"role": "user", "content": say(2, 9)}]
        answers = [[{"role": "assistant", "content": say(2, 7)}] for _ in range(2)]
        if kind == "sft":
            more = [{"role": "user", "content": say(1, 4)}, {"role": "assistant", "content": say(1, 6)}]
            rows.append({"messages": [*asked, *answers[0], *more]})
        elif kind == "kto":
            rows.append({"prompt": asked, "completion": answers[0], "label": number % 3 > 0})
        else:
            rows.append({"prompt": asked, "chosen": answers[0], "rejected": answers[1]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ours(kind: str, model: Path, rows: Path, run: Path) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
    """Return our loss and gradients, by the name of each weight."""
    recipe = "reward-model" if kind == "reward" else "sft"
    settings = [] if kind == "reward" else [f"algorithm={kind}"]
    settings += [f"model={model}", f'batches.data=["{rows}"]', f"run_dir={run}", "batches.size=8"]
    settings += ["batches.held_out=0", "batches.epochs=1", "optimizer.max_grad_norm=1e9", "threads=1"]
    config = load_config(recipe, settings)
    gradients = {}
    with Trainer(config, RunDir.create(config, recipe)) as trainer:
        policy = trainer.state.policy
        if kind == "reward":  # of the folder, which theirs reads too
            policy.model.load_state_dict(RewardModel.load(model.with_name("scores")).model.state_dict())

        def keep(*_: Any, **__: Any) -> float:
            gradients.update(
                {n: p.grad.numpy().copy() for n, p in policy.model.named_parameters() if p.grad is not None}
            )
            return 1.0

        policy.step = keep  # type: ignore[method-assign]
        metrics: dict[str, float] = {}
        groups = trainer.batches.groups  # type: ignore[attr-defined]
        metrics |= trainer.learner.update(trainer.learner.compute_advantages(groups, metrics))
    return metrics["loss"], gradients


def compare(peer: str, kind: str, packing: str = "") -> dict[str, float]:
    """Return both losses, the difference of the losses, and the largest difference of a gradient."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        read_by_trl = folder / "model"
        if kind == "reward":
            read_by_trl = folder / "scores"
            RewardModel.begin(str(folder / "model"), 0).save(read_by_trl)
        make_rows(kind, folder / "rows.jsonl")
        command = [peer, "-c", PEER, kind, str(read_by_trl), str(folder / "rows.jsonl"), str(folder / "g.npz")]
        done = subprocess.run([*command, packing or "-"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        theirs = json.loads(done.stdout.strip().splitlines()[-1])["loss"]
        loss, gradients = ours(kind, folder / "model", folder / "rows.jsonl", folder / "run")
        known = np.load(folder / "g.npz")
        if set(known.files) != set(gradients):
            raise RuntimeError(f"gradients of other weights: {set(known.files) ^ set(gradients)}")
        gap = max(float(np.abs(known[name] - gradients[name]).max()) for name in known.files)
        largest = max(float(np.abs(known[name]).max()) for name in known.files)
    return {"ours": loss, "trl": theirs, "loss": abs(loss - theirs), "gradient": gap, "largest": largest}


def speed(peer: str) -> None:
    """Print the tokens per second of SFT, theirs and ours in turn: eight updates of eight rows of equal lengths."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder, words = Path(name), WORDS[4:]
        make_model(folder / "model", hidden_size=384, intermediate_size=1024, num_hidden_layers=8)
        chats = [
            [{"role": role, "content": " ".join(rng.choice(words, count).tolist())} for role, count in SPOKEN]
            for _ in range(64)
        ]
        file = folder / "rows.jsonl"
        file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        tokens = 64 * (sum(count for _, count in SPOKEN) + 8)
        for number in range(3):
            command = [peer, "-c", PEER, "sft", str(folder / "model"), str(file), str(folder / "g.npz"), "speed"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            theirs = json.loads(done.stdout.strip().splitlines()[-1])["seconds"]
            settings = ["algorithm=sft", f"model={folder / 'model'}", f'batches.data=["{file}"]', "batches.size=8"]
            config = load_config("sft", [*settings, f"run_dir={folder / str(number)}", "batches.held_out=0"])
            with Trainer(config, RunDir.create(config, "sft")) as trainer:
                began = time.perf_counter()
                for _ in range(8):
                    groups = trainer.batches.next({})
                    trainer.learner.update(trainer.learner.compute_advantages(groups, {}))
                seconds = time.perf_counter() - began
            print(f"tokens per second: ours {tokens / seconds:.0f}, TRL {tokens / theirs:.0f}")


if __name__ == "__main__":
    print(f"{'':10} {'ours':>12} {'TRL':>12} {'loss apart':>11} {'gradient apart':>15} {'largest':>9}")
    for chosen in ("sft", "sft packed", "dpo", "ipo", "kto", "reward"):
        found = compare(sys.argv[1], *chosen.split())
        print(
            f"{chosen:10} {found['ours']:12.7f} {found['trl']:12.7f} {found['loss']:11.1e} {found['gradient']:15.1e} "
            f"{found['largest']:9.2g}"
        )
    speed(sys.argv[1])
