"""Catalogues of indexes of environment packages, read from a folder or a web server."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from rollenv.core.errors import UsageError, reads
from rollenv.core.proxies import without_proxy

CATALOG = "rollenv.json"
#: What the fields of a package may be: they become parts of paths, pages and lines in a terminal.
_FIELDS = {
    "name": re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.ASCII | re.IGNORECASE),
    "version": re.compile(r"[\w.!+-]+", re.ASCII),
    "wheel": re.compile(r"[\w.!+]+(-[\w.!+]+){2,4}\.whl", re.ASCII),
    "sha256": re.compile(r"[0-9a-f]{64}"),
}
#: Bytes that a file of an index may have.
_LARGEST = 1 << 30


@dataclass(frozen=True)
class IndexedPackage:
    """A wheel in an index."""

    name: str
    version: str
    wheel: str
    sha256: str
    ids: tuple[str, ...]

    def __post_init__(self) -> None:
        for field, form in _FIELDS.items():
            value = getattr(self, field)
            if not isinstance(value, str) or not form.fullmatch(value):
                raise ValueError(f"{value!r} is no {field} of a package")
        if not all(isinstance(env_id, str) and env_id.isprintable() for env_id in self.ids):
            raise ValueError(f"{self.ids!r} are no ids of environments")
        if folder_name(self.wheel.partition("-")[0]) != self.folder:
            raise ValueError(f"{self.wheel!r} is no wheel of {self.name}")

    @property
    def folder(self) -> str:
        """The folder's name, normalised as pip does (PEP 503)."""
        return folder_name(self.name)


def folder_name(name: str) -> str:
    """Return the name of a package's folder, normalised as pip does (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256(data: bytes) -> str:
    """Return the hash of a wheel, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read_catalog(index: str) -> list[IndexedPackage]:
    """Return the packages of an index, the latest last."""
    with reads(f"{index}/{CATALOG} is damaged"):
        packages = [IndexedPackage(**{**row, "ids": tuple(row["ids"])}) for row in json.loads(fetch(index, CATALOG))]
    return packages


def fetch(index: str, path: str) -> bytes:
    """Read a file of an index, which is a folder or a URL."""
    if not index.startswith(("http://", "https://")):
        try:
            return Path(index, path).read_bytes()
        except OSError as error:
            raise UsageError(f"{index} is no index of packages: {path}: {error.strerror or error}") from error
    import httpx

    url = f"{index.rstrip('/')}/{path}"
    try:
        client = httpx.Client(timeout=60.0, follow_redirects=True, mounts=without_proxy(url))
        with client, client.stream("GET", url) as answer:
            answer.raise_for_status()
            data = bytearray()
            for part in answer.iter_bytes():
                data += part
                if len(data) > _LARGEST:
                    raise UsageError(f"{url} is larger than {_LARGEST >> 20} MiB")
            return bytes(data)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(f"{index} is no index of packages: {error}") from error
