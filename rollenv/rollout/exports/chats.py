"""Stored episodes as chats, in the form of OpenAI's ``messages`` and ``tools``.

A chat has what the agent read and answered. An agent that gets a prompt of its own for each turn has read a chat of one
answer each time. Few-shot examples of a chat are in the token ids, not here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Iterator
from typing import Any

from rollenv.agents.gateway.messages import image_json
from rollenv.agents.gateway.sessions import session_of
from rollenv.agents.prompts.session import chat_messages
from rollenv.core.errors import UsageError, reads
from rollenv.core.parsing import well_formed
from rollenv.core.picture_forms import stored_content
from rollenv.core.pictures import Picture, picture
from rollenv.core.registry import spec
from rollenv.core.tools.calls import find_calls
from rollenv.core.trust import named_by_task
from rollenv.rollout.records.stored import StoredEpisode
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.rollout.workers.base import make_env

logger = logging.getLogger(__name__)

Json = dict[str, Any]


def chats_of(episode: StoredEpisode) -> Iterator[Json]:
    """Yield the chats of an episode with ``messages`` and, if it called functions, ``tools``.

    An episode is one chat, or one for each turn with a prompt of its own; a gateway's session, or that of a harness, is
    one for each of its lines. Arguments of calls are JSON text. A content with pictures is a list of parts, in which a
    picture is its JSON form without data (:func:`images_of`).

    Raises:
        UsageError: it was stored without what its agent has read.
    """
    with reads(f"an episode of {episode.trajectory.task.env_id} is damaged"):
        yield from _chats_of(episode)


def _chats_of(episode: StoredEpisode) -> Iterator[Json]:
    turns, random = episode.trajectory.turns, _random_turns(episode)
    if episode.session is not None:
        yield from map(_clean, episode.session.chats(data=False))
    elif episode.trajectory.record.get("nodes"):  # of a harness, whose environment said the task alone
        yield from map(_clean, session_of(episode.trajectory.record).chats(data=False))
    elif all(turn.continues for turn in turns):
        yield from map(_clean, [_chat(episode)] if turns else ())
    else:
        for turn in (turn for number, turn in enumerate(turns) if number not in random):
            answer = {"role": "assistant", "content": turn.raw or turn.text}
            asked = [*turn.messages] or [{"role": "user", "content": stored_content(_read(turn), turn.images)}]
            yield _clean({"messages": [*asked, answer]})


def images_of(episode: StoredEpisode) -> dict[str, Picture]:
    """Return the pictures of an episode by the hashes that name them.

    Raises:
        UsageError: an image that a gateway's client sent cannot be read.
    """
    t = episode.trajectory
    shown = (image for turn in t.turns for image in (*turn.images, *turn.prompt_images))
    found = {image.sha256: image for image in (*shown, *t.final_images)}
    nodes = episode.session.tree.nodes if episode.session is not None else ()
    for image in (image for node in nodes for message in node.context for image in message.images):
        form = image_json(image)
        if isinstance(form, str):
            raise UsageError(f"an image is at {form:.100}, which is not fetched: leave its episode out with --where")
        with reads(f"an image of {t.task.env_id} is damaged"):
            found[form["sha256"]] = picture(image)
    return found


def split_chat(chat: Json, at: int) -> tuple[Json, list[Json]]:
    """Return ``prompt``, the messages before a place, with the ``tools``; and the messages after it."""
    tools = {"tools": chat["tools"]} if "tools" in chat else {}
    return {"prompt": chat["messages"][:at], **tools}, chat["messages"][at:]


def completions_of(chat: Json) -> Iterator[Json]:
    """Yield ``prompt`` and ``completion``, both lists of messages, for each answer in a chat that is to be learned."""
    for at, message in enumerate(chat["messages"]):
        if message["role"] == "assistant" and message.get("weight", 1):
            yield {**split_chat(chat, at)[0], "completion": [message]}


def _random_turns(episode: StoredEpisode) -> set[int]:
    """Return the numbers of the turns in which an expert moved at random: they are played, and not learned."""
    return {*episode.trajectory.record.get("random_turns", ())}


def _chat(episode: StoredEpisode) -> Json:
    turns, random = episode.trajectory.turns, _random_turns(episode)
    prompt = episode.run.settings.get("prompt") if episode.run else None
    system = prompt.get("system") if isinstance(prompt, dict) else None
    recorded = any(turn.messages for turn in turns)
    if episode.trajectory.task.env_id.startswith("gateway:"):
        raise UsageError(
            "turns of a gateway's session do not say which call went on with which: use the gateway's record"
        )
    if not recorded and _is_incomplete(episode):
        raise UsageError(
            f"this episode of {episode.trajectory.task.env_id} was stored by a version that did not keep all that its "
            "agent has read: play it again, or export it in the format own"
        )
    tools = undescribed_tools(episode.trajectory, episode.trust)
    messages: list[Json] = [{"role": "system", "content": system}] if system and not recorded else []
    calls: list[Json] = []
    for number, turn in enumerate(turns):
        new = list(turn.messages) if recorded else _results(turn, calls)
        answered = [message for message in new if message.get("role") == "tool"]
        for call, result in zip(calls, answered, strict=False):  # the ids that the endpoint gave
            call["id"] = result["tool_call_id"]
        messages += new
        answer: Json = {"role": "assistant", "content": turn.raw or turn.text}
        answer |= {"weight": 0} if number in random else {}
        follows = turns[number + 1].messages if number + 1 < len(turns) else ()
        calls = []
        if tools or any(message.get("role") == "tool" for message in follows):
            calls = _calls(turn, number, answer, tools)
        messages.append(answer)
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}


def _is_incomplete(episode: StoredEpisode) -> bool:
    """Return whether earlier versions, which stored the episode, left out texts around observations or results."""
    turns, task = episode.trajectory.turns, episode.trajectory.task
    if any(turn.results is None and turn.observation.startswith("<tool_response>\n") for turn in turns):
        return True
    return turns[0].shown is None and bool({"prefix", "suffix"} & _first_info(task, episode.trust).keys())


def _results(turn: Turn, calls: list[Json]) -> list[Json]:
    """Return an observation as the messages of a chat: what the user says, or each result of a tool."""
    texts = [*(turn.results or ())]
    if calls and len(texts) != len(calls):
        texts = []
    info = {"use_tool": bool(texts or calls), "tool_responses": texts, "images": list(turn.images)}
    messages: list[Json] = [
        {"role": role, "content": stored_content(text, images)}
        for role, text, images in chat_messages(_read(turn), info, as_results=True)
    ]
    messages += [{"role": "tool", "content": ""} for _ in calls[len(messages) :]]
    return [m | {"tool_call_id": call["id"]} for m, call in zip(messages, calls, strict=True)] if calls else messages


def _read(turn: Turn) -> str:
    return turn.shown or turn.observation


def _calls(turn: Turn, number: int, answer: Json, tools: list[Json]) -> list[Json]:
    """Move the calls in an answer's text to ``tool_calls``, and return them."""
    found, around = find_calls(answer["content"], schemas=tools)
    if not found or any(call.problem for call in found):
        return []
    answer["content"] = around
    answer["tool_calls"] = [
        {
            "id": f"call_{number}_{at}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for at, call in enumerate(found)
    ]
    return list(answer["tool_calls"])


def undescribed_tools(trajectory: Trajectory, trust: bool) -> list[Json]:
    """Return the functions that an episode's environment offers beside its text; none if its text describes them.

    Args:
        trust: whether the environment may be built whatever the task names.
    """
    native = trajectory.task.kwargs.get("calls") == "native"
    texts = (turn.raw or turn.text for turn in trajectory.turns)
    if not native and not any(call for text in texts for call in find_calls(text)[0] if not call.problem):
        return []
    tools = list(_first_info(trajectory.task, trust).get("tools") or ())
    described = all(tool["function"]["name"] in trajectory.turns[0].observation for tool in tools)
    return [] if described and not native else tools


@functools.cache
def _warn(names: str) -> None:
    logger.warning("what a task offers beside its text is left out, as it names %s: allow that with --trust", names)


def _first_info(task: Task, trust: bool) -> Json:
    """Return the ``info`` of the task's first observation; empty if the environment cannot or may not be built here."""
    if not trust and (names := named_by_task(task)):
        _warn(names)
        return {}
    with contextlib.suppress(Exception), contextlib.closing(make_env(spec(task.env_id), task)) as env:
        _, info = env.reset(task.seed, **({"options": task.options} if task.options else {}))
        return {name: value for name, value in info.items() if value}
    return {}


def _clean(value: Any) -> Any:
    """Return plain data whose texts are Unicode, as Arrow needs it."""
    if isinstance(value, dict):
        return {well_formed(name): _clean(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return well_formed(value) if isinstance(value, str) else value
