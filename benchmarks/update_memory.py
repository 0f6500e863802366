"""The peak memory of an update against sequence length and vocabulary, measured and by `rollenv.trainers.memory`.

Each measurement is a process of its own: the growth of its peak resident memory from before the policy is made. Freed
memory goes back to the system at once there, as it goes back to the pool of a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from common import header, save, table

LENGTHS = (512, 2048)
VOCABULARIES = (1_000, 32_000)
#: Small enough that the peak of the smallest vocabulary is memory of activations.
SIZE = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
#: Logits at a time; the shipped limit is above what a scaled-down run has.
CHUNK = 1 << 22


def measure(length: int, vocabulary: int, most_logits: int, checkpointing: bool) -> None:
    """Print the growth of the peak over an update of one sequence, and what the arithmetic says, in bytes."""
    import numpy as np
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rollenv.trainers.config import load_config
    from rollenv.trainers.memory import shape_of, update_memory
    from rollenv.trainers.policies.attention import PackedRow
    from rollenv.trainers.policies.local import LocalPolicy
    from rollenv.trainers.policies.packed import Labels, Packed

    torch.set_num_threads(1)
    settings = Qwen2Config(vocab_size=vocabulary, num_key_value_heads=2, tie_word_embeddings=True, **SIZE)
    model = Qwen2ForCausalLM(settings)

    def step(policy: LocalPolicy, n: int) -> None:
        ids = torch.from_numpy(np.random.default_rng(0).integers(0, 64, n))
        zeros = torch.zeros(n - 1, dtype=torch.int64)
        drawn, said = Labels(torch.arange(n - 1), ids[1:], torch.arange(n - 1)), Labels(*[ids[:0]] * 3)
        batch = Packed(ids, PackedRow.of(n), drawn, said, zeros, zeros, {}, torch.ones_like(ids))
        out = policy.logprobs(batch, ("logprobs", "entropy"))
        policy.backward(-out.logprobs.mean())
        policy.step(1e-6)

    tiny = Qwen2ForCausalLM(Qwen2Config(vocab_size=64, num_key_value_heads=2, **SIZE))
    step(LocalPolicy(tiny), 64)  # libraries are loaded
    before = resident("VmRSS")
    policy = LocalPolicy(model, share=True, gradient_checkpointing=checkpointing, most_logits=most_logits)
    for _ in range(2):
        step(policy, length)
    config = load_config("sokoban", [f"model.gradient_checkpointing={json.dumps(checkpointing)}"])  # its player shares
    memory = update_memory(shape_of(settings), config, length, most_logits=most_logits)
    del memory["weights in float32"]  # were there before
    print(json.dumps([resident("VmHWM") - before, sum(memory.values())]))


def resident(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def main() -> None:
    rows = []
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for checkpointing in (False, True):
        for vocabulary in VOCABULARIES:
            for length in LENGTHS:
                found = []
                for most in (CHUNK, 1 << 40):
                    one = [length, vocabulary, most, int(checkpointing)]
                    command = [sys.executable, __file__, "--one", *map(str, one)]
                    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                    found += [f"{size / 1e6:,.0f}" for size in json.loads(done.stdout)]
                rows.append([length, vocabulary, "yes" if checkpointing else "no", *found])
    head = ["tokens", "vocabulary", "checkpointing", "chunked", "computed", "whole", "computed"]
    about = (
        "MB that an update adds to the model's weights at its peak: one sequence, 4 layers, width 128, float32, twice. "
        f"Chunked: at most {CHUNK / 1e6:.1f} million logits at a time.\n\n"
    )
    save("update_memory", f"# Memory of an update\n\n{header()}\n{about}{table(head, rows)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        length, vocabulary, most, checkpointing = map(int, sys.argv[2:])
        measure(length, vocabulary, most, bool(checkpointing))
    else:
        main()
