"""Batches of given episodes instead of played ones: an expert's, stored ones, or rows of files; each once per epoch."""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollenv.agents.demonstrator import Demonstrator, given_answer
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.imitated import imitated_answers
from rollenv.core.errors import UsageError
from rollenv.envs.data.own import is_data
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records import storage
from rollenv.rollout.records.stored import stored_episodes
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.batches import Batches
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.algorithms import Kto, Preference
from rollenv.trainers.config.run import StoredConfig
from rollenv.trainers.sources.base import TaskSource, task_seed
from rollenv.trainers.sources.given_rows import GivenRow, read_given_rows

logger = logging.getLogger(__name__)

#: The value of ``batches.data`` for the environment's own expert.
ORACLE = "oracle"

#: Episodes that an expert plays at a time, between two reports of progress.
_CHUNK = 64

Report = Callable[[str, int, int, dict[str, float]], None]


class StoredBatches(Batches):
    """Yields ``batches.size`` groups at a time, in an order that depends only on the seed and the number of the batch.

    Args:
        agent: the model to train, with its tokenizer and prompts.
        folder: where an expert's episodes are kept, for a resumed run.
        begin: the number of batches that were trained on before.
    """

    def __init__(
        self,
        manager: RolloutManager,
        source: TaskSource,
        config: TrainConfig,
        agent: LocalAgent,
        folder: Path,
        begin: int,
        report: Report,
    ):
        super().__init__(manager, source, config)
        assert isinstance(config.batches, StoredConfig)
        self.settings, self.seed, self.number = config.batches, config.seed, begin
        self._shuffled, self._order = -1, list[int]()
        compared = config.algorithm if isinstance(config.algorithm, Preference) else None
        if config.batches.data == [ORACLE]:
            file = folder / "demonstrations.jsonl"
            _demonstrate(self, agent, file, report)
            found = [*_episodes(file, config.batches.where, agent, compared)]
        else:
            found = []
            for path in map(Path, config.batches.data):
                if is_data(str(path)) and not _has_episodes(path):
                    if config.batches.where:
                        raise UsageError(f"batches.where chooses among stored episodes; {path} has rows of texts")
                    found += _groups_of_rows([*read_given_rows(path)], agent, compared, report)
                else:
                    found += _episodes(path, config.batches.where, agent, compared)
        found = _within(agent.engine.max_context, found, self.settings)
        self.held_out = [group for group in found if _is_held_out(group, self.settings.held_out)]
        self.groups = [group for group in found if not _is_held_out(group, self.settings.held_out)]
        if not self.groups:
            raise UsageError(
                f"{', '.join(config.batches.data)} has nothing to train on"
                + (f": all {len(found)} rows are held out; lower batches.held_out" if found else "")
            )

    @property
    def updates(self) -> int:
        """Number of batches in ``batches.epochs`` epochs; 0 if it is not set."""
        return math.ceil(len(self.groups) * self.settings.epochs / self.settings.size)

    def _next(self, metrics: dict[str, float]) -> list[Group]:
        first, count = self.number * self.settings.size, len(self.groups)
        self.number += 1
        metrics["epoch"] = (first + self.settings.size) / count
        metrics["rows"] = float(self.settings.size)
        return [self.groups[self._place(i)] for i in range(first, first + self.settings.size)]

    def _place(self, index: int) -> int:
        """Return the row at a place of the endless sequence of epochs, each in an order of its own."""
        epoch, place = divmod(index, len(self.groups))
        if self._shuffled != epoch:
            self._shuffled, self._order = epoch, [*range(len(self.groups))]
            random.Random(task_seed(self.seed, "epoch", epoch)).shuffle(self._order)
        return self._order[place]

    def _record_in_source(self, groups: Iterable[Group]) -> None:
        """Leave the task source as it is: nothing was played."""


# -- an expert ---------------------------------------------------------------------------------------------------------


def _demonstrate(batches: StoredBatches, agent: LocalAgent, file: Path, report: Report) -> None:
    """Play the expert's episodes and keep them in a file, unless an earlier process has."""
    if file.exists():
        return
    wanted, partial = batches.settings.episodes, file.with_suffix(".partial.jsonl")
    partial.unlink(missing_ok=True)
    manager = batches.manager.with_agent(Demonstrator(agent, batches.settings.noise))
    done, failed = 0, 0
    with storage.JsonlWriter(partial) as out:
        while done < wanted:
            for group in manager.batch(batches.tasks, min(_CHUNK, wanted - done)):
                for trajectory in group:
                    failed += not trajectory.complete
                    out.write(trajectory)
                done += 1
            report("demonstrations", done, wanted, {})
            if failed == done:
                why = next(t.error for t in stored_episodes(partial))
                raise UsageError(f"the expert finished none of {done} episodes: {why}")
    partial.replace(file)


# -- stored episodes ---------------------------------------------------------------------------------------------------


def _has_episodes(path: Path) -> bool:
    """Return whether a file or folder holds trajectories, not rows of texts."""
    if path.is_dir():
        return any(path.glob("**/episodes.jsonl"))
    if path.suffix not in (".jsonl", ".parquet"):
        return False
    try:
        return next(stored_episodes(path), None) is not None
    except Exception:  # of any reader: its rows then say what is wrong
        return False


