"""A panel and its file.

A panel is two files of text: ``NAME.toml`` with what holds for all tasks, and ``NAME.jsonl`` with a line for each
member, ``[seed, row, shows, decides]``. Each member is fixed by what an agent sees first and by what decides its
reward, both as hashes: data that somebody else owns is never copied, and whoever has other data is told which member
differs. A file names environments and their arguments, as a recipe does, and no code.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from rollenv.core.arguments import toml_value
from rollenv.core.errors import RollenvError, UsageError, writes
from rollenv.core.registry import list_envs
from rollenv.core.trust import listed, named
from rollenv.rollout.types import Task

NAME = r"[a-z0-9][a-z0-9._-]*"
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]


class PanelError(RollenvError, ValueError):
    """A panel, or a result on it, is not what it says."""


class Member(NamedTuple):
    """One task of a part."""

    seed: Annotated[int, Field(ge=0)]
    row: Annotated[int, Field(ge=0)] | None
    """Its number where tasks are numbered."""
    shows: _Hash
    """Hash of the first observation and, if there is one, of the state key."""
    decides: _Hash
    """Hash of the row of a data set, else of the environment's state after the reset."""


class Protocol(BaseModel):
    """The rules by which the tasks are played. What is None is left to the agent, and stored with the result."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    k: int = Field(1, ge=1)
    """Episodes of each task."""
    temperature: float | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens of an answer."""


class PanelPart(BaseModel):
    """Tasks of one environment with the same arguments."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    env: str
    members: int = Field(ge=1)
    """Their number in the list of members."""
    kwargs: dict[str, JsonValue] = {}
    wrappers: dict[str, dict[str, JsonValue]] = {}
    options: dict[str, JsonValue] = {}
    training: dict[str, JsonValue] | None = None
    """Constructor arguments of the tasks that training may use; None if the environment has no split for it."""


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=f"^{NAME}$")
    version: int = Field(1, ge=1)
    about: str = ""
    source: str = ""
    alike_in_training: int = Field(0, ge=0)
    hash: str
    protocol: Protocol = Protocol()
    parts: list[PanelPart] = Field(min_length=1)


_MEMBER = TypeAdapter(Member)


@dataclass(frozen=True)
class Panel:
    """A named list of tasks."""

    name: str
    parts: Sequence[PanelPart]
    members: Sequence[Member]
    """The members of all parts, one part after the other."""
    protocol: Protocol = field(default_factory=Protocol)
    version: int = 1
    about: str = ""
    source: str = ""
    """Whose data it needs, and its licence."""
    alike_in_training: int = 0
    """Members of a published split that are equal to, or like, a task for training: a leak that is known."""

    def __post_init__(self) -> None:
        if not re.fullmatch(NAME, self.name):
            raise UsageError(f"a panel's name has small letters, digits, '.', '_' and '-', not {self.name!r:.80}")
        if (said := sum(part.members for part in self.parts)) != len(self.members):
            raise PanelError(f"the parts of {self.name} have {said} members, the list has {len(self.members)}")

    @cached_property
    def hash(self) -> str:
        """Hash of everything that makes the tasks: 16 hexadecimal digits of SHA-256."""
        parts = [part.model_dump(exclude={"training"}) for part in self.parts]
        text = json.dumps([parts, self.protocol.model_dump(), self.members], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and hash, as results carry them."""
        return {"name": self.name, "version": self.version, "hash": self.hash}

    def tasks(self) -> list[Task]:
        """Its tasks, in order."""
        return [task_of(part, member) for part, member in self.placed()]

    def placed(self) -> list[tuple[PanelPart, Member]]:
        """Return each member with its part."""
        owners = [part for part in self.parts for _ in range(part.members)]
        return list(zip(owners, self.members, strict=True))

    def save(self, folder: Path) -> Path:
        """Write both files into a folder and return the path of the first.

        Raises:
            UsageError: there is such a file already, an argument cannot be written, or the folder cannot.
        """
        file = folder / f"{self.name}.toml"
        for each in (file, file.with_suffix(".jsonl")):
            if each.exists():
                raise UsageError(f"{each} exists: remove it, or choose another name (a changed panel is another panel)")
        top = {"name": self.name, "version": self.version, "about": self.about, "source": self.source}
        lines = [f"{key} = {toml_value(value)}" for key, value in top.items() if value]
        if self.alike_in_training:
            lines.append(f"alike_in_training = {self.alike_in_training}")
        lines += [f"hash = {toml_value(self.hash)}", "", "[protocol]"]
        lines += [f"{key} = {toml_value(value)}" for key, value in self.protocol.model_dump(exclude_none=True).items()]
        for part in self.parts:
            given = part.model_dump(exclude_none=True)
            kept = {key: value for key, value in given.items() if value not in ({}, None) or key == "training"}
            lines += ["", "[[parts]]", *(f"{key} = {toml_value(value)}" for key, value in kept.items())]
        text = "\n".join(lines) + "\n"
        if _Header.model_validate(tomllib.loads(text)).parts != [*self.parts]:
            raise UsageError(f"an argument of {self.name} is None or nan, which a file cannot hold: leave it away")
        with writes(file):
            folder.mkdir(parents=True, exist_ok=True)
            rows = "".join(f"{json.dumps(member)}\n" for member in self.members)
            file.with_suffix(".jsonl").write_text(rows, encoding="utf-8")
            file.write_text(text, encoding="utf-8")
        return file


def task_of(part: PanelPart, member: Member) -> Task:
    """Return the task of a member."""
    index = {} if member.row is None else {"index": member.row}
    return Task(part.env, member.seed, part.kwargs, part.wrappers, {**part.options, **index})


def read_panel(file: Path, *, trust: bool = False) -> Panel:
    """Read a panel from its TOML file and the members beside it.

    Args:
        trust: allow environments whose ids or arguments name code, addresses or programs (:mod:`rollenv.core.trust`).

    Raises:
        UsageError: a file is absent or cannot be read, or names what is not trusted.
        PanelError: it is no panel, or was changed after it was made.
    """
    rows = file.with_suffix(".jsonl")
    try:
        head = _Header.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        lines = rows.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(
            f"cannot read {error.filename}: {error.strerror}; a panel is NAME.toml and NAME.jsonl"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PanelError(f"{file} is no panel: {_first(error)}") from error
    members = []
    for number, line in enumerate(lines, 1):
        try:
            members.append(_MEMBER.validate_json(line, strict=False))
        except ValidationError as error:
            raise PanelError(f"{rows}, line {number}: {_first(error)}") from error
    fields = {name: getattr(head, name) for name in _Header.model_fields if name != "hash"}
    panel = Panel(members=members, **fields)
    if panel.hash != head.hash:
        raise PanelError(
            f"{file} says hash {head.hash}, but its tasks have {panel.hash}: it was changed after it was made. Restore "
            "it, or make a panel of another name"
        )
    tasks = ({"env_id": part.env, "kwargs": part.kwargs, "wrappers": part.wrappers} for part in head.parts)
    list_envs()  # which loads plug-ins: what they register is no stranger
    if not trust and (found := next(filter(None, map(named, tasks)), None)):
        raise UsageError(f"{file} names {listed(found)}; if you trust whoever made it, allow that with --trust")
    return panel


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first: Mapping[str, Any] = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"


def plain(panel: Panel) -> dict[str, Any]:
    """Return everything but the members as JSON data."""
    parts = [part.model_dump() for part in panel.parts]
    about = {name: value for name, value in asdict(panel).items() if name not in ("parts", "members", "protocol")}
    return {**about, "hash": panel.hash, "protocol": panel.protocol.model_dump(), "parts": parts}
