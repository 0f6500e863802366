"""What the members of a group have in common: a tree whose branches are the answers that they gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from rollenv.agents.base import Action
from rollenv.agents.engines.base import Ids
from rollenv.rollout.types import Turn
from rollenv.rollout.workers.base import EnvResult, HostedEnv, InlineEnv

if TYPE_CHECKING:
    from rollenv.agents.prompts.session import TokenSession
    from rollenv.rollout.episode import Episode


@dataclass(slots=True, eq=False)
class Node:
    """Where an episode is after some answers; members of a group that gave the same ones share it."""

    seen: EnvResult
    session: TokenSession
    """The agent's, before it was asked for this turn's prompt."""
    env: HostedEnv | None
    """In this state; None once it has gone on to a child."""
    parent: Node | None = None
    action: Action | None = None
    """What led here."""
    asked: TokenSession | None = None
    """The agent's session after it was asked."""
    prompt: Ids = ()
    children: dict[int, Node] = field(default_factory=dict)
    """By the token that was drawn."""

    def ask(self) -> None:
        """Make the prompt, once."""
        if self.asked is None:
            session = self.session.fork()
            self.prompt = session.ask(self.seen.observation, self.seen.info)
            self.asked = session

    def path(self) -> list[Node]:
        """The nodes from behind the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def turn(self, logprob: float, version: int) -> Turn:
        """The turn that led here.

        Args:
            logprob: of the token.
            version: of the weights that drew it.
        """
        before, after, action = self.parent, self.seen, self.action
        assert before is not None
        assert action is not None
        return Turn(
            before.prompt,
            action.response_ids,
            (logprob,),
            after.reward,
            action.text,
            before.seen.observation,
            before.seen.state_key,
            version,
            (),
            action.finish,
            before.seen.view,
            action.raw,
            (),
            after.info.get("valid") is not False,
        )


@dataclass(slots=True, eq=False)
class Tree:
    """The episodes of one task, or a single one where its environment cannot be copied."""

    root: Node
    shared: bool
    users: int = 0
    copies: dict[HostedEnv, None] = field(default_factory=dict)
    """The environments to close."""

    def env_at(self, node: Node, *, last: bool) -> HostedEnv:
        """An environment in the state of a node.

        Args:
            last: the node may be left without one. If it is needed again, it is made again from the start.

        Raises:
            EnvFailure: it cannot be copied.
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

    def lend(self, episode: Episode, env: HostedEnv | Failing) -> None:
        """Give an environment to an episode, which closes it."""
        assert isinstance(episode.env, InlineEnv)
        episode.env.hosted = cast(HostedEnv, env)
        own = env.env if isinstance(env, Failing) else env
        if own is not None:
            self.copies.pop(own, None)

    def close(self, env: HostedEnv) -> None:
        """Close an environment if it is one of the tree's own."""
        if env in self.copies:
            del self.copies[env]
            env.close()

    def leave(self) -> None:
        """One episode less; with the last one everything is closed."""
        self.users -= 1
        if not self.users:
            for env in list(self.copies):
                self.close(env)


class Failing:
    """Stands for an environment whose call raised: the episode meets the error in its own call."""

    def __init__(self, error: BaseException, env: HostedEnv | None):
        self.error, self.env = error, env

    def step(self, action: str) -> EnvResult:
        raise self.error

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
