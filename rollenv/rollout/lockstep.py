"""Episodes that advance together, turn by turn, without a future, a task or a deadline for every turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from rollenv.agents.base import Action
from rollenv.agents.engines.base import Ids, Response
from rollenv.rollout import validation
from rollenv.rollout.types import Turn
from rollenv.rollout.workers.base import EnvResult, HostedEnv, InlineEnv

if TYPE_CHECKING:
    from rollenv.agents.engines.local import LocalEngine
    from rollenv.agents.prompts.session import TokenSession
    from rollenv.rollout.episode import Episode

#: The token sampled for a row and its log-probability; None if the engine failed.
SampledToken = tuple[int, float] | None


@dataclass(slots=True, eq=False)
class Node:
    """The state of an episode after some answers; members of a group with the same answers share it."""

    result: EnvResult
    session: TokenSession
    """The agent's session before this turn's prompt was built."""
    env: HostedEnv | None
    """The environment in this state; None once a child has taken it over."""
    parent: Node | None = None
    action: Action | None = None
    """The action that led to this state."""
    session_after: TokenSession | None = None
    """The agent's session after the prompt was built."""
    prompt: Ids = ()
    children: dict[int, Node] = field(default_factory=dict)
    """Child nodes by sampled token."""

    def ask(self) -> None:
        """Build the prompt, once."""
        if self.session_after is None:
            session = self.session.fork()
            self.prompt = session.ask(self.result.observation, self.result.info)
            self.session_after = session

    def path(self) -> list[Node]:
        """The nodes from the root, exclusive, to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def turn(self, logprob: float, version: int) -> Turn:
        """Build the turn that led to this state, sampled with the given version of the weights."""
        before, after, action = self.parent, self.result, self.action
        assert before is not None
        assert action is not None
        return Turn(
            prompt_ids=before.prompt,
            response_ids=action.response_ids,
            logprobs=(logprob,),
            reward=after.reward,
            text=action.text,
            observation=before.result.observation,
            state_key=before.result.state_key,
            policy_version=version,
            finish=action.finish,
            view=before.result.view,
            raw=action.raw,
            valid=after.info.get("valid") is not False,
        )


@dataclass(slots=True, eq=False)
class Tree:
    """The episodes of one task, or a single episode if its environment cannot be copied."""

    root: Node
    shared: bool
    users: int = 0
    copies: dict[HostedEnv, None] = field(default_factory=dict)
    """The environments to close."""

    def env_at(self, node: Node, *, last: bool) -> HostedEnv:
        """Return an environment in the state of a node.

        Args:
            last: the node may lose its own environment; if one is needed again, it is rebuilt from the root.
        """
        env = node.env
        if env is not None and (not self.shared or (last and node is not self.root)):
            node.env = None
            return env
        if env is not None:
            copy = env.twin()
            self.copies[copy] = None
        else:
            copy = self.env_at(self.root, last=False)
            for step in node.path():
                assert step.action is not None
                copy.step(step.action.text)
        return copy

    def lend(self, episode: Episode, env: HostedEnv | RaisingEnv) -> None:
        """Hand an environment over to an episode, which closes it."""
        assert isinstance(episode.env, InlineEnv)
        episode.env.hosted = cast(HostedEnv, env)
        own = env.env if isinstance(env, RaisingEnv) else env
        if own is not None:
            self.copies.pop(own, None)

    def close(self, env: HostedEnv) -> None:
        """Close an environment if the tree made it."""
        if env in self.copies:
            del self.copies[env]
            env.close()

    def leave(self) -> None:
        """Remove one episode; the last one closes all environments."""
        self.users -= 1
        if not self.users:
            for env in list(self.copies):
                self.close(env)


class RaisingEnv:
    """Stands in for an environment whose call raised: the episode's own call raises the same error."""

    def __init__(self, error: BaseException, env: HostedEnv | None):
        self.error, self.env = error, env

    def step(self, action: str) -> EnvResult:
        raise self.error

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


