"""A session of a gateway: the calls of one episode, recorded in order and limited."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import math
import random
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rollenv.agents.base import Action, AgentFailed, ContextFull, EndpointRefused
from rollenv.agents.engines.base import EngineFailed, Sampling
from rollenv.agents.gateway.dialects.fields import Known
from rollenv.agents.gateway.mcp import Tools
from rollenv.agents.gateway.messages import GatewayError, ModelAnswer, ModelRequest, as_openai, ended_error, image_json
from rollenv.agents.gateway.record import CallRecord
from rollenv.agents.gateway.tree import KINDS, TRAINED, CallNode, CallTree, Ids, Kind, Position, in_lines, kinds
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.pictures import Picture, picture

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caps:
    """The limits of one session. Requests beyond them are refused and counted, without an effect on other sessions."""

    calls: int = 1000
    tokens: int = 1_000_000
    """Sampled tokens of all calls."""
    parallel: int = 16
    """Concurrent calls; others wait."""
    waiting: int = 64
    """Waiting calls, and bodies being read; further ones must be retried."""
    body: int = 16 << 20
    """Bytes of one request."""
    kept: int = 64 << 20
    """Approximate bytes of the session's messages and tokens."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise UsageError(f"a session's cap {name!r} must be a whole number of at least 1, not {value!r}")


@dataclass(slots=True)
class SampledAnswer:
    """An answer with the tokens of its call, as fields of :class:`~rollenv.agents.gateway.tree.CallNode`."""

    answer: ModelAnswer
    tokens: dict[str, Any]
    kept: Callable[[CallNode], None] = lambda node: None
    """Called with the answer's node."""


