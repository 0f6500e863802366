"""The rule for data of others: they name no code, address, model or program that their reader did not name or allow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollenv.core import registry
from rollenv.core.registry import DATA, is_elsewhere, list_envs

TRUST_HELP = "Run, load and connect to what the stored data name; without it that is refused, and listed."

#: What addresses, paths, variables and names of code have, and plain words lack.
_NAME = re.compile(r"[:/\\@~$]|\.\w*[A-Za-z]")
#: Keys under which even a plain word, or any setting, names something; and words that name nothing.
_NAMING = re.compile(
    r"(.*\.)?(tokenizer|image|sandbox|sandbox_type|backend|dataset_name|harness\.name|trackers\.use\.\d+|"
    r"key_variable|(player\.options|shard_options)\..*)"
)
_PLAIN = ("", "local", "ast", "graph", "auto", "gloo", "nccl", "tensorboard")
#: Keys of models and data, which are read without running code, so that files of this machine may be named.
_READ = re.compile(r"(.*\.)?(path|levels|tokenizer|data|data\.\d+)")
#: Keys of ids, of which those of files of questions are read too.
_ID = re.compile(r"(.*\.)?(env_id|env\.id)")
#: Keys of a run's settings with texts, which only models and patterns read.
_TEXT = re.compile(
    r"run_dir|(prompt|player\.schema|player\.grammar|model\.lora\.targets|batches\.where)(\..*)?|"
    r"rewards\.domains\.\d+\.(domain|template|checks|pattern|column)(\..*)?"
)


def named(data: Any, key: str = "") -> dict[str, Any]:
    """Return what plain data name by key: all that is no number, plain word, file to read or registered environment."""
    if _TEXT.fullmatch(key):
        return {}
    if isinstance(data, Mapping | list | tuple):
        items = data.items() if isinstance(data, Mapping) else enumerate(data)
        found: dict[str, Any] = {}
        for name, value in items:
            at = f"{key}.{name}".removeprefix(".")
            found |= {at: str(name)} if _NAME.search(str(name)) else named(value, at)
        return found
    special = bool(_NAMING.fullmatch(key)) and type(data) not in (int, float, type(None)) and data not in _PLAIN
    if not special and not (isinstance(data, str) and _NAME.search(data)):
        return {}
    is_id = bool(_ID.fullmatch(key))
    if is_id and not is_elsewhere(str(data)):  # a registered environment, or none
        return {}
    file = str(data).removeprefix(f"{DATA}:") if is_id or _READ.fullmatch(key) else ""
    if file and (not is_id or file != data) and Path(file).expanduser().exists():
        return {}
    return {} if data in registry.ENV_REGISTRY else {key: data}


def listed(found: Mapping[str, Any]) -> str:
    """Return names with their keys on one line; of folders and files that are gone it says so."""
    paths = {key: Path(str(value)).expanduser() for key, value in found.items() if str(value).startswith(("/", "~"))}
    gone = {key for key, path in paths.items() if not path.exists()}
    return ", ".join(f"{key} {found[key]!r:.100}{' (not there)' * (key in gone)}" for key in [*found][:8])


def named_by_task(task: Any) -> str:
    """Return what a stored task would run, load or connect to beside registered environments; empty if nothing."""
    found = named({name: getattr(task, name) for name in ("env_id", "kwargs", "wrappers", "options")})
    if not found:
        known = [spec for spec in list_envs(task.env_id) if spec.id == task.env_id]
        lacking = [need for spec in known for need in spec.missing if not isinstance(need, str)]
        found = {"what is not here,": str(lacking[0])} if lacking else {}  # it might be fetched
    return listed(found)
