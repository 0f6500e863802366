"""Files of exported episodes, each with a card that says what is in it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import logging
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError, writes
from rollenv.core.needs import require_extra
from rollenv.core.picture_forms import WORD
from rollenv.core.pictures import MARK, Picture, file_name
from rollenv.core.plugins import entry_points, load
from rollenv.core.tools.calls import call_instructions
from rollenv.rollout.exports.chats import Json, chats_of, completions_of, images_of, split_chat
from rollenv.rollout.filters import preferred
from rollenv.rollout.records import storage
from rollenv.rollout.records.pictures import PictureFiles
from rollenv.rollout.records.stored import StoredEpisode, stored
from rollenv.rollout.seats import own_view
from rollenv.rollout.types import Task, Trajectory

logger = logging.getLogger(__name__)

#: The entry points of further formats: functions from a trajectory to JSON data.
GROUP = "rollenv.exports"
#: The formats and what reads them.
EXPORTS = {
    "own": "rollenv: exact token ids, log-probabilities and masks",
    "chat": "TRL, axolotl: messages, tools",
    "completions": "TRL: prompt, completion (one row for each answer)",
    "pairs": "TRL: prompt, chosen, rejected, margin",
    "verl": "verl: messages, tools, in Parquet",
}

#: The columns with messages.
_CHATS = ("messages", "prompt", "completion", "chosen", "rejected")


def format_of(to: Path, name: str = "") -> str:
    """Return the format of an export: its name, or what stands before the last ending, as in ``x.chat.jsonl``."""
    known = [*EXPORTS, *entry_points(GROUP)]
    middle = to.with_suffix("").suffix.removeprefix(".")
    chosen = name or (middle if middle in known else "own")
    if chosen not in known:
        raise UsageError(f"there is no format {chosen!r}; there are {', '.join(known)}")
    if to.suffix not in (".jsonl", ".parquet"):
        raise UsageError(f"exports are .jsonl or .parquet files, not {str(to)!r}")
    if chosen == "verl" and to.suffix != ".parquet":
        raise UsageError(f"verl reads Parquet only: name the file {to.with_suffix('.parquet').name}")
    return chosen


def export(
    source: str | Path,
    to: str | Path,
    *,
    where: str = "complete",
    form: str = "",
    split: float = 0.0,
    trust: bool = False,
) -> dict[str, Any]:
    """Write stored episodes to a new file, without repetitions of a text for a task.

    With ``split``, about that share of the tasks is written to a second file, ``NAME.test`` with the same endings; a
    task is on the same side in every export.

    Args:
        source: see :func:`~rollenv.rollout.records.stored.stored`.
        form: one of :data:`EXPORTS` or an entry point's; by default see :func:`format_of`.
        trust: build the environments of tasks, for the functions that they offer, whatever the tasks name.

    Returns:
        The card, which is also written beside the file as ``FILE.card.json`` and ``FILE.card.md``.

    Raises:
        UsageError: the file exists, or nothing is left to write.
    """
    to = Path(to)
    form = format_of(to, form)
    if not 0 <= split < 1:
        raise UsageError(f"the share of the test split is from 0 to below 1, not {split}")
    name, _, endings = to.name.partition(".")
    files = {"train": to, "test": to.with_name(f"{name}.test.{endings}")} if split else {"": to}
    if there := [str(file) for file in files.values() if file.exists()]:
        raise UsageError(f"{there[0]} exists: remove it, or choose another name with --to")
    counts: dict[str, Counter[str]] = {}
    partial = to.with_name(f".{os.getpid()}.partial{to.suffix}")

    def chosen(side: str) -> Iterator[StoredEpisode]:
        for episode in stored(source, where):
            episode = replace(episode, trajectory=own_view(episode.trajectory), trust=trust)
            if _side(episode.trajectory.task, split) == side:
                card.add(episode)
                yield episode

    card = _Card()
    try:
        with writes(to, "choose another place with --to"):
            to.parent.mkdir(parents=True, exist_ok=True)
            for side, file in files.items():
                tally = counts[str(file)] = Counter()
                _write(partial, form, chosen(side), tally)
                if tally["rows"]:
                    os.replace(partial, file)
    finally:
        if partial.exists():
            partial.unlink()
    if not any(tally["rows"] for tally in counts.values()):
        nothing = "no two episodes of a task with different returns" if form == "pairs" else "no episode"
        left = [f"{n} {name}" for tally in counts.values() for name, n in tally.items() if n]
        raise UsageError(f"nothing of {source} is left to write where {where!r}: {', '.join(left) or nothing}")
    about = {"files": counts, "format": form, "source": str(source), "where": where, "split": split} | card.to_dict()
    options = ("--where", where), ("--format", form), ("--split", str(split)), ("--to", str(to))
    about["command"] = shlex.join(["rollenv", "export", str(source), *itertools.chain(*options)])
    text = json.dumps(about, indent=2) + "\n"
    to.with_name(f"{to.name}.card.json").write_text(text, encoding="utf-8")
    told = f"# {to.name}\n\n{EXPORTS.get(form, form)}\n\n```json\n{text}```\n"
    to.with_name(f"{to.name}.card.md").write_text(told, encoding="utf-8")
    return about


def task_key(task: Task) -> str:
    """Return a text that is equal for equal tasks."""
    return json.dumps({**asdict(task), "agent_seed": None}, sort_keys=True, default=str)


def _side(task: Task, split: float) -> str:
    if not split:
        return ""
    share = int.from_bytes(hashlib.blake2b(task_key(task).encode(), digest_size=8).digest()) / 2**64
    return "test" if share < split else "train"


def _write(file: Path, form: str, episodes: Iterable[StoredEpisode], tally: Counter[str]) -> None:
    if form == "own":
        own = ((task_key(e.trajectory.task), e.trajectory) for e in episodes)
        storage.write(file, _distinct(own, lambda t: [turn.raw or turn.text for turn in t.turns], tally))
        return
    images: dict[str, Picture] = {}
    rows: Iterable[Json] = _distinct(_rows(form, episodes, images), lambda row: row, tally)
    if form in EXPORTS:
        rows = with_images(list(rows), images, form, file)
    if form == "verl":
        rows = _with_tools_of_verl(list(rows))
    elif form in EXPORTS:  # TRL reads functions as JSON text, too, which Arrow does not change
        rows = ({**row, "tools": json.dumps(row["tools"])} if "tools" in row else row for row in rows)
    try:
        if file.suffix == ".parquet":
            table = _table(rows)
            importlib.import_module("pyarrow.parquet").write_table(table, file)
            return
        with open(file, "w", encoding="ascii") as out:
            out.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        if form not in EXPORTS:  # which name their files
            for image in images.values():
                PictureFiles(file.parent).save(image)
    except UsageError:  # of the condition
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        hint = "; write it to a .jsonl file" if file.suffix == ".parquet" else ""
        raise UsageError(f"a row of the format {form} does not fit {file.suffix}: {error}{hint}") from error


def _table(rows: Iterable[Json]) -> Any:
    rows = list(rows)
    columns: Json = dict.fromkeys(name for row in rows for name in row)  # pyarrow takes those of the first row
    return require_extra("pyarrow", "envs", "Parquet").Table.from_pylist([columns | row for row in rows])


def _with_tools_of_verl(rows: list[Json]) -> list[Json]:
    """Return rows whose functions verl reads unchanged: lists, which it takes; or else text in the first message.

    Parquet gives each function the parameters of all others if they differ, as null.
    """
    tools = [{"tools": row.get("tools") or []} for row in rows]
    with contextlib.suppress(ValueError, TypeError):  # functions whose parameters do not fit one type
        if _table(tools).to_pylist() == tools:
            return [row | own if own["tools"] else row for row, own in zip(rows, tools, strict=True)]
    written = []
    for row in rows:
        first, *rest = row["messages"]
        about = call_instructions(row.get("tools") or [], "hermes")
        content = f"{about}\n\n{first['content']}" if about else first["content"]
        written.append({"messages": [{**first, "content": content}, *rest]})
    return written


def _rows(form: str, episodes: Iterable[StoredEpisode], images: dict[str, Picture]) -> Iterator[tuple[str, Json]]:
    """Yield the rows of a format with their tasks, and add their pictures to ``images``."""

    def noted() -> Iterator[StoredEpisode]:
        for episode in episodes:
            images.update(images_of(episode))
            yield episode

    if form == "pairs":
        yield from _pairs(noted())
        return
    for episode in noted():
        rows: Iterable[Json] = chats_of(episode) if form in EXPORTS else [load(GROUP, form)(episode.trajectory)]
        if form == "completions":
            rows = (row for chat in rows for row in completions_of(chat))
        yield from ((task_key(episode.trajectory.task), row) for row in rows)


def with_images(rows: list[Json], images: Mapping[str, Picture], form: str, file: Path) -> list[Json]:
    """Return rows whose pictures are in a column ``images``, in the order of their places in the messages.

    A place is ``{"type": "image"}`` among the parts of a content; for verl, whose contents are texts, a mark. Where one
    row has pictures, all contents are lists. The column has paths beside the file; in Parquet, the files' bytes.
    """
    if not images:
        return rows
    files, made = PictureFiles(file.parent), list[Json]()
    for row in rows:
        seen: list[Picture] = []

        def shown(content: Any, seen: list[Picture] = seen) -> Any:
            parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            seen += (images[part["sha256"]] for part in parts if part["type"] == "image")
            if form == "verl":
                texts = (part["text"].replace(MARK, WORD) if part["type"] == "text" else MARK for part in parts)
                return "".join(texts)
            return [part if part["type"] == "text" else {"type": "image"} for part in parts]

        chats = {name: chat for name, chat in row.items() if name in _CHATS}
        new = {name: [m | {"content": shown(m["content"])} for m in chat] for name, chat in chats.items()}
        if form == "pairs" and any(
            part["type"] == "image" for name in ("chosen", "rejected") for m in new[name] for part in m["content"]
        ):
            raise UsageError("pairs have pictures in their prompts only: these episodes show some after an answer")
        saved = [files.save(image) for image in seen] if file.suffix == ".jsonl" else []
        column: list[Any] = [f"pictures/{file_name(each)}" for each in saved]
        if file.suffix == ".parquet":
            column = [{"bytes": image.data, "path": image.name} for image in seen]
        made.append(row | new | {"images": column})
    return made


def _pairs(episodes: Iterable[StoredEpisode]) -> Iterator[tuple[str, Json]]:
    """Yield ``prompt``, ``chosen``, ``rejected`` and ``margin`` for chats of one task that begin alike, with the task.

    The pairs are those of ``algorithm=dpo``: every two with different returns and texts.
    """
    groups: dict[tuple[str, str], list[tuple[float, list[Json]]]] = {}
    for episode in (each for each in episodes if each.trajectory.failure != "reward"):
        for chat in chats_of(episode):
            roles = [message["role"] for message in chat["messages"]]
            asked, answer = split_chat(chat, roles.index("assistant"))
            key = task_key(episode.trajectory.task), json.dumps(asked)
            groups.setdefault(key, []).append((episode.trajectory.reward, answer))
    observed = 0
    for (task, prompt), group in groups.items():
        returns, answers = zip(*group, strict=True)
        for better, worse in preferred(returns, [_said(answer) for answer in answers]):
            pair = {"chosen": answers[better], "rejected": answers[worse], "margin": returns[better] - returns[worse]}
            observed += any(m["role"] != "assistant" for m in (*answers[better], *answers[worse]))
            yield task, json.loads(prompt) | pair
    if observed:
        logger.warning(
            "%d pairs have observations between answers: `rollenv train algorithm=dpo` and `reward-model` only read "
            "them, other trainers may learn them",
            observed,
        )


def _said(messages: list[Json]) -> list[Any]:
    """Return what is said in messages, without the ids of calls."""
    return [(m["role"], m["content"], [call["function"] for call in m.get("tool_calls", ())]) for m in messages]


def _distinct(rows: Iterable[tuple[str, Any]], text: Callable[[Any], Any], tally: Counter[str]) -> Iterator[Any]:
    """Yield each row whose text is new for its task."""
    seen: set[bytes] = set()
    for task, row in rows:
        key = hashlib.blake2b(json.dumps([task, text(row)]).encode(), digest_size=16).digest()
        if key in seen:
            tally["repeated"] += 1
        else:
            seen.add(key)
            tally["rows"] += 1
            yield row


class _Card:
    """What an export is made of."""

    def __init__(self) -> None:
        self.environments: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.tasks: set[str] = set()
        self.versions: set[int] = set()
        self.rewards: list[float] = []
        self.judged: list[bool] = []
        self.without_prompts = 0

    def add(self, episode: StoredEpisode) -> None:
        t: Trajectory = episode.trajectory
        self.environments["gateway" if episode.session else t.task.env_id] += 1
        self.models[episode.run.agent if episode.run else ""] += 1
        self.tasks.add(task_key(t.task))
        self.versions |= {turn.policy_version for turn in t.turns if turn.response_ids}
        self.rewards.append(t.reward)
        self.judged += [] if t.success is None else [t.success]
        self.without_prompts += any(turn.response_ids and not turn.prompt_ids for turn in t.turns)

    def to_dict(self) -> dict[str, Any]:
        from rollenv.core.version import __version__

        n = len(self.rewards)
        return {
            "environments": dict(self.environments.most_common()),
            "models": sorted(self.models.keys() - {""}),
            "weights": [min(self.versions), max(self.versions)] if self.versions else [],
            "tasks": len(self.tasks),
            "episodes": n,
            "success": sum(self.judged) / len(self.judged) if self.judged else None,
            "reward": math.fsum(self.rewards) / n,
            "episodes_without_prompts": self.without_prompts,
            "rollenv": __version__,
        }
