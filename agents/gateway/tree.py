"""The calls of a session as a tree of nodes, each with an answer and its sampled tokens.

A client sends its whole chat with every call. Messages are compared in a normal form, not as tokens; a match stands for
the original tokens of the prompt and answer (facts and rules: docs/guides/gateway.md).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rollenv.agents.gateway.messages import FunctionCall, Message, ModelAnswer, ModelRequest, canonical, image_json
from rollenv.core.pictures import Picture

Ids = tuple[int, ...]

#: Kinds of matches of an assistant's message, best first. "exact"; "reasoning_lost": only the reasoning is absent or
#: trimmed; "trimmed": so is the text; "by_id": it has the id of a call, with any other changes.
MATCHES = ("exact", "reasoning_lost", "trimmed", "by_id")
#: An assistant's message that matches no answer: from another model, or rewritten by the client.
UNKNOWN = "unknown"

#: "main": the agent's own line. "subagent": another line with tools that works for others: it has the tools of the main
#: one, a call asked it, or its answer comes back; or any other line if none has tools.
#: "compaction": a summary with which a line continues. "aside": a title, a probe. "superseded": requested again, and
#: continued from the later answer. "cancelled": never delivered.
Kind = Literal["main", "subagent", "compaction", "aside", "superseded", "cancelled"]
KINDS: tuple[Kind, ...] = ("main", "subagent", "compaction", "aside", "superseded", "cancelled")
#: The kinds that are trained on by default.
TRAINED: tuple[Kind, ...] = ("main", "subagent", "compaction")
#: Minimum length in characters of a summary that is searched for in other messages.
_LONG = 24
#: Number of answers before a root that are searched for its summary.
_RECENT = 100
#: Maximum number of cached walks of a session, such as those of sub-agents.
_WALKS = 32
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(slots=True)
class CallNode:
    """A call and its answer."""

    number: int
    parent: int | None
    """The node of the last known answer in the chat, or None."""
    context: tuple[Message, ...]
    """The messages after the parent's answer."""
    state: bytes
    """Hash of the chat before the answer."""
    tools: bytes
    """Hash of the tools."""
    answer: ModelAnswer
    continues: bool = False
    """True if the prompt begins with the tokens of the parent's prompt and response; ``tail`` is the rest."""
    tail: Ids = ()
    opening: int = 0
    """Number of tokens at the end of ``tail`` that open the answer, a call that the client required."""
    response_ids: Ids = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    """Version of the weights that sampled each token."""
    began: float = 0.0
    ended: float = 0.0
    reward: float | None = None
    """Reward of this call, if any."""
    delivered: bool = False
    """True if a client has received the answer."""
    has_tools: bool = False
    matches: dict[str, int] = field(default_factory=dict)
    """Numbers of assistant messages in the chat by kind of match."""

    @property
    def answer_ids(self) -> Ids:
        """The tokens of the answer: its opening and the sampled ones."""
        return self.tail[len(self.tail) - self.opening :] + self.response_ids

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON, with the hashes of images."""
        data = {name: getattr(self, name) for name in self.__slots__}
        context = [{**asdict(message), "images": [*map(image_json, message.images)]} for message in self.context]
        hashes = {"state": self.state.hex(), "tools": self.tools.hex()}
        return {**data, **hashes, "context": context, "answer": asdict(self.answer)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], images: Mapping[str, str | Picture] = {}) -> CallNode:
        """Restore a node from :meth:`to_dict`, also after a JSON round trip.

        Args:
            images: by their hashes; others stay as they are.
        """

        def shown(image: Any) -> Any:
            return images.get(image["sha256"], image) if isinstance(image, Mapping) else image

        answer = {**data["answer"], "calls": tuple(FunctionCall(**call) for call in data["answer"]["calls"])}
        lists = {name: tuple(data[name]) for name in ("tail", "response_ids", "logprobs", "versions")}
        hashes = {name: bytes.fromhex(data[name]) for name in ("state", "tools")}
        context = tuple(
            Message(
                **{**m, "calls": tuple(FunctionCall(**c) for c in m["calls"]), "images": (*map(shown, m["images"]),)}
            )
            for m in data["context"]
        )
        for name in ("prompt_ids", "response_ids", "logprobs"):
            answer[name] = tuple(answer[name])
        return cls(**{**data, **lists, **hashes, "context": context, "answer": ModelAnswer(**answer)})


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a request in a tree."""

    parent: CallNode | None
    context: tuple[Message, ...]
    """The messages after the parent's answer."""
    chat: tuple[tuple[Message, CallNode | None], ...]
    """All messages, each with its node if it is an answer."""
    state: bytes
    tools: bytes
    extends: bool
    """True if the parent has the same tools, so that its tokens can be continued."""
    matches: dict[str, int]


