"""Trajectories in the Agent Trajectory Interchange Format (ATIF 1.8), which Harbor and its agents write.

The first observation is a step of the user; each turn is a step of the agent with the environment's next observation.
Fields that ATIF lacks are stored under ``extra.rollenv``, so that a trajectory is read back unchanged. Other keys of
``extra`` are ignored. Pictures are files ``pictures/SHA256.ENDING`` beside the document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.picture_forms import stored_content
from rollenv.core.pictures import Picture, file_name
from rollenv.core.tools.calls import find_calls
from rollenv.rollout.records.pictures import PictureFiles
from rollenv.rollout.records.plain import from_plain, to_plain
from rollenv.rollout.types import Task, Trajectory, Turn

VERSION = "ATIF-v1.8"
Json = dict[str, Any]

#: Key of rollenv's own fields in ``extra``.
_OURS = "rollenv"
#: Fields of a turn and of a trajectory that are stored there unchanged.
_OF_TURN = (
    *("reward", "text", "raw", "state_key", "policy_version", "versions", "finish", "view", "messages", "valid"),
    *("shown", "continues", "results"),
)
_OF_TRAJECTORY = (
    "status", "success", "error", "failure", "final_view", "group", "member", "replays", "worker", "seconds",
    "agent_seconds", "metrics",
)  # fmt: skip
#: Fields with pictures, and the texts with their marks; stored there if there are pictures.
_SEEN_IN_TURN, _SEEN_AT_END = ("observation", "images", "prompt_images"), ("final_observation", "final_images")


def to_atif(trajectory: Trajectory, *, agent: str = "rollenv", model: str = "", session: str = "") -> Json:
    """Convert a trajectory to an ATIF document.

    Args:
        model: name of the agent's model, if it has one.
        session: common id of the trajectories of one run.
    """
    from rollenv.core.version import __version__

    turns = trajectory.turns
    shown = [_content(turn.observation, turn.images) for turn in turns]
    shown.append(_content(trajectory.final_observation, trajectory.final_images))
    steps: list[Json] = [{"step_id": 1, "source": "user", "message": shown[0]}]
    steps += [_step(turn, i, after) for i, (turn, after) in enumerate(zip(turns, shown[1:], strict=True), 2)]
    plain = to_plain(replace(trajectory, turns=[]), _NAMES)
    about: Json = {"name": agent, "version": __version__}
    return {
        "schema_version": VERSION,
        "session_id": session or f"{trajectory.task.env_id} seed {trajectory.task.seed}",
        "trajectory_id": f"{trajectory.task.env_id}/{trajectory.task.seed}/{trajectory.group}/{trajectory.member}",
        "agent": about | ({"model_name": model} if model else {}),
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
            "total_completion_tokens": sum(len(turn.response_ids) for turn in turns),
            "total_steps": len(steps),
            "extra": {"reward": trajectory.reward, "success": trajectory.success},
        },
        "extra": {_OURS: {"task": plain["task"], **_kept(plain, _OF_TRAJECTORY, _SEEN_AT_END)}},
    }


#: Names pictures by their hashes, without writing them.
_NAMES: Any = SimpleNamespace(save=lambda image: image.as_json(data=False))


def _content(text: str, images: Sequence[Picture]) -> str | list[Json]:
    """Return an observation as ATIF's content."""
    parts = stored_content(text, images)
    if isinstance(parts, str):
        return text
    return [
        part if part["type"] == "text"
        else {
            "type": "image",
            "source": {
                "media_type": part.get("media_type", "image/png"),
                "path": f"pictures/{file_name(part)}",
            },
        }
        for part in parts
    ]  # fmt: skip


def _kept(plain: Json, names: Sequence[str], seen: Sequence[str]) -> Json:
    """Return rollenv's own fields, and those with pictures if there are any."""
    shown = any(plain[name] for name in seen if name.endswith("images"))
    return {name: plain[name] for name in (*names, *(seen if shown else ()))}


def _step(turn: Turn, number: int, after: str | list[Json]) -> Json:
    plain = to_plain(turn, _NAMES)
    step: Json = {"step_id": number, "source": "agent", "message": turn.raw or turn.text}
    calls = [call for call in find_calls(turn.text)[0] if not call.problem]
    ids = [f"call_{number}_{i}" for i in range(1, len(calls) + 1)]
    if calls:
        step["tool_calls"] = [
            {"tool_call_id": each, "function_name": call.name, "arguments": call.arguments}
            for each, call in zip(ids, calls, strict=True)
        ]
    result: Json = {"content": after}
    step["observation"] = {"results": [{"source_call_id": ids[0], **result} if len(ids) == 1 else result]}
    if turn.response_ids:
        step["metrics"] = {
            "prompt_tokens": len(turn.prompt_ids),
            "completion_tokens": len(turn.response_ids),
            "prompt_token_ids": list(turn.prompt_ids),
            "completion_token_ids": list(turn.response_ids),
            "logprobs": list(turn.logprobs),
        }
    step["extra"] = {_OURS: _kept(plain, _OF_TURN, _SEEN_IN_TURN)}
    return step


