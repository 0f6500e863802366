"""The sessions of a gateway, which it keeps in its record."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from rollenv.agents.engines.base import Sampling
from rollenv.agents.gateway.policy import PolicyModel
from rollenv.agents.gateway.record import CallRecord
from rollenv.agents.gateway.session import Caps, GatewaySession, Model, session_id
from rollenv.agents.gateway.tree import CallNode
from rollenv.core.errors import UsageError, reads

#: First session number, larger than those of episodes that the same engine plays.
_FIRST_NUMBER = 1 << 32
#: Maximum number of dropped sessions whose calls are still answered with 410.
_REMEMBERED = 100_000


class GatewaySessions:
    """Opens, finds and drops sessions; see :class:`~rollenv.agents.gateway.gateway.Gateway`."""

    def __init__(self, model: Any, *, url: str, record: str | Path | None, caps: Caps | None, seed: int):
        self.on_finish: Callable[[GatewaySession], None] = lambda session: None
        """Called with each session that is finished, and again with every reward that it gets later."""
        self.model: Model = model if hasattr(model, "draw") else PolicyModel(model)
        self._url, self.caps, self.seed = url.rstrip("/"), caps or Caps(), seed
        self.sessions: dict[str, GatewaySession] = {}
        """Sessions by id."""
        self.refused_keys = 0
        """Number of calls with an unknown key."""
        self.past_counts, self.past_matches, self.past_tokens = Counter[str](), Counter[str](), 0
        """Counts of dropped sessions."""
        self._ended: dict[str, None] = {}
        self._numbers = itertools.count(_FIRST_NUMBER)
        self._record = CallRecord(record) if record else None
        with reads(f"{record} is not the record of a gateway, or is damaged: name another file"):
            for event in self._record.events() if self._record else ():
                self._restore(event)

    @property
    def url(self) -> str:
        """Address for programs."""
        return self._url

    def open(
        self,
        task: str = "",
        *,
        seed: int | None = None,
        key: str = "",
        caps: Caps | None = None,
        sampling: Sampling | None = None,
    ) -> GatewaySession:
        """Open a session for one episode.

        Args:
            seed: seed of its sampling; by default derived from the gateway's and the number of sessions.
            key: a key of at least 128 bits; random by default.
            sampling: sampling settings; by default the model's own.
        """
        if key and (len(key) < 32 or not key.isascii() or not key.replace("-", "").replace("_", "").isalnum()):
            raise UsageError("a session's key has at least 32 letters and digits")
        number = next(self._numbers)
        seed = self.seed * 1_000_003 + number if seed is None else seed
        session = self._session(task, seed, number, key=key, caps=caps or self.caps, sampling=sampling, url=self.url)
        if session.id in self.sessions or session.id in self._ended:
            raise UsageError("there is a session with this key already")
        if self._record is not None:
            self._record.append({"event": "open", "session": session.id, "task": task, "seed": seed})
        self.sessions[session.id] = session
        return session

    def _session(self, task: str, seed: int, number: int, **settings: Any) -> GatewaySession:
        return GatewaySession(
            self.model,
            task=task,
            seed=seed,
            number=number,
            record=self._record,
            on_finish=lambda session: self.on_finish(session),
            **settings,
        )

    def find(self, key: str) -> GatewaySession | None:
        """Return the session with a key, or None."""
        return self.sessions.get(session_id(key))

    def was_open(self, key: str) -> bool:
        """Return whether a session with this key was dropped."""
        return session_id(key) in self._ended

    def forget(self, session: GatewaySession) -> None:
        """Finish a session and drop it from memory."""
        if not session.over:
            session.finish()
        if self.sessions.pop(session.id, None) is not None:
            self.past_counts.update(session.counts)
            self.past_matches.update(session.tree.matches)
            self.past_tokens += session.drawn_tokens
            self._remember(session.id)
            if self._record is not None:
                self._record.append({"event": "forget", "session": session.id})

    def _remember(self, ended: str) -> None:
        self._ended[ended] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.pop(next(iter(self._ended)))

    def _restore(self, event: dict[str, Any]) -> None:
        if event["event"] == "open":
            session = self._session(event["task"], event["seed"], next(self._numbers), caps=self.caps)
            session.id = event["session"]
            session.key = ""  # only the client knows it
            self.sessions[session.id] = session
        elif event["event"] == "forget":
            self.sessions.pop(event["session"], None)
            self._remember(event["session"])
        elif event["session"] in self.sessions:
            self.sessions[event["session"]].restore(event)


def recorded_sessions(events: Iterable[Mapping[str, Any]], where: str) -> list[GatewaySession]:
    """Restore all sessions of a record for reading, also those that its gateway has dropped.

    Args:
        events: lines of the record, of a gateway that may still run.
        where: name of the record, for errors.

    Raises:
        UsageError: it is not the record of a gateway.
    """
    sessions: dict[str, GatewaySession] = {}
    with reads(f"{where} is not the record of a gateway, or is damaged"):
        for event in events:
            if event["event"] == "open":
                opened = GatewaySession(cast(Model, None), task=event["task"], seed=event["seed"])
                opened.id, opened.key = event["session"], ""
                sessions[opened.id] = opened
            elif event["event"] != "forget":
                sessions[event["session"]].restore(event)
    return list(sessions.values())


def session_of(record: Mapping[str, Any]) -> GatewaySession:
    """Restore a session from :meth:`GatewaySession.to_dict` for reading, also one that was stored without tokens."""
    session = GatewaySession(cast(Model, None), task=record["task"])
    for node in record["nodes"]:
        lacking: dict[str, Any] = dict.fromkeys(("tail", "response_ids", "logprobs", "versions"), ())
        lacking["state"] = f"{node['number']:032x}"  # no two calls ask the same
        known = {name: value for name, value in node.items() if name in CallNode.__slots__}
        tools = record.get("tools", {}).get(node["tools"], ())
        session.tree.append(CallNode.from_dict({**lacking, **known}), tools)
    return session
