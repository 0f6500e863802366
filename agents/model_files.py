"""Models' files: whether a path holds a model, arguments for ``from_pretrained``, errors that name the damaged file."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollenv.core import hub
from rollenv.core.errors import HubUnreachable, NotOnHub, RollenvError, UsageError

#: Names of the files of tokenizers.
_TOKENIZERS = ("*token*", "vocab.*", "*.model", "tekken.json")


def check_model(path: str, *, scores: bool = False) -> None:
    """Raise UsageError unless a path is a folder of a whole model and a tokenizer, or reads ``OWNER/NAME``; offline.

    Args:
        scores: whether the model gives scores; by default it writes texts.
    """
    folder = Path(path)
    if folder.is_file():
        raise UsageError(f"cannot load a model: {path!r} is a file; name the model's folder, or a file NAME.gguf")
    if folder.is_dir():
        if (folder / "adapter_config.json").exists():
            raise UsageError(only_adapter(path))
        if not any(file for pattern in _TOKENIZERS for file in folder.glob(pattern)):
            raise UsageError(
                f"cannot load a model: the folder {path!r} holds no tokenizer (tokenizer.json); save it there too"
            )
        config = folder / "config.json"
        about = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
        if not scores and re.search(r'"architectures":\s*\[\s*"\w+ForSequenceClassification"', about):
            raise UsageError(
                f"{path} gives scores, as a reward model does, and writes no texts: name a language model, and this "
                'one in rewards.domains=[{kind="learned", path=...}]'
            )
        return
    if path.count("/") != 1 or path.startswith((".", "/", "~")) or path.endswith("/"):
        raise UsageError(f"cannot load a model: there is no folder {path!r}, and a hub name reads OWNER/NAME")


def only_adapter(path: str) -> str:
    """Return the error for an adapter in place of a model."""
    return (
        f"{path!r} is a LoRA adapter, not a model: merge it into its model and name the result, with peft: "
        "AutoPeftModelForCausalLM.from_pretrained(ADAPTER).merge_and_unload().save_pretrained(FOLDER), and the "
        "tokenizer beside it. A checkpoint of rollenv is a whole model: name the folder above its adapter/"
    )


#: Without it, ``from_pretrained`` asks at the terminal whether to run the code of a model's folder.
NO_CODE = {"trust_remote_code": False}

#: A setting by which transformers fetches attention code from the hub, in a configuration as Python writes JSON.
_KERNEL = re.compile(r'attn_implementation\w*": ("[^"]*/|\{[^}]*/)')


@contextlib.contextmanager
def reading(path: str, what: str = "a model") -> Iterator[None]:
    """Turn whatever libraries raise for a damaged or hostile file of a model into one sentence that names the file.

    Raises:
        UsageError: the block raised anything but an error of rollenv, a lack of memory or an interruption.
    """
    _quiet_transformers()
    try:
        for name in ("config.json", "generation_config.json"):  # of which transformers skips a damaged one
            config = Path(path) / name
            if config.is_file() and _KERNEL.search(json.dumps(json.loads(config.read_text(encoding="utf-8")))):
                raise UsageError(f"{config} names code for its attention, which is not run: remove attn_implementation")
        yield
    except BaseException as error:  # torch, safetensors, jinja2 and gguf have errors of their own; tokenizers panics
        own = isinstance(error, RollenvError | MemoryError | KeyboardInterrupt | SystemExit | GeneratorExit)
        if own or "CancelledError" in (name := type(error).__name__) or name == "OutOfMemoryError":
            raise
        file = _damaged(Path(path))
        where = f": its file {file} cannot be read" if file else ""
        why = " ".join(str(error).split())
        if "weights_only" in why or "trust_remote_code" in why:  # do not pass on the advice to run it
            why = "it needs code of its own, which is not run"
        raise UsageError(f"cannot load {what} from {path!r}{where}: {name}: {why:.300}") from error


def _quiet_transformers() -> None:
    """Keep bars out of logs, and reports on weights unless some of the model's own are missing or of another shape."""
    if not (sys.stderr and sys.stderr.isatty()):
        importlib.import_module("transformers").utils.logging.disable_progress_bar()
    logging.getLogger("transformers.modeling_utils").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    text = re.sub(r"\x1b\[[\d;]*m", "", record.getMessage())
    if "LOAD REPORT" not in text:
        return True
    record.msg, record.args = text, ()
    return bool(re.search(r"^(?!score\.weight )\S+ +\| (MISSING|MISMATCH|CONVERSION)", text, re.MULTILINE))


def _damaged(folder: Path) -> str:
    """Return the name of the first file of a model's folder that cannot be read; empty if all can, or there is none."""
    for file in sorted(folder.glob("*")) if folder.is_dir() else ():
        try:
            if file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
            if file.name == "tokenizer.json":
                importlib.import_module("tokenizers").Tokenizer.from_file(str(file))
            elif file.suffix == ".safetensors":
                importlib.import_module("safetensors").safe_open(str(file), "np")
            elif file.suffix in (".bin", ".pt", ".pth"):
                importlib.import_module("torch").load(file, weights_only=True, map_location="meta")
            elif file.suffix == ".jinja":
                importlib.import_module("jinja2").Environment().parse(file.read_text(encoding="utf-8"))
        except KeyboardInterrupt:
            raise
        except BaseException:  # tokenizers' panics are no Exception
            return file.name
    return ""


def loading(path: str) -> dict[str, Any]:
    """Return arguments for ``from_pretrained``; if the hub is unreachable, only its cache is used.

    Raises:
        HubUnreachable: the hub cannot be reached, and the model is not in the cache.
    """
    check_model(path)
    try:
        if not Path(path).exists():
            hub.ask(path)
    except (HubUnreachable, NotOnHub) as error:
        from huggingface_hub import try_to_load_from_cache

        if isinstance(try_to_load_from_cache(path, "config.json"), str):
            return {"local_files_only": True, **NO_CODE}
        raise type(error)(f"cannot load a model: there is no folder {path!r}, and {error}") from error
    return dict(NO_CODE)