def from_atif(data: Json, folder: str | Path = "") -> Trajectory:
    """Convert an ATIF document to a trajectory. Only documents of rollenv are restored completely.

    Each step of the agent becomes a turn; its action is the step's message, or its tool calls if that is empty.
    Messages of the user and the system become part of the next observation. Pictures of others are left out.

    Args:
        folder: the document's, which has the pictures.

    Raises:
        StorageError: a picture is missing.
    """
    if not isinstance(data, dict) or not str(data.get("schema_version", "")).startswith("ATIF-v1."):
        version = data.get("schema_version") if isinstance(data, dict) else data
        raise UsageError(f"this is not an ATIF document: its schema_version is {repr(version)[:80]}")
    steps = data.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UsageError("this ATIF document has no list of steps")
    extra = _table(_table(data, "extra"), _OURS)
    task = from_plain(Task, extra["task"]) if "task" in extra else Task("atif:unknown", 0)
    known = {name: extra[name] for name in (*_OF_TRAJECTORY, "final_images") if name in extra}
    plain = to_plain(Trajectory(task, status="terminated")) | known
    observed: list[str] = []
    plain["turns"] = []
    for step in steps:
        if step.get("source") == "agent":
            plain["turns"].append(_turn(step, "\n".join(observed)))
            observed = []
        else:
            observed.append(_text(step.get("message")))
        results = _table(step, "observation").get("results") or []
        if not isinstance(results, list) or not all(isinstance(each, dict) for each in results):
            raise UsageError("this ATIF document has an observation whose results are not a list of objects")
        observed += [_text(each.get("content")) for each in results]
    plain["final_observation"] = extra.get("final_observation", "\n".join(observed))
    return from_plain(Trajectory, plain, files=PictureFiles(Path(folder)))


def _turn(step: Json, observation: str) -> Json:
    metrics, extra = _table(step, "metrics"), _table(_table(step, "extra"), _OURS)
    text = _text(step.get("message")) or json.dumps(step.get("tool_calls") or "")
    ids = metrics.get("completion_token_ids") or []
    logprobs = metrics.get("logprobs") or [0.0] * _length(ids)
    if not extra and _length(logprobs) != _length(ids):
        raise UsageError(f"this ATIF document has a step with {_length(ids)} tokens and {_length(logprobs)} logprobs")
    turn: Json = {
        "prompt_ids": metrics.get("prompt_token_ids") or [],
        "response_ids": ids,
        "logprobs": logprobs,
        "reward": 0.0,
        "text": text,
        "observation": observation,
    }
    return turn | {name: extra[name] for name in (*_OF_TURN, *_SEEN_IN_TURN) if name in extra}


def _table(data: Json, name: str) -> Json:
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"this ATIF document has {name} {str(value)[:60]!r}, which is not an object")
    return value or {}


def _length(values: Any) -> int:
    return len(values) if isinstance(values, list) else 0


def _text(message: Any) -> str:
    """Return the text of a message, or the joined texts of its parts."""
    if isinstance(message, list):
        return "\n".join(str(part.get("text") or "") for part in message if isinstance(part, dict))
    return "" if message is None else str(message)


def save_atif(trajectory: Trajectory, path: str | Path, **about: str) -> None:
    """Write a trajectory as a JSON file.

    Args:
        path: file to write; an existing one is overwritten. Pictures are written beside it.

    Raises:
        UsageError: a number is not finite, which JSON cannot represent.
    """
    try:
        text = json.dumps(to_atif(trajectory, **about), ensure_ascii=False, indent=1, allow_nan=False)
    except ValueError as error:
        raise UsageError(f"{path}: a reward, a log-probability or a metric is not finite: {error}") from error
    to_plain(trajectory, PictureFiles(Path(path).parent))
    # Lone surrogates, as in undecodable output, become JSON escapes.
    Path(path).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def load_atif(path: str | Path) -> Trajectory:
    """Read a trajectory from a JSON file."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    return from_atif(data, Path(path).parent)
