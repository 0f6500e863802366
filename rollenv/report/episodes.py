"""Episodes for the page: an index of all of them in columns, and their turns in shards that are loaded on demand."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from rollenv.core.drawing import Drawing, Picture, draw
from rollenv.core.env_spec import load_entry_point
from rollenv.core.errors import RollenvError
from rollenv.core.pictures import MARK, is_picture_token
from rollenv.core.registry import is_elsewhere, spec
from rollenv.report.plain import clip, dumps, finite, items, mapping, number, plain
from rollenv.rollout.records.folders import Run, tokenizer_of
from rollenv.rollout.records.pictures import PictureFiles

#: Characters of JSON after which a shard is full.
SHARD = 400_000

#: Results of episodes, by their number in the index.
STATUSES = ("solved", "wrong", "truncated", "error", "cancelled", "finished", "open")

#: The columns of the index.
COLUMNS = (
    "run",
    "part",
    "iteration",
    "task",
    "member",
    "status",
    "kind",
    "reward",
    "turns",
    "tokens",
    "seconds",
    "shard",
    "at",
)

#: Maximum tokens of a turn on the page.
_TOKENS = 40_000
#: Maximum pictures of a turn on the page, and bytes of each.
_PICTURES, _BYTES = 16, 1 << 19

#: Letters of the palette: printable ASCII that needs no escapes in JSON and HTML, then Latin and beyond.
_LETTERS = [chr(i) for i in range(35, 127) if chr(i) not in "\\<>&"] + [chr(i) for i in range(256, 1200)]

#: The byte of each letter in the names of byte-level tokens (GPT-2's alphabet: printable bytes stand for themselves).
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES_OF = {chr(byte): byte for byte in _PRINTED}
_BYTES_OF |= {chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in _PRINTED)}

_OLD_KINDS = {"did not return within": "hung", " raised ": "raised", " is gone": "lost", "another answer": "differs"}


class EpisodeIndex:
    """Collects the episodes of one or several runs.

    Args:
        put: called with the text of each shard, in order.
    """

    def __init__(self, put: Callable[[str], None]):
        self.put = put
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.tasks: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self.palette: dict[Any, str] = {}
        self.vocabulary: list[dict[int, str]] = []
        self.shards = 0
        self._task_numbers: dict[str, int] = {}
        self._shard: list[str] = []
        self._size = 0

    def add_run(self, run: Run) -> None:
        """Add all episodes of a run. If one was played again (a resumed evaluation), the last one counts."""
        number_of_run = len(self.vocabulary)
        files = PictureFiles(run.path if run.path.is_dir() else run.path.parent)
        writer = _Writer(self.palette, tokenizer_of(run), files)
        self.vocabulary.append(writer.vocabulary)
        latest: dict[tuple[Any, ...], int] = {}
        superseded: set[int] = set()
        for part, episode in run.parts():
            row = len(self.columns["run"])
            self._index(number_of_run, part, episode)
            key = identity(part, episode)
            if key in latest:
                superseded.add(latest[key])
            latest[key] = row
            text = dumps(writer.episode(episode))
            if self._shard and self._size + len(text) > SHARD:
                self._flush()
            self.columns["shard"].append(self.shards)
            self.columns["at"].append(len(self._shard))
            self._shard.append(text)
            self._size += len(text)
        if superseded:
            for name, column in self.columns.items():
                self.columns[name] = [value for row, value in enumerate(column) if row not in superseded]

    def finish(self) -> dict[str, Any]:
        """Store the last shard and return the index as plain data."""
        self._flush()
        return {
            "columns": self.columns,
            "tasks": self.tasks,
            "kinds": self.kinds,
            "statuses": STATUSES,
            "palette": {letter: list(cell) for cell, letter in self.palette.items()},
            "vocabulary": self.vocabulary,
            "shards": self.shards,
        }

    def _flush(self) -> None:
        if self._shard:
            self.put(f"[{','.join(self._shard)}]")
            self.shards += 1
            self._shard, self._size = [], 0

    def _index(self, run: int, part: int, episode: Mapping[str, Any]) -> None:
        """Add the row of an episode."""
        turns = [turn for turn in episode["turns"] if isinstance(turn, dict)]
        status = status_of(episode)
        task = self._task(episode["task"])
        rewards = [reward for turn in turns if (reward := finite(turn.get("reward"))) is not None]
        values = {
            "run": run,
            "part": part,
            "iteration": number(episode.get("iteration"), -1),
            "task": task,
            "member": number(episode.get("member")),
            "status": status,
            "kind": self._kind(episode) if STATUSES[status] == "error" else -1,
            "reward": number(episode.get("reward", sum(rewards))),
            "turns": len(turns),
            "tokens": sum(len(items(turn.get("response_ids"))) for turn in turns),
            "seconds": number(episode.get("seconds")),
        }
        for name, value in values.items():
            self.columns[name].append(value)

    def _task(self, task: Mapping[str, Any]) -> int:
        """Return the number of a task on the page, equal in all runs."""
        about, key = _about_task(task)
        if key not in self._task_numbers:
            self._task_numbers[key] = len(self.tasks)
            index = mapping(task.get("options")).get("index")
            more = {name: about[name] for name in ("kwargs", "options", "wrappers") if name in about}
            self.tasks.append(
                {
                    "env": clip(str(task.get("env_id", "")))[:200],
                    "seed": plain(task.get("seed", 0)),
                    "index": plain(index),
                    "more": json.dumps(plain(more))[:300] if more else "",
                }
            )
        return self._task_numbers[key]

    def _kind(self, episode: Mapping[str, Any]) -> int:
        kind = failure_of(episode)
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)


def identity(part: int, episode: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells an episode apart in its run: of two that are equal in it, the later one counts.

    Args:
        part: 0 of an evaluation, 1 of an update.
    """
    group = number(mapping(episode.get("update")).get("group")) if part else 0
    of = number(episode.get("iteration"), -1), number(episode.get("member")), number(episode.get("seat"))
    return part, *of, group, _about_task(episode["task"])[1]


