"""Fingerprints of data sets and models, with which a continued run checks that they have not changed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.agents.gguf import gguf_of, newest_checkpoint
from rollenv.core.registry import spec

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
#: Bytes that are hashed at the beginning and the end of a file of weights.
_READ = 1 << 16


def row_fingerprints(env_id: str, kwargs: Mapping[str, Any], n: int | None = None) -> list[str]:
    """Return a fingerprint of each row of a data set, or of its first ``n``; empty for tasks that are not rows."""
    if not spec(env_id).indexed:
        return []
    with contextlib.closing(spec(env_id).make(**kwargs)) as env:
        rows = getattr(env.unwrapped, "rows", ())
        if not isinstance(rows, Sequence):
            return []
        return [_digest(row) for row in itertools.islice(rows, n)]


def data_fingerprint(env_id: str, kwargs: Mapping[str, Any]) -> str:
    """Return one fingerprint of all rows; empty for tasks that are not rows."""
    rows = row_fingerprints(env_id, kwargs)
    return _digest(rows) if rows else ""


def model_fingerprint(path: str) -> str:
    """Return a fingerprint of the weights in a folder or file; empty where there are none."""
    if not path:  # Path("") would be the current folder
        return ""
    source = gguf_of(path) or newest_checkpoint(Path(path).expanduser())
    files = [source]
    if not source.is_file():
        files = sorted(file for kind in _WEIGHTS for file in source.glob(kind))
    parts = hashlib.blake2b(digest_size=8)
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as weights:
            parts.update(f"{file.name} {size} ".encode() + weights.read(_READ))
            weights.seek(max(0, size - _READ))
            parts.update(weights.read())
    return parts.hexdigest() if files else ""


def _digest(data: Any) -> str:
    if isinstance(data, Mapping):
        data = dict(data)
    text = json.dumps(data, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, bytes | int | float) else type(value).__name__