def _episodes(path: Path, where: str, agent: LocalAgent, compared: Preference | None) -> Iterator[Group]:
    """Yield stored episodes: each by itself to imitate, those of one task together to compare."""
    left_out = 0
    tasks: dict[str, Group] = {}
    for trajectory in stored_episodes(path, where):
        trajectory = _with_tokens(trajectory, agent)
        if not trajectory.complete or not trajectory.turns or not all(turn.prompt_ids for turn in trajectory.turns):
            left_out += 1
        elif compared:
            tasks.setdefault(repr(trajectory.task), Group(trajectory.task, [])).trajectories.append(trajectory)
        else:
            skipped = {*trajectory.record.get("random_turns", ())}
            turns = [replace(turn, reward=1.0) for n, turn in enumerate(trajectory.turns) if n not in skipped]
            if turns:
                yield Group(trajectory.task, [replace(trajectory, turns=turns)])
    if left_out:
        logger.warning("%s: %d episodes are left out: they failed, or their tokens were not kept", path, left_out)
    yield from (group for group in tasks.values() if len(group.trajectories) > 1)


def _with_tokens(trajectory: Trajectory, agent: LocalAgent) -> Trajectory:
    """Return an episode of an endpoint, which has messages, with the tokens that the model would have read."""
    if not trajectory.turns or not all(turn.messages for turn in trajectory.turns):
        return trajectory
    chat: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        chat += [*turn.messages, {"role": "assistant", "content": turn.raw or turn.text}]
    said = imitated_answers(_format(agent), chat)
    turns = [_turn(t, *ids) for t, ids in zip(trajectory.turns, said, strict=True)]
    return replace(trajectory, turns=turns)


# -- rows --------------------------------------------------------------------------------------------------------------


def _groups_of_rows(
    examples: list[GivenRow], agent: LocalAgent, compared: Preference | None, report: Report
) -> list[Group]:
    wanted = "label" if isinstance(compared, Kto) else "pair"
    groups = []
    for number, example in enumerate(examples):
        if compared and example.kind != wanted:
            columns = "prompt, completion and label" if wanted == "label" else "chosen and rejected"
            raise UsageError(f"{example.where}: learning from preferences needs the columns {columns} here")
        try:
            groups += _group_of(example, agent, number, compared is not None)
        except UsageError as error:
            raise UsageError(f"{example.where}: {error}") from error
        if number % 100 == 99:
            report("reading", number + 1, len(examples), {})
    if isinstance(compared, Kto) and len({group.trajectories[0].success for group in groups}) < 2:
        raise UsageError("all labels are equal: KTO needs good and bad answers")
    return groups


def _group_of(example: GivenRow, agent: LocalAgent, number: int, compared: bool) -> list[Group]:
    """Convert a row to a group; to none, if it has nothing to imitate."""
    task = Task(f"row:{example.where}", number)
    group = Group(task, [], number)
    for chat, reward in zip(example.chats, example.rewards, strict=True):
        turns = [
            Turn(prompt, ids, (0.0,) * len(ids), 0.0 if compared else weight, said, asked)
            for prompt, ids, weight, said, asked in _answers(chat, example, agent)
            if weight
        ]
        if turns and compared:
            turns[-1].reward = reward
        if turns and (compared or reward):
            group.trajectories.append(Trajectory(task, turns, "terminated", success=reward > 0))
    return [group] if group.trajectories else []


def _answers(chat: list[dict[str, Any]], example: GivenRow, agent: LocalAgent) -> Iterator[tuple[Any, ...]]:
    """Yield prompt, answer and weight of each answer as tokens, then its text and what it answers."""
    places = [n for n, message in enumerate(chat) if message["role"] == "assistant"]
    texts = [(str(chat[n].get("content") or ""), str(chat[n - 1].get("content") or "") if n else "") for n in places]
    if agent.tokenizer.chat_template and getattr(agent.prompt, "chat", True):
        answers = imitated_answers(_format(agent), chat, example.tools)
        for given, text in zip(answers, texts, strict=True):
            yield *given, *text
    elif len(chat) == 2 and places == [1]:
        ((said, asked),) = texts
        yield agent.encode(asked), given_answer(agent, said), 1.0, said, asked
    else:
        raise UsageError("this model has no chat template, so that it can read one prompt and its completion only")


def _format(agent: LocalAgent) -> ChatFormat:
    return ChatFormat.from_settings(agent.tokenizer, agent.prompt.template_args)


def _turn(turn: Turn, prompt: tuple[int, ...], ids: tuple[int, ...], weight: float) -> Turn:
    return replace(turn, prompt_ids=prompt, response_ids=ids, logprobs=(0.0,) * len(ids), messages=())


# -- rows of all kinds -------------------------------------------------------------------------------------------------


def _within(context: int, groups: list[Group], settings: StoredConfig) -> list[Group]:
    """Refuse or drop what does not fit into the model's context."""

    def longest(group: Group) -> int:
        return max(len(turn.prompt_ids) + len(turn.response_ids) for t in group for turn in t.turns)

    long = [group for group in groups if longest(group) > context]
    if long and settings.long == "error":
        raise UsageError(
            f"{len(long)} of {len(groups)} rows are longer than the model's context of {context} tokens; "
            f"{long[0].task.env_id} has {longest(long[0])}. Shorten them, or leave them out with batches.long=drop"
        )
    if long:
        logger.warning("%d of %d rows are left out: longer than %d tokens", len(long), len(groups), context)
    return [group for group in groups if longest(group) <= context]


def _is_held_out(group: Group, share: float) -> bool:
    """Return whether a row is held out, by a hash of its prompt: equal prompts are on the same side."""
    prompt = repr(group.trajectories[0].turns[0].prompt_ids)
    return int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=6).digest(), "big") < share * 2**48