@dataclass(slots=True)
class Walk:
    """The cached path of a chat through the tree, from which longer chats are located."""

    messages: tuple[Message, ...]
    """The messages in the order they were sent."""
    tools: bytes
    state: bytes = b""
    parent: CallNode | None = None
    start: int = 0
    """Index in ``chat`` of the first message after the parent's answer."""
    chat: list[tuple[Message, CallNode | None]] = field(default_factory=list)
    matches: Counter[str] = field(default_factory=Counter)
    searched: set[bytes] = field(default_factory=set)
    """States after which an answer was searched for."""


class CallTree:
    """The nodes of one session, in the order of their answers."""

    def __init__(self) -> None:
        self.nodes: list[CallNode] = []
        self.matches: Counter[str] = Counter()
        self.tools: dict[bytes, tuple[Mapping[str, Any], ...]] = {}
        """Schemas by their hash."""
        self._answers: dict[bytes, list[CallNode]] = {}
        self._named: dict[str, CallNode] = {}
        self._last_tools: tuple[tuple[Mapping[str, Any], ...], bytes] = ((), digest([]))
        self._walks: list[Walk] = []
        """Cached walks, the latest first; a new answer drops those whose result it may change."""

    def locate(self, request: ModelRequest) -> Position:
        """Find the deepest answer that a request's chat continues."""
        if request.tools != self._last_tools[0]:
            self._last_tools = request.tools, digest([dict(tool) for tool in request.tools])
        tools = self._last_tools[1]
        walk = self._walk(request.messages, tools)
        context = tuple(message for message, _ in walk.chat[walk.start :])
        extends = walk.parent is not None and walk.parent.tools == tools
        return Position(walk.parent, context, tuple(walk.chat), walk.state, tools, extends, dict(walk.matches))

    def _walk(self, messages: tuple[Message, ...], tools: bytes) -> Walk:
        """Follow a chat through the tree, starting from the longest cached walk that is its prefix."""
        before = Walk((), tools)
        for other in self._walks:
            size = len(other.messages)
            # Tool results after the last message may be sorted before it; an assistant message may not.
            ends = size == len(messages) or (size < len(messages) and messages[size].role == "assistant")
            if ends and size > len(before.messages) and (messages[:size], tools) == (other.messages, other.tools):
                before = other
        walk = Walk(messages, tools, before.state, before.parent, before.start)
        walk.chat, walk.matches, walk.searched = before.chat.copy(), before.matches.copy(), before.searched.copy()
        order: dict[str, int] = {}
        for message in ordered(messages[len(before.messages) :]):
            candidates: Sequence[CallNode] = ()
            if message.role == "assistant":
                order = {call.id: i for i, call in enumerate(message.calls)}
                candidates = self._answers.get(walk.state, ())
                walk.searched.add(walk.state)
            found, how = match(message, candidates, tools)
            walk.chat.append((message, found))
            if message.role == "assistant":
                walk.matches[how] += 1
            if found is None:
                name = order.get(message.call_id, message.call_id)
                walk.state = digest(normal(message, name), walk.state)
            else:
                # Hash the answer's number, not its text, since siblings may be equal.
                walk.state = hashlib.blake2b(found.state + b"answer %d" % found.number, digest_size=16).digest()
                walk.parent, walk.start = found, len(walk.chat)
        self._walks = [walk, *(other for other in self._walks if other is not before)][:_WALKS]
        return walk

    def node(self, position: Position, answer: ModelAnswer, **tokens: Any) -> CallNode:
        """Create the next node with the answer to a request."""
        parent = position.parent.number if position.parent else None
        more = {"matches": position.matches, **tokens}
        return CallNode(len(self.nodes), parent, position.context, position.state, position.tools, answer, **more)

    def append(self, node: CallNode, tools: Sequence[Mapping[str, Any]] | None) -> None:
        """Append a node.

        Args:
            tools: tools of its request; None if an earlier node had the same.
        """
        if tools is not None:
            self.tools.setdefault(node.tools, tuple(tools))
        self._walks = [walk for walk in self._walks if node.state not in walk.searched]
        self.nodes.append(node)
        self.matches.update(node.matches)
        self._answers.setdefault(node.state, []).append(node)
        self._named |= dict.fromkeys((node.answer.id, *(call.id for call in node.answer.calls)), node)

    def path(self, node: CallNode) -> list[CallNode]:
        """Return the nodes from the root to this one."""
        path = [node]
        while path[-1].parent is not None:
            path.append(self.nodes[path[-1].parent])
        return path[::-1]

    def chat(self, node: CallNode) -> list[tuple[Message, CallNode | None]]:
        """Return all messages before a node's answer, each with its node if it is an answer."""
        chat: list[tuple[Message, CallNode | None]] = []
        for each in self.path(node):
            chat += [(message, None) for message in each.context]
            if each is not node:
                chat.append((each.answer.message, each))
        return chat

    def after(self, node: CallNode, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return messages that refer to a node's answer after its chat; of two system prompts, theirs.

        Some clients send the whole chat too: messages that begin as it does and have answers of their own stay alone.
        An answer that is sent again is not doubled.
        """
        before = [*(message for message, _ in self.chat(node)), node.answer.message]
        chat = list(itertools.dropwhile(lambda message: message.role == "system", before))
        system = list(itertools.takewhile(lambda message: message.role == "system", messages))
        new = messages[len(system) :]
        if any(message.role == "assistant" for message in new[1:]) and normal(new[0]) == normal(chat[0]):
            return tuple(messages)
        if new and new[0].role == "assistant" and match(new[0], [node])[0]:
            new = new[1:]
        return (*system, *chat, *new) if system else (*before, *new)

    def images(self, node: CallNode) -> tuple[Picture, ...]:
        """Return the pictures of a prompt, each once."""
        shown = (image for message, _ in self.chat(node) for image in message.images)
        return tuple(dict.fromkeys(image for image in shown if isinstance(image, Picture)))

    def prompt_ids(self, node: CallNode) -> Ids:
        """Return all prompt tokens of an answer."""
        return tuple(itertools.chain.from_iterable(reversed(self._parts(node))))

    def length(self, node: CallNode) -> int:
        """Return the number of tokens of a prompt and its answer."""
        return sum(map(len, self._parts(node))) + len(node.response_ids)

    def _parts(self, node: CallNode) -> list[Ids]:
        run = [node.tail]
        while node.continues:
            assert node.parent is not None
            node = self.nodes[node.parent]
            run += [node.response_ids, node.tail]
        return run

    def find_node(self, name: str) -> CallNode | None:
        """Return the node with the answer or call of this id."""
        return self._named.get(name)


def match(message: Message, candidates: Sequence[CallNode], tools: bytes = b"") -> tuple[CallNode | None, str]:
    """Match an assistant's message to an answer to the same chat.

    The id of a call decides, also inside the text (smolagents), since ids are random. Of equal answers without
    distinguishing ids, the latest is chosen, preferably with the same tools.
    """
    ids = {call.id for call in message.calls} - {""}
    best: tuple[tuple[bool, int, bool, int], CallNode, str] | None = None
    for node in candidates:
        named = any(call.id in ids or call.id in message.text for call in node.answer.calls)
        how = _likeness(message, node.answer.message) or ("by_id" if named else "")
        if how:
            rank = (not named, MATCHES.index(how), node.tools != tools, -node.number)
            if best is None or rank < best[0]:
                best = rank, node, how
    return (None, UNKNOWN) if best is None else best[1:]


def _likeness(message: Message, answer: Message) -> str:
    """Return the kind of match of a message and an answer, without ids of calls; empty if they differ."""
    if message.text.strip() != answer.text.strip() or len(message.calls) != len(answer.calls):
        return ""
    if not all(map(_same_call, message.calls, answer.calls)):
        return ""
    if message.reasoning.strip() not in ("", answer.reasoning.strip()):
        return ""
    if message.text != answer.text:
        return "trimmed"
    return "exact" if message.reasoning == answer.reasoning else "reasoning_lost"


def _same_call(a: FunctionCall, b: FunctionCall) -> bool:
    same = a.name == b.name and a.namespace == b.namespace
    return same and (a.arguments == b.arguments or canonical(a.arguments) == canonical(b.arguments))


def ordered(messages: Iterable[Message]) -> list[Message]:
    """Sort tool results in the order of their calls; a client may send them in any order."""
    order: dict[str, int] = {}
    result: list[Message] = []
    run: list[Message] = []
    for message in (*messages, None):
        if message is not None and message.role == "tool":
            run.append(message)
            continue
        result += sorted(run, key=lambda m: order.get(m.call_id, len(order)))
        run = []
        if message is not None:
            result.append(message)
            if message.role == "assistant":
                order = {call.id: i for i, call in enumerate(message.calls)}
    return result


def normal(message: Message, name: str | int = "") -> list[Any]:
    """Return the normal form of a message for comparison, without reasoning and ids of calls.

    Args:
        name: the call that it answers: its index in the message before, or an unknown id.
    """
    calls = [[call.name, call.namespace, canonical(call.arguments)] for call in message.calls]
    return [message.role, message.text, calls, name, [*map(image_json, message.images)]]


def digest(value: Any, before: bytes = b"") -> bytes:
    """Hash plain data, chained to the hash of the data before."""
    return hashlib.blake2b(before + _ENCODER.encode(value).encode(), digest_size=16).digest()


# -- kinds of nodes ----------------------------------------------------------------------------------------------------


def kinds(tree: CallTree) -> list[Kind]:
    """Classify each node.

    Lines begin at nodes without a parent. A line that contains the long answer of an earlier call without tools is the
    same line after a compaction, and that call is its summary. A line that begins with the same messages as an earlier
    one is that one with an edited history. Of the others, the first with tools is the main line (without any tools in
    the session, the longest); later ones with tools (or any, then) are sub-agents, those without are asides. So are
    those with tools of their own that no other line asks or hears, such as a manager of memories.
    """
    nodes = tree.nodes

    # Which line each root belongs to: its own, or an earlier one that it continues.
    root = [0] * len(nodes)
    for node in nodes:
        root[node.number] = node.number if node.parent is None else root[node.parent]
    roots = [node for node in nodes if node.parent is None]
    summaries: set[int] = set()
    first: dict[bytes, int] = {}
    """The first root with each beginning."""
    line: dict[int, int] = {}
    """The root of the line that each root belongs to."""
    for later in roots:
        begins, line[later.number] = _beginning(later), later.number
        same = first.setdefault(begins, later.number) if begins else later.number
        if summary := _summary_in(later, nodes):
            summaries.add(summary.number)
            line[later.number] = _line_of(summary, nodes, root, line)
        else:
            line[later.number] = line[same]

    # Which line is the main one, and which others work: they have its tools, or speak with other lines.
    any_tools = any(node.has_tools for node in nodes)
    sizes = Counter(line[root[node.number]] for node in nodes if not any_tools or node.has_tools)
    heads = [r.number for r in roots if line[r.number] == r.number and sizes[r.number]]
    main = next(iter(heads), None)
    if not any_tools:
        main = max(heads, key=lambda r: (sizes[r], -r), default=None)
    lines = [line[root[node.number]] for node in nodes]
    works = {h for h in heads if not any_tools or nodes[h].tools == nodes[main or 0].tools} | {main}
    works |= {h for h in set(heads) - works if _works_for_others(h, nodes, lines)}

    # What each node is: first by what became of it, then by its line.
    children = Counter(node.parent for node in nodes)
    result: list[Kind] = []
    for node in nodes:
        head = line[root[node.number]]
        if not node.delivered and not children[node.number]:
            result.append("cancelled")
        elif node.number in summaries or _leaves_tools(node, nodes):
            result.append("compaction")
        elif not children[node.number] and _is_superseded(node, nodes):
            result.append("superseded")
        elif head == main:
            result.append("main")
        else:
            result.append("subagent" if sizes[head] and head in works else "aside")
    return result


def _works_for_others(head: int, nodes: Sequence[CallNode], heads: Sequence[int]) -> bool:
    """Return whether a line (its nodes' ``heads`` are equal to ``head``) is asked by another line, or answers it."""
    own = [node for node in nodes if heads[node.number] == head]
    others = [node for node in nodes if heads[node.number] != head]
    asked = {message.text.strip() for node in own if node.parent is None for message in node.context} - {""}
    known = {call.id for node in others for call in node.answer.calls}
    if any(message.call_id in known for node in own for message in node.context):
        return True
    for node in others:
        if node.number < own[0].number and any(_asks(call, asked) for call in node.answer.calls):
            return True
    said = {node.answer.text.strip() for node in own} - {""}
    heard = [message.text for node in others if node.number > own[0].number for message in node.context]
    return any(_is_part(text, other.strip()) for text in said for other in heard)


def _is_part(a: str, b: str) -> bool:
    """Return whether two texts are equal or, if the shorter one is long, it is in the other."""
    short, long = sorted((a, b), key=len)
    return bool(short) and (a == b or (len(short) >= _LONG and short in long))


def _asks(call: FunctionCall, asked: Iterable[str]) -> bool:
    """Return whether an argument of a call is one of these texts or, if one is long, part of the other."""
    try:
        level = [json.loads(call.arguments)]
    except (ValueError, RecursionError):
        level = [call.arguments]
    for value in level:  # grows
        if isinstance(value, dict | list):
            level += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str) and any(_is_part(value.strip(), text) for text in asked):
            return True
    return False


def _summary_in(root: CallNode, nodes: Sequence[CallNode]) -> CallNode | None:
    """Return the latest recent answer without calls whose long text is in a root's messages."""
    texts = [message.text for message in root.context]
    for node in reversed(nodes[max(0, root.number - _RECENT) : root.number]):
        text = node.answer.text.strip()
        if len(text) >= _LONG and not node.answer.calls and any(text in other for other in texts):
            return node
    return None


def _line_of(summary: CallNode, nodes: Sequence[CallNode], root: list[int], line: dict[int, int]) -> int:
    """Return a summary's line: its own or, for a line of one call, the last one with tools before it."""
    own = line[root[summary.number]]
    if summary.parent is not None:
        return own
    before = [line[root[node.number]] for node in nodes[: summary.number] if node.has_tools]
    return before[-1] if before else own


def _beginning(root: CallNode) -> bytes:
    """Hash a root's messages up to the first user message, and its tools; empty without a user message."""
    users = [i for i, message in enumerate(root.context) if message.role == "user"]
    return digest([normal(message) for message in root.context[: users[0] + 1]], root.tools) if users else b""


def _leaves_tools(node: CallNode, nodes: Sequence[CallNode]) -> bool:
    """Return whether a call has no tools but continues one with tools, as requests for summaries do."""
    return node.parent is not None and not node.has_tools and nodes[node.parent].has_tools


def _is_superseded(leaf: CallNode, nodes: Sequence[CallNode]) -> bool:
    """Return whether the same request was repeated after the answer, and the later answer was delivered."""
    return any(
        other.state == leaf.state and other.tools == leaf.tools and other.delivered and other.began >= leaf.ended
        for other in nodes[leaf.number + 1 :]
    )


def in_lines(tree: CallTree) -> list[CallNode]:
    """Return all nodes line by line: each node directly after the one whose tokens it continues, depth first."""
    following: dict[int | None, list[CallNode]] = {}
    for node in tree.nodes:
        following.setdefault(node.parent if node.continues else None, []).append(node)
    order: list[CallNode] = []
    stack = following.get(None, [])[::-1]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += following.get(node.number, [])[::-1]
    return order