@dataclass(slots=True, eq=False)
class Row:
    """An episode with its position in a tree."""

    episode: Episode
    session: TokenSession
    tree: Tree
    node: Node
    outcome: asyncio.Future[tuple[EnvResult, Action | None]]


class LockStep:
    """Advances all episodes turn by turn, where environments are in this process and an answer is one token.

    A turn is one call of the engine for all episodes. An episode is a function of its task and its actions, so members
    of a group with the same answers so far are in the same state: their step, prompt and action are computed once.
    (Environments that cannot be copied or are not deterministic are not shared.) Meanwhile
    :class:`~rollenv.rollout.episode.Episode` waits. In any unusual case (an environment that raises, a full context, an
    engine that is suspended or fails) it continues by itself from the same point, so trajectories are the same as
    without lock-step.
    """

    def __init__(self) -> None:
        self._waiting: dict[Row, None] = {}
        self._trees: dict[int, Tree] = {}
        self._scheduled_in: asyncio.AbstractEventLoop | None = None

    async def play(self, episode: Episode, session: Any, result: EnvResult) -> tuple[EnvResult, Action | None]:
        """Play an episode until it ends or something unusual happens.

        Returns:
            The environment's last result, and the next action if the agent has already given it.
        """
        env = episode.env
        if type(env) is not InlineEnv or getattr(session, "at_once", False) is not True:
            return result, None
        if result.terminated or result.truncated:
            return result, None
        original = env.original
        shared = original.shared and not original.env_spec.nondeterministic
        key = id(original) if shared else id(env)
        tree = self._trees.get(key)
        if tree is None:
            first = original.started[0] if shared and original.started else env.hosted
            tree = self._trees[key] = Tree(Node(result, session.fork(), first), shared)
        tree.users += 1
        row = Row(episode, session, tree, tree.root, asyncio.get_running_loop().create_future())
        self._waiting[row] = None
        episode.enter("agent")
        self._wake()
        try:
            return await row.outcome
        finally:
            self._waiting.pop(row, None)
            tree.leave()
            if not tree.users:
                self._trees.pop(key, None)

    def _wake(self) -> None:
        """Schedule a turn on the event loop, once."""
        loop = asyncio.get_running_loop()
        if self._scheduled_in is not loop:
            self._scheduled_in = loop
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled_in = None
        rows, self._waiting = [row for row in self._waiting if not row.outcome.done()], {}
        try:
            engine: Any = rows[0].session.engine if rows else None
            ready = [row for row in rows if self._can_answer(row, engine)]
            batches = engine.one_token_batches(ready, lambda row: len(row.node.prompt)) if ready else []
            for batch in batches:
                self._answer(engine, batch)
        except BaseException as error:  # no episode may wait for ever
            for row in rows:
                _raise(row, error)
            return
        going = [row for batch in batches for row in batch if not row.outcome.done()]
        if going:
            asyncio.get_running_loop().call_soon(self._again, going)

    def _again(self, rows: list[Row]) -> None:
        """Continue rows one iteration of the event loop later, as without lock-step, so that races end the same."""
        self._waiting.update((row, None) for row in rows if not row.outcome.done())
        if self._waiting:
            self._wake()

    def _can_answer(self, row: Row, engine: LocalEngine) -> bool:
        """Return whether a row can be answered now; if not, its episode continues by itself."""
        try:
            row.node.ask()
        except Exception:  # such as a full context: the session will raise it again
            self._leave(row)
            return False
        if row.session.engine is engine and row.node.prompt and not engine.suspended:
            return True
        self._leave(row)
        return False

    def _answer(self, engine: LocalEngine, rows: list[Row]) -> None:
        """Take a turn with rows whose prompts form one batch of the engine."""
        clock = rows[0].episode.clock
        began = clock()
        number: dict[Node, int] = {}
        numbers = [number.setdefault(row.node, len(number)) for row in rows]
        sessions = [row.session for row in rows]
        try:
            sampled = engine.answer_now(
                [node.prompt for node in number], numbers, [s.sampling for s in sessions], [s.rng for s in sessions]
            )
        except Exception:  # the episodes' own requests show whether the failure persists
            sampled = [None] * len(rows)
        answered = clock()
        new: dict[Node, dict[int, tuple[Row, float]]] = {}  # the children to build, each once
        for row, answer in zip(rows, sampled, strict=True):
            if answer is not None and answer[0] not in row.node.children:
                new.setdefault(row.node, {}).setdefault(answer[0], (row, answer[1]))
        for answers in new.values():
            for token, (row, logprob) in answers.items():
                self._child(row, (token, logprob), engine, last=token == next(reversed(answers)))
        stepped: Counter[str] = Counter()
        for row, answer in zip(rows, sampled, strict=True):
            row.episode.trajectory.agent_seconds += answered - began
            if self._advance(row, answer, engine):
                stepped[row.episode.env_id] += 1
        each = (clock() - answered) / len(rows)
        for row in {row.episode.env_id: row for row in rows}.values():
            for record in row.episode.records if stepped[row.episode.env_id] else ():
                record.ok("step", each, stepped[row.episode.env_id])

    def _advance(self, row: Row, answer: SampledToken, engine: LocalEngine) -> bool:
        """Apply the answer to a row; return false if its episode continues by itself."""
        if row.outcome.done():
            return False
        if answer is None:
            self._leave(row)
            return False
        child = row.node.children.get(answer[0]) or self._child(row, answer, engine, last=False)
        if child is None:
            return False
        row.node = child
        row.episode.trajectory.turns.append(child.turn(answer[1], engine.version))
        if child.result.terminated or child.result.truncated:
            row.outcome.set_result((child.result, None))
        return True

    def _child(self, row: Row, answer: tuple[int, float], engine: LocalEngine, *, last: bool) -> Node | None:
        """Build the node behind an answer; return None if that failed and the episode continues by itself."""
        node, episode = row.node, row.episode
        assert node.session_after is not None
        session, (token, logprob) = node.session_after.fork(), answer
        response = Response([token], [logprob], [engine.version], engine.finish([token], row.session.sampling))
        try:
            action = session.take(node.result.observation, node.prompt, response)
            validation.text(action.text, "an action's text")
        except Exception as error:
            _raise(row, episode.classify_agent_error("act()", error))
            return None
        env: HostedEnv | None = None
        episode.enter("step")
        try:
            env = row.tree.env_at(node, last=last)
            result = env.step(action.text)
        except BaseException as error:
            row.tree.lend(episode, RaisingEnv(error, env))
            self._hand_over(row, session, action)
            return None
        episode.enter("agent")
        child = node.children[token] = Node(result, session, env, node, action)
        if result.terminated or result.truncated:
            row.tree.close(env)
            if row.tree.shared:
                child.env = None
        return child

    def _leave(self, row: Row) -> None:
        """Let the episode call its agent by itself, with an environment of its own."""
        try:
            env: HostedEnv | RaisingEnv = row.tree.env_at(row.node, last=False)
        except BaseException as error:
            env = RaisingEnv(error, None)
        row.tree.lend(row.episode, env)
        self._hand_over(row, row.node.session)

    def _hand_over(self, row: Row, session: TokenSession, action: Action | None = None) -> None:
        """Let the episode continue by itself from the row's position."""
        node, episode = row.node, row.episode
        row.session.become(session)
        episode.log.calls += [
            ("step", (after.action.text,), after.result.fingerprint) for after in node.path() if after.action
        ]
        result = replace(node.result, info=dict(node.result.info))
        row.outcome.set_result((result, action))


def _raise(row: Row, error: BaseException) -> None:
    """Raise an error in the row's episode."""
    if not row.outcome.done():
        row.outcome.set_exception(error)
