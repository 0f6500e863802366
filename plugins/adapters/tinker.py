"""rollenv's environments in Tinker's cookbook (0.6): messages, groups and data sets for its trainers.

Pass a :class:`RollenvDatasetBuilder` as ``dataset_builder``. Messages to workers hold names only; environments
are made where they are played, and closed when their group is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.chat.agent import call_text
from rollenv.core.errors import UsageError
from rollenv.core.needs import peer
from rollenv.core.registry import spec
from rollenv.plugins.adapters import TextEpisode
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.types import Task

with peer("tinker-cookbook", "0.6"):
    import chz
    from tinker_cookbook.renderers import Message, get_renderer, get_text_content
    from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
    from tinker_cookbook.tokenizer_utils import get_tokenizer


class RollenvMessages(MessageEnv):  # type: ignore[misc]
    """An episode as a conversation: the environment is the user, who speaks first.

    Args:
        max_turns: maximum turns of the episode; None for the environment's own limit.
    """

    def __init__(self, task: Task, system: str = "", max_turns: int | None = None):
        self.task, self.max_turns = task, max_turns
        self._episode: TextEpisode | None = None
        self._begun: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages: list[Message] = []

    async def initial_observation(self) -> list[Message]:
        """Return the first observation. A running episode is abandoned."""
        self._messages = [*self._begun]
        return await self._add_user(await asyncio.to_thread(self._start))

    def _start(self) -> str:
        self.close()
        self._episode = TextEpisode(self.task.env_id, **self.task.kwargs)
        return self._episode.start(self.task.seed, self.task.options or None)

    async def step(self, message: Message) -> MessageStepResult:
        """Play an answer, with its tool calls in Hermes' form."""
        episode = self._episode
        if episode is None:
            raise UsageError("call initial_observation() before step()")
        self._messages.append(message)
        shown, reward = await asyncio.to_thread(episode.step, _text(message))
        full = self.max_turns is not None and episode.turns >= self.max_turns
        done = episode.over or full
        metrics = {"success": float(bool(episode.info.get("success"))), "turns": float(episode.turns)} if done else {}
        return MessageStepResult(reward, done, await self._add_user(shown), metrics)

    async def _add_user(self, shown: str) -> list[Message]:
        self._messages.append({"role": "user", "content": shown})
        return list(self._messages)

    def close(self) -> None:
        """Release the environment's resources."""
        if self._episode is not None:
            self._episode.close()


def _text(message: Message) -> str:
    """Return a reply's text without thoughts, and with the tool calls that the renderer took out."""
    calls = [call_text(call.function) for call in message.get("tool_calls") or ()]
    return "\n".join(part for part in (get_text_content(message), *calls) if part)


@dataclass
class RollenvGroupBuilder(EnvGroupBuilder):  # type: ignore[misc]
    """A group of episodes of one task.

    Attributes:
        task: the task of all episodes.
        group_size: number of episodes.
        model_name: model with the tokenizer.
        renderer_name: name of a renderer for Tinker's ``get_renderer``.
        max_trajectory_tokens: maximum tokens of an episode; None for no limit.
        max_turns: maximum turns of an episode; None for the environment's own limit.
        system: a system prompt, if any.
    """

    task: Task
    group_size: int
    model_name: str
    renderer_name: str
    max_trajectory_tokens: int | None = None
    max_turns: int | None = None
    system: str = ""
    _made: list[RollenvMessages] = field(default_factory=list, repr=False)

    async def make_envs(self) -> Sequence[Env]:
        """Make the group's environments, each for one episode."""
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name), model_name=self.model_name)
        made = [RollenvMessages(self.task, self.system, self.max_turns) for _ in range(self.group_size)]
        self._made += made
        return [EnvFromMessageEnv(renderer, each, max_trajectory_tokens=self.max_trajectory_tokens) for each in made]

    async def cleanup(self) -> None:
        """Close the group's environments."""
        made, self._made = self._made, []
        for each in made:
            await asyncio.to_thread(each.close)

    def logging_tags(self) -> list[str]:
        """The environment's id."""
        return [self.task.env_id]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": []}


class RollenvDataset(RLDataset):  # type: ignore[misc]
    """Batches of groups, one group for each task."""

    def __init__(self, groups: Sequence[RollenvGroupBuilder], batch_size: int):
        self.groups, self.batch_size = groups, batch_size

    def get_batch(self, index: int) -> Sequence[RollenvGroupBuilder]:
        """A batch of groups."""
        return self.groups[index * self.batch_size : (index + 1) * self.batch_size]

    def __len__(self) -> int:
        return -(-len(self.groups) // self.batch_size)


@chz.chz
class RollenvDatasetBuilder(RLDatasetBuilder):  # type: ignore[misc]
    """The data set for the cookbook's ``train.Config``."""

    env_id: str
    model_name: str
    renderer_name: str
    batch_size: int
    group_size: int
    n: int | None = None
    """Number of tasks; by default all of a data set, or 100 generated ones."""
    seed: int = 0
    """Seed of the first task; the others count up, and those of the test set after them."""
    n_test: int = 0
    kwargs: dict[str, Any] = chz.field(default_factory=dict)
    """Arguments of the environment's constructor."""
    test_kwargs: dict[str, Any] = chz.field(default_factory=dict)
    """Further arguments for the environments of the test set."""
    max_trajectory_tokens: int | None = None
    max_turns: int | None = None
    system: str = ""

    async def __call__(self) -> tuple[RollenvDataset, RollenvDataset | None]:
        """Build the training set, and a test set where ``n_test`` says how large.

        Raises:
            UsageError: the test set would have the training set's tasks.
        """
        train = tasks_of(self.env_id, self.kwargs, self.n, self.seed)
        if not self.n_test:
            return self._set(train, self.group_size), None
        if spec(self.env_id).indexed and not self.test_kwargs:
            raise UsageError(
                "a data set's test set needs test_kwargs, such as {'split': 'test'}: else it repeats tasks"
            )
        test = tasks_of(self.env_id, self.kwargs | self.test_kwargs, self.n_test, self.seed + len(train))
        return self._set(train, self.group_size), self._set(test, 1)

    def _set(self, tasks: Sequence[Task], size: int) -> RollenvDataset:
        names = ("model_name", "renderer_name", "max_trajectory_tokens", "max_turns", "system")
        same = {name: getattr(self, name) for name in names}
        return RollenvDataset([RollenvGroupBuilder(task, size, **same) for task in tasks], self.batch_size)
