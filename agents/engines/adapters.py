"""LoRA adapters for engines: peft's configuration and tensors (arXiv 2106.09685)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import extra

with extra("train", "Playing a LoRA adapter"):
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

#: Peft's prefix of the model's names.
_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Adapter:
    """The trained part of a model with LoRA, which an engine's ``update_weights`` accepts instead of all weights."""

    config: Mapping[str, Any]
    """The contents of peft's ``adapter_config.json``: ``r``, ``lora_alpha``, ``target_modules``, ..."""
    tensors: Mapping[str, torch.Tensor]
    """Weights by peft's names: ``base_model.model.MODULE.lora_A.weight`` (r, in), ``...lora_B.weight`` (out, r)."""

    def __post_init__(self) -> None:
        for key in ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens"):
            if self.config.get(key):
                raise UsageError(f"engines play plain LoRA adapters only: train without {key}={self.config[key]!r}")
        other = [n for n in self.tensors if not re.search(r"\.lora_[AB]\.weight$", n) or not n.startswith(_PREFIX)]
        if other or not self.tensors:
            raise UsageError(f"an adapter's tensors are named {_PREFIX}MODULE.lora_A.weight, not {other[:1]!r:.80}")

    def on_host(self) -> Adapter:
        """Return a copy in main memory."""
        return Adapter(self.config, {name: tensor.detach().cpu() for name, tensor in self.tensors.items()})

    def save(self, folder: Path) -> None:
        """Write the adapter in peft's format."""
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.tensors.items(), folder / "adapter_model.safetensors")
        about = {"peft_type": "LORA", **self.config}
        (folder / "adapter_config.json").write_text(json.dumps(about, indent=2, default=list) + "\n")

    def merged(self, base: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights of a model with the adapter merged."""
        left = {name.removesuffix(".lora_A.weight") for name in self.tensors if name.endswith(".lora_A.weight")}
        for name, weight in base:
            module = _PREFIX + name.removesuffix(".weight")
            if module in left:
                left.remove(module)
                weight = weight + self._change(module).to(weight)
            yield name, weight
        if left:
            raise UsageError(f"the model has no {min(left).removeprefix(_PREFIX)!r}, which the adapter changes")

    def _change(self, module: str) -> torch.Tensor:
        """Return the change of a module's weight, (out, in).

        It is lora_alpha / r, or / sqrt(r) with rsLoRA (arXiv 2312.03732), times B A; patterns match the ends of names,
        as in peft.
        """
        name = module.removeprefix(_PREFIX)
        rank, alpha = (
            next((n for key, n in patterns.items() if re.match(rf"(.*\.)?({key})$", name)), self.config[setting])
            for setting, patterns in (
                ("r", self.config.get("rank_pattern") or {}),
                ("lora_alpha", self.config.get("alpha_pattern") or {}),
            )
        )
        down, up = (self.tensors[f"{module}.lora_{side}.weight"].float() for side in "AB")
        if self.config.get("use_rslora"):
            rank = math.sqrt(rank)
        change: torch.Tensor = float(alpha / rank) * (up @ down)
        return change.T if self.config.get("fan_in_fan_out") else change


def save_weights(weights: Iterable[tuple[str, torch.Tensor]], file: Path) -> None:
    """Write named tensors, as copies without shared memory, to a safetensors file."""
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights}
    draft = file.with_suffix(".part")
    save_file(plain, draft, metadata={"format": "pt"})
    draft.replace(file)


def saved_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights in a model's folder."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder} has no *.safetensors files, with which the adapter could be merged")
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            yield from ((name, tensors.get_tensor(name)) for name in tensors.keys())  # noqa: SIM118