def _about_task(task: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    about = {name: task.get(name) for name in ("env_id", "seed", "kwargs", "options", "wrappers") if task.get(name)}
    return about, json.dumps(about, sort_keys=True)


def failure_of(episode: Mapping[str, Any]) -> str:
    """Return the kind of an episode's failure."""
    error = str(episode.get("error") or "")
    kind = str(episode.get("failure") or next((k for text, k in _OLD_KINDS.items() if text in error), "unknown"))
    return kind[:40]


class _Writer:
    """Shortens the turns of a run's episodes."""

    def __init__(self, palette: dict[Any, str], tokenizer: Any, files: PictureFiles):
        self.palette, self.tokenizer, self.files = palette, tokenizer, files
        self._shown: dict[str, int] = {}
        """The pictures of the episode at hand, as addresses or texts, with their numbers."""
        self._views: dict[tuple[str, Picture | None], Any] = {}
        self.vocabulary: dict[int, str] = {}

    def episode(self, episode: Mapping[str, Any]) -> dict[str, Any]:
        picture = picture_of(str(episode["task"].get("env_id", "")))
        turns = [turn for turn in episode["turns"] if isinstance(turn, dict)]
        prompts = self._prompts(turns)
        update = mapping(episode.get("update"))
        numbers = [mapping(each) for each in items(update.get("turns"))] or [{}] * len(turns)
        numbers += [{}] * (len(turns) - len(numbers))
        self._shown = {}
        return _without_empty(
            {
                "t": [
                    self._turn(turn, prompt, picture) | ({"u": _of_update(each)} if each else {})
                    for turn, prompt, each in zip(turns, prompts, numbers, strict=False)
                ],
                "u": {"g": number(update.get("group")), "v": number(update.get("version"))} if update else {},
                "g": self._pictures(episode.get("final_images")),
                "G": list(self._shown),
                "o": _text(episode.get("final_observation")),
                "v": self.view(_text(episode.get("final_view")), picture),
                "e": _text(episode.get("error")),
                "w": _text(episode.get("worker")),
                "n": number(episode.get("replays")),
                "a": number(episode.get("agent_seconds")),
                "b": _old_reward(episode),
                "h": _tree(episode.get("record")),
                "q": [_text(name) for name in items(mapping(episode.get("record")).get("seats"))],
                "s": number(episode.get("seat")),
            }
        )

    def _turn(self, turn: Mapping[str, Any], prompt: list[Any] | None, picture: Picture | None) -> dict[str, Any]:
        ids = [i for i in items(turn.get("response_ids")) if type(i) is int]
        if self.tokenizer is not None:
            for token in set(ids[:_TOKENS]) - self.vocabulary.keys():
                if (known := self._token(token)) is not None:
                    self.vocabulary[token] = known[:100]
        whole = self._decode(ids) if ids else None
        text = _text(turn.get("text"))
        raw = _text(turn.get("raw")) if whole is None else clip(whole)
        finish = turn.get("finish")
        return _without_empty(
            {
                "o": _text(turn.get("observation")),
                "v": self.view(_text(turn.get("view")), picture),
                "g": self._pictures(turn.get("images")),
                "x": text,
                "w": "" if raw == text else raw,
                "p": prompt,
                "i": ids[:_TOKENS],
                "z": len(ids) if len(ids) > _TOKENS else 0,
                "l": _numbers(turn.get("logprobs")),
                "K": _numbers(turn.get("versions")),
                "m": plain(items(turn.get("messages"))),
                "r": number(turn.get("reward")),
                "f": "" if finish == "stop" else plain(finish),
                "k": number(turn.get("policy_version")),
                "s": number(turn.get("player")),
            }
        )

    def _prompts(self, turns: list[dict[str, Any]]) -> list[list[Any] | None]:
        """Encode each prompt as the length of its common prefix with the previous one, and the rest; or its length."""
        all_ids = [items(turn.get("prompt_ids")) for turn in turns]
        if self.tokenizer is None:
            return [[len(ids)] if ids else None for ids in all_ids]
        made: list[list[Any] | None] = []
        before = ""
        for ids in all_ids:
            text = self._decode(ids)
            if not ids or text is None:
                made.append([len(ids)] if ids else None)
                continue
            text = clip(text)
            shared = shared_start(before, text)
            made.append([len(ids), shared, text[shared:]])
            before = text
        return made

    def _pictures(self, forms: Any) -> list[int]:
        """Return the numbers of an observation's pictures; of one that cannot be shown, the page has the reason."""
        numbers = []
        for form in items(forms)[:_PICTURES]:
            try:
                image = self.files.load(form, "this turn")
                shown = (
                    image.url if len(image.data) <= _BYTES else f"a picture of {image.width} x {image.height} pixels"
                )
            except RollenvError as error:
                shown = clip(str(error))
            numbers.append(self._shown.setdefault(shown, len(self._shown)))
        return numbers

    def _token(self, token: int) -> str | None:
        """Return the text of one token; of one that is part of a character, its bytes in hexadecimal."""
        text = self._decode([token])
        name = str(self.tokenizer.id_to_token(token) or "") if text is not None and not is_picture_token(token) else ""
        if text and "\ufffd" in text and all(letter in _BYTES_OF for letter in name):
            return "".join(f"<0x{_BYTES_OF[letter]:02X}>" for letter in name)
        if text and "\ufffd" in text and name:
            return name
        return f" {text}" if text is not None and name.startswith("\u2581") and not text.startswith(" ") else text

    def _decode(self, ids: list[int]) -> str | None:
        """Return the text of tokens, with a mark for each picture."""
        if self.tokenizer is None:
            return None
        try:
            parts = []
            for is_picture, some in itertools.groupby(ids, lambda token: token if is_picture_token(token) else 0):
                text = MARK if is_picture else self.tokenizer.decode(list(some), skip_special_tokens=False)
                parts.append(str(text))
            return "".join(parts)
        except (OverflowError, TypeError, ValueError):  # numbers that are not tokens
            return None

    def view(self, text: str, picture: Picture | None) -> Any:
        """Return a drawing in letters of the palette, or the text."""
        key = text, picture
        if key not in self._views:
            if len(self._views) > 10_000:
                self._views.clear()
            drawing = draw(picture, text)
            letters = self._letters(drawing) if drawing else None
            if drawing is None or letters is None:
                self._views[key] = clip(text)
            else:
                notes = [clip(note) for note in drawing.notes]
                self._views[key] = [letters, drawing.block, drawing.origin, drawing.across, notes]
        return self._views[key]

    def _letters(self, drawing: Drawing) -> str | None:
        rows = []
        for row in drawing.rows:
            for cell in row:
                if cell not in self.palette:
                    if len(self.palette) >= len(_LETTERS):
                        return None
                    self.palette[cell] = _LETTERS[len(self.palette)]
            rows.append("".join(self.palette[cell] for cell in row))
        return "\n".join(rows)


def _old_reward(episode: Mapping[str, Any]) -> str:
    """Return the reward before a re-grading; empty without one."""
    before = mapping(episode.get("metrics")).get("old_reward")
    return f"{before:.4g}" if isinstance(before, int | float) else ""


def _tree(record: Any) -> dict[str, Any] | None:
    """Return the calls of a harness, each with its parent, kind, turn, context and answer."""
    if not isinstance(record, dict) or not items(record.get("nodes")):
        return None
    calls = []
    for node in record["nodes"]:
        answer = node["answer"]
        calls.append(
            {
                "p": -1 if node["parent"] is None else node["parent"],
                "k": node["kind"],
                "t": node.get("turn", -1),
                "n": [answer["prompt_tokens"], answer["completion_tokens"]],
                "c": [[message["role"], clip(message["text"])] for message in node["context"]],
                "x": clip(answer["text"]),
                "f": [[call["name"], clip(call["arguments"])] for call in answer["calls"]],
            }
        )
    about = {"harness": record.get("harness"), "exit": record.get("exit_code"), "matches": record.get("matches")}
    return {"calls": calls, "about": plain(about), "output": _text(record.get("output"))}


def shared_start(a: str, b: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


@functools.lru_cache(maxsize=1000)
def picture_of(env_id: str) -> Picture | None:
    """Return the picture of an environment; None if it has none or cannot be loaded."""
    try:
        found = None if is_elsewhere(env_id) else spec(env_id)
        return getattr(load_entry_point(found.entry_point, env_id), "picture", None) if found else None
    except Exception:  # third-party modules raise anything; their episodes are shown as text
        return None


def status_of(episode: Mapping[str, Any]) -> int:
    """Return the number of an episode's result in :data:`STATUSES`."""
    status, success = episode.get("status"), episode.get("success", False)
    if status == "failed":
        return STATUSES.index("error")
    if status in ("cancelled", "open"):
        return STATUSES.index(status)
    if success:
        return STATUSES.index("solved")
    if success is None and status == "terminated":
        return STATUSES.index("finished")
    return STATUSES.index("truncated" if status == "truncated" else "wrong")


def _rounded(value: Any) -> Any:
    return round(value, 6) if type(value) is float and -1e9 < value < 1e9 else plain(value)


def _numbers(value: Any) -> Any:
    """Return numbers of tokens for the page: a list, or one that all of them share."""
    return [_rounded(each) for each in value[:_TOKENS]] if isinstance(value, list | tuple) else _rounded(value)


def _of_update(numbers: Mapping[str, Any]) -> dict[str, Any]:
    letters = {"p": "logprobs", "n": "steps", "e": "entropy", "a": "advantages", "c": "cut"}
    return {letter: _numbers(numbers.get(name)) for letter, name in letters.items()} | {"y": _text(numbers.get("why"))}


def _text(value: Any) -> str:
    return clip(value) if isinstance(value, str) else ""


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value not in ("", None, [], {}, 0)}