class Model(Protocol):
    """A source of answers: the policy, or an upstream endpoint."""

    name: str

    @property
    def max_context(self) -> int:
        """Maximum number of tokens of a prompt and its answer."""
        ...

    @property
    def sees(self) -> bool:
        """False if the model reads texts only."""
        ...

    def accept(self, request: ModelRequest) -> ModelRequest:
        """Return a request with its images in the form that the model takes, or raise a GatewayError."""
        ...

    async def draw(self, session: GatewaySession, position: Position, request: ModelRequest) -> SampledAnswer:
        """Sample the answer to a request."""
        ...

    def count(self, session: GatewaySession, position: Position, request: ModelRequest) -> int:
        """Count the tokens of a request's prompt."""
        ...

    def ignores(self, request: ModelRequest) -> list[str]:
        """Return the names of the request's settings that have no effect."""
        ...

    def release(self, session: GatewaySession) -> None:
        """Release a finished session."""
        ...


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """Consecutive calls whose prompts continue each other, for custom training loops."""

    ids: Ids
    mask: tuple[bool, ...]
    """True for sampled tokens to train on. Common tokens of two branches are trained in the first."""
    logprobs: tuple[float, ...]
    """Log-probabilities of sampled tokens; 0 elsewhere."""
    versions: tuple[int, ...]
    """Version of the weights that sampled each token; -1 elsewhere."""
    session: str = ""
    """Id of the session."""
    task: str = ""
    reward: float | None = None
    """Reward of the session, with those of its calls; None if there is none, or it is not finished."""
    success: bool | None = None
    """The success with which the session was finished."""
    images: tuple[Picture, ...] = ()
    """The pictures whose tokens are in the ids; what :func:`~rollenv.core.pictures.picture` converts is converted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", tuple(map(picture, self.images)))


class _Pending:
    """A call in progress, with the number of waiting clients."""

    def __init__(self, task: asyncio.Task[CallNode]):
        self.task, self.waiting = task, 0


class GatewaySession:
    """One episode of an external program that calls the model.

    Args:
        key: key for the program's calls; random (256 bits) by default.
    """

    def __init__(
        self,
        model: Model,
        *,
        task: str = "",
        seed: int = 0,
        number: int = -1,
        key: str = "",
        url: str = "",
        caps: Caps | None = None,
        sampling: Sampling | None = None,
        record: CallRecord | None = None,
        on_finish: Callable[[GatewaySession], None] = lambda session: None,
    ):
        self.model, self.task, self.number, self.url, self.caps = model, task, number, url.rstrip("/"), caps or Caps()
        self.sampling = sampling
        self.key = key or f"rk-{secrets.token_hex(32)}"
        self.id = session_id(self.key)
        self.rng = random.Random(seed)
        self.tree = CallTree()
        self.tools: Tools | None = None
        """The environment's tools for the program."""
        self.reward: float | None = None
        self.success: bool | None = None
        """The success that was said as it was finished; a reward alone does not say it."""
        self.over = False
        self.failure: RollenvError | None = None
        """The engine's failure."""
        self.counts: Counter[str] = Counter()
        """Numbers of calls: all, refused by reason, sent again, coalesced, and cancelled."""
        self.drawn_tokens = self.kept_bytes = self.reading = 0
        self.known_in: defaultdict[Any, Known] = defaultdict(Known)
        """Caches of parsed request items, by dialect."""
        self._slots = asyncio.Semaphore(self.caps.parallel)
        self._pending: dict[str, _Pending] = {}
        self._known: dict[str, CallNode] = {}
        """The latest answer to each request, by its key."""
        self._images: dict[str, str | Picture] = {}
        """The images in the record, by their hashes."""
        self.late_refusals: dict[str, GatewayError] = {}
        """Refusals that came too late to be told, by the key of the request; a retry gets them at once."""
        self._unanswered: Counter[str] = Counter()
        """Numbers of calls without an answer, by key, "" if unread. Their retries do not get answers of equal calls."""
        self._record, self._on_finish = record, on_finish
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def base_url(self) -> str:
        """Base URL for clients of OpenAI's dialects. It contains the key, so any API key works."""
        return f"{self.url}/s/{self.key}/v1"

    @property
    def anthropic_url(self) -> str:
        """Base URL for clients that append ``/v1/messages``, and for Google's, which append ``/v1beta/models``."""
        return f"{self.url}/s/{self.key}"

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def call(self, request: ModelRequest, key: str = "", *, retry: bool = False) -> CallNode:
        """Answer a request, and record the answer before returning it.

        A call is a retry if the client says so, or if the same request was answered but not delivered (:meth:`sent`).
        It joins the call that it repeats, or gets the same answer. Cancelling the last call that waits for an answer
        stops its generation.

        Args:
            key: key of the request: a hash of its body and an idempotency key.

        Raises:
            GatewayError: the session is over, a limit is reached, the prompt is too long, or the engine failed.
        """
        if self.over:
            self.counts["refused_ended"] += 1
            raise ended_error()
        known, pending = self._known.get(key), self._pending.get(key)
        unanswered = key if self._unanswered[key] else ""
        if retry and self._unanswered[unanswered]:
            self._unanswered[unanswered] -= 1
            known = pending = None
        if key and retry and pending is not None:
            self.counts["coalesced"] += 1
            return await self._wait(key, pending)
        if key and known is not None and (retry or not known.delivered):
            self.counts["sent_again"] += 1
            return known
        self._known.pop(key, None)  # later retries are of this call
        self.check_caps("calls")
        if len(self._pending) >= self.caps.parallel + self.caps.waiting:
            self._note_unanswered(key)
            raise self.refuse_crowded()
        self.counts["calls"] += 1
        self._loop = asyncio.get_running_loop()
        pending = _Pending(asyncio.ensure_future(self._answer(request, key)))
        pending.task.add_done_callback(
            lambda done: self._note_unanswered(key) if done.cancelled() or done.exception() else None
        )
        self._pending[key if key and key not in self._pending else secrets.token_hex(16)] = pending
        return await self._wait(key, pending)

    def _note_unanswered(self, key: str) -> None:
        if key in self._unanswered or len(self._unanswered) < self.caps.calls:
            self._unanswered[key] += 1

    def repeats(self, key: str) -> bool:
        """Return whether a request was received before."""
        return key in self._known or key in self._pending

    def check_caps(self, what: str) -> None:
        """Check the limits before one more of "calls" or "counts"."""
        for name, used, most in (
            (what, self.counts[what], self.caps.calls),
            ("tokens", self.drawn_tokens, self.caps.tokens),
            ("bytes", self.kept_bytes, self.caps.kept),
        ):
            if used >= most:
                self.counts[f"refused_{name}"] += 1
                raise GatewayError("limit", f"this session has used all of its {most} {name}; the agent has to stop")

    def forget_delivered(self) -> None:
        """Forget answers that clients have received, as a call is refused unread and its retry may equal theirs."""
        self._known = {key: node for key, node in self._known.items() if not node.delivered}
        self._note_unanswered("")

    def refuse_crowded(self) -> GatewayError:
        """Count a call that is refused because too many others wait, and return its error."""
        self.counts["refused_crowded"] += 1
        return GatewayError("overloaded", f"more than {self.caps.waiting} calls of this session wait; come again")

    async def _wait(self, key: str, pending: _Pending) -> CallNode:
        pending.waiting += 1
        try:
            return await asyncio.shield(pending.task)
        except asyncio.CancelledError:
            if not pending.task.cancelled():
                raise
            if self.over:
                raise ended_error() from None
            raise GatewayError("overloaded", "the gateway stops; come again") from None
        finally:
            pending.waiting -= 1
            if not pending.waiting:
                self._pending = {k: other for k, other in self._pending.items() if other is not pending}
                if not pending.task.done():
                    pending.task.cancel()
                    self.counts["cancelled"] += 1

    async def _answer(self, request: ModelRequest, key: str) -> CallNode:
        async with self._slots:
            with self.refusals():
                if any(message.images for message in request.messages):  # decoding takes long
                    request = await asyncio.to_thread(self.model.accept, request)
                position = self.tree.locate(request)
                drawn = await self.model.draw(self, position, request)
                if self.over:  # another thread has finished the session
                    raise ended_error()
                node = self.tree.node(position, drawn.answer, **drawn.tokens)
                new_tools = position.tools not in self.tree.tools
                self._note_images(node)
                self._note({"event": "call", "key": key, "node": node.to_dict()}, request.tools if new_tools else None)
            self._append(node, key, request.tools)
            drawn.kept(node)
            if self._record is not None:
                await self._record.sync()
            return node

    @contextlib.contextmanager
    def refusals(self) -> Iterator[None]:
        """Convert a model's exceptions to errors of a call, and count them."""
        try:
            yield
        except GatewayError as error:
            self.known_in.clear()  # refused requests are only counted, not cached
            self.counts[f"refused_{error.kind}"] += 1
            raise
        except ContextFull as error:
            self.counts["refused_overflow"] += 1
            raise GatewayError("overflow", str(error)) from error
        except UsageError as error:  # the chat template refuses the order of messages
            self.counts["refused_invalid"] += 1
            raise GatewayError("invalid", str(error)) from error
        except Exception as error:
            self.counts["failed"] += 1
            if isinstance(error, EngineFailed | AgentFailed):
                self.failure = error
            else:
                logger.exception("a call failed")
            kind = "invalid" if isinstance(error, EndpointRefused) else "failed"  # clients retry after "failed"
            raise GatewayError(kind, f"the model failed: {error}") from error

    def _append(self, node: CallNode, key: str, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self.tree.append(node, tools)
        self.drawn_tokens += len(node.response_ids)
        images = (image for message in node.context for image in message.images)
        self.kept_bytes += sum(len(image.data if isinstance(image, Picture) else image) for image in images)
        self.kept_bytes += sum(len(message.text) for message in node.context) + 40 * len(node.tail + node.response_ids)
        if key:
            self._known[key] = node

    def sent(self, node: CallNode) -> None:
        """Record that an answer was delivered."""
        if not node.delivered:
            self._note({"event": "sent", "node": node.number})
            node.delivered = True

    def count(self, request: ModelRequest) -> int:
        """Count the tokens of a request's prompt."""
        self.check_caps("counts")
        self.counts["counts"] += 1
        with self.refusals():
            request = self.model.accept(request)
            return self.model.count(self, self.tree.locate(request), request)

    def with_previous(self, request: ModelRequest) -> ModelRequest:
        """Prepend the chat of the previous answer to a request, unless the request contains the chat itself."""
        if not request.previous:
            return request
        node = self.tree.find_node(request.previous)
        if node is None:
            raise GatewayError("invalid", "there is no such previous response", param="previous_response_id")
        return dataclasses.replace(request, messages=self.tree.after(node, request.messages))

    def find_answer(self, name: str) -> ModelAnswer | None:
        """Return the answer with an id, or with a call of that id."""
        node = self.tree.find_node(name)
        return node.answer if node else None

    # -- rewards and the end -------------------------------------------------------------------------------------------

    def set_reward(self, value: float, call: str = "last") -> None:
        """Add a reward to one call, in addition to the reward of the episode.

        Args:
            call: id of an answer or of a function call in it; or "last".
        """
        value = _finite(value)
        bare = call.removeprefix("resp_").removeprefix("msg_").removeprefix("chatcmpl-")
        if call == "last":
            node = self.tree.nodes[-1] if self.tree.nodes else None
        else:
            node = self.tree.find_node(bare) or self.tree.find_node(call)
        if node is None:
            raise UsageError(f"the session has no call {call!r}")
        self._note({"event": "reward", "node": node.number, "value": value})
        node.reward = (node.reward or 0.0) + value
        if self.over:
            self._on_finish(self)

    @property
    def total_reward(self) -> float | None:
        """The reward of the session, with those of its calls; None if there is none yet."""
        given = [reward for reward in (self.reward, *(n.reward for n in self.tree.nodes)) if reward is not None]
        return sum(given) if given else None

    def finish(self, reward: float | None = None, success: bool | None = None) -> None:
        """Finish the session: running calls are cancelled, and later ones are refused with 410.

        Args:
            success: whether the task was solved. Without it, the session counts neither as solved nor as unsolved.
        """
        if success not in (True, False, None):
            raise UsageError(f"success is True, False or None, not {success!r:.80}")
        if reward is not None:
            self.reward = _finite(reward)
        if success is not None:
            self.success = bool(success)
        first, self.over = not self.over, True
        if first and self._loop is not None and not self._loop.is_closed():  # the loop may run in another thread
            self._loop.call_soon_threadsafe(self._end)
        elif first:
            self._end()
        self._note({"event": "finish", "reward": self.reward, "success": self.success})
        if first or reward is not None or success is not None:
            self._on_finish(self)

    def _end(self) -> None:
        self.cancel()
        self.model.release(self)

    def cancel(self) -> None:
        """Cancel all running calls."""
        for pending in list(self._pending.values()):
            pending.task.cancel()

    def _note(self, event: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        if self._record is not None:
            added = {} if tools is None else {"tools": [dict(tool) for tool in tools]}
            self._record.append({"session": self.id, **event, **added})

    def _note_images(self, node: CallNode) -> None:
        """Record the data of images, once for each, which nodes name by hash."""
        for image in (image for message in node.context for image in message.images):
            form = image_json(image)
            if self._record is not None and isinstance(form, dict) and form["sha256"] not in self._images:
                url = image.url if isinstance(image, Picture) else image
                self._note({"event": "image", "sha256": form["sha256"], "url": url, "seen": isinstance(image, Picture)})
                self._images[form["sha256"]] = image

    # -- training data -------------------------------------------------------------------------------------------------

    def nodes(self, which: Iterable[Kind] = TRAINED) -> list[CallNode]:
        """Return the nodes of these kinds, line by line; the main line is the last."""
        wanted, each = set(which), kinds(self.tree)
        if unknown := wanted - set(KINDS):
            raise UsageError(f"there are no calls of the kind {min(unknown)!r}; give a list of {', '.join(KINDS)}")
        nodes = [node for node in in_lines(self.tree) if each[node.number] in wanted]
        nodes.sort(key=lambda node: each[node.number] in ("main", "compaction"))  # the episode ends with its main line
        return nodes

    def trained_nodes(self, which: Iterable[Kind] = TRAINED) -> list[CallNode]:
        """Return the nodes of these kinds, which all have tokens; see :meth:`nodes`."""
        nodes = self.nodes(which)
        if any(not node.tail and not node.response_ids for node in nodes):
            raise UsageError("answers of an upstream endpoint have no tokens: they can be evaluated, not trained")
        return nodes

    def action(self, node: CallNode) -> Action:
        """Convert a call to an action, whose turn becomes a sample (:mod:`rollenv.rollout.records.samples`)."""
        answer, versions = node.answer, node.versions
        text = "\n".join(filter(None, (answer.text, *(f"{call.name}({call.arguments})" for call in answer.calls))))
        return Action(
            text,
            self.tree.prompt_ids(node),
            node.response_ids,
            node.logprobs,
            versions[0] if versions else 0,
            versions if len(set(versions)) > 1 else (),
            "length" if answer.finish == "length" else "stop",
            reward=node.reward or 0.0,
            images=self.tree.images(node),
        )

    def samples(self, which: Iterable[Kind] = TRAINED) -> list[GatewaySample]:
        """Return training samples: one for every line of calls, as long as prompts continue each other."""
        runs: list[tuple[list[int], list[bool], list[float], list[int]]] = []
        images: list[tuple[Picture, ...]] = []
        before: CallNode | None = None
        for node in self.trained_nodes(which):
            if not (node.continues and before is not None and node.parent == before.number):
                runs.append(([], [], [], []))
                images.append(())
            images[-1] = self.tree.images(node)
            ids, mask, logprobs, versions = runs[-1]
            read = self.tree.prompt_ids(node)[len(ids) :]
            ids += [*read, *node.response_ids]
            mask += [False] * len(read) + [True] * len(node.response_ids)
            logprobs += [0.0] * len(read) + list(node.logprobs)
            versions += [-1] * len(read) + list(node.versions)
            before = node
        about = (self.id, self.task, self.total_reward if self.over else None, self.success)
        return [
            GatewaySample(tuple(i), tuple(m), tuple(p), tuple(v), *about, seen)
            for (i, m, p, v), seen in zip(runs, images, strict=True)
        ]

    def chats(self, which: Iterable[Kind] = TRAINED, *, data: bool = True) -> list[dict[str, Any]]:
        """Return the longest chats of these kinds, for supervised training, as OpenAI's ``messages`` and ``tools``.

        Args:
            data: with the images' data; else their JSON forms.
        """
        wanted, each = set(which), kinds(self.tree)
        parents = {node.parent for node in self.tree.nodes if each[node.number] in wanted}
        leaves = [n for n in self.tree.nodes if each[n.number] in wanted and n.number not in parents]
        chats = []
        for leaf in leaves:
            messages = [*(message for message, _ in self.tree.chat(leaf)), leaf.answer.message]
            chat: dict[str, Any] = {"messages": [as_openai(message, data=data) for message in messages]}
            if tools := self.tree.tools[leaf.tools]:
                chat["tools"] = [{"type": "function", "function": tool["function"]} for tool in tools]
            chats.append(chat)
        return chats

    # -- the record ----------------------------------------------------------------------------------------------------

    def restore(self, event: Mapping[str, Any]) -> None:
        """Apply a recorded event."""
        kind = event["event"]
        if kind == "image":
            self._images[event["sha256"]] = picture(event["url"]) if event["seen"] else event["url"]
        elif kind == "call":
            self._append(CallNode.from_dict(event["node"], self._images), event["key"], event.get("tools"))
            self.counts["calls"] += 1
            self.rng.getrandbits(64)  # the call did this too
        elif kind == "sent":
            self.tree.nodes[event["node"]].delivered = True
        elif kind == "reward":
            node = self.tree.nodes[event["node"]]
            node.reward = (node.reward or 0.0) + event["value"]
        elif kind == "finish":
            self.over, self.reward, self.success = True, event["reward"], event.get("success")

    def to_dict(self, *, tokens: bool = True) -> dict[str, Any]:
        """Convert to plain data for JSON, without the key.

        Args:
            tokens: include the nodes' tokens, not only ``prompt_tokens`` and ``completion_tokens``.
        """
        nodes = []
        for node, kind in zip(self.tree.nodes, kinds(self.tree), strict=True):
            data = {**node.to_dict(), "kind": kind}
            if not tokens:
                for name in ("tail", "response_ids", "logprobs", "versions"):
                    del data[name]
            nodes.append(data)
        return {
            "session": self.id,
            "task": self.task,
            "reward": self.reward,
            "success": self.success,
            "total_reward": self.total_reward,
            "over": self.over,
            "counts": dict(self.counts),
            "matches": dict(self.tree.matches),
            "drawn_tokens": self.drawn_tokens,
            "tools": {key.hex(): list(tools) for key, tools in self.tree.tools.items()},
            "nodes": nodes,
        }


def session_id(key: str) -> str:
    """Return the public id of a session, a hash of its key."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _finite(value: Any) -> float:
    """Validate a reward."""
    try:
        if not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except (TypeError, OverflowError):
        pass
    raise UsageError(f"a reward is a finite number, not {value!r:.80}")
