"""Stored episodes, and rows of texts, as groups of trajectories with tokens."""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from rollenv.agents.demonstrator import spoken_ids
from rollenv.agents.engines.base import text_tokens
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.stored_chats import stored_answers
from rollenv.agents.tiny.warm_up import Report
from rollenv.core.errors import UsageError
from rollenv.envs.data.own import is_data
from rollenv.rollout.exports.chats import chats_of, images_of
from rollenv.rollout.records.pictures import StorageError
from rollenv.rollout.records.stored import StoredEpisode, stored, stored_episodes
from rollenv.rollout.seats import own_view
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.config.algorithms import Kto, Preference
from rollenv.trainers.sources.base import task_seed
from rollenv.trainers.sources.stored_rows import StoredRow, read_stored_rows

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: The path of the environment's own expert.
ORACLE = "oracle"

_UNREADABLE = "neither tokens nor messages: train on what `rollenv export --format chat` (or pairs) makes of them"
_NO_CHATS = "this model has no chat template, so that it can read one prompt and its completion only"


class Unusable:
    """Rows that cannot be used: the first is an error ("error"), or all are left out and counted ("drop")."""

    def __init__(self, how: Literal["error", "drop"] = "error"):
        self.how, self.reasons = how, list[str]()

    def __call__(self, error: UsageError) -> None:
        if self.how == "error":
            raise UsageError(f"{error}; mend it, or leave such rows out with batches.unusable=drop") from error
        self.reasons.append(str(error))

    def tell(self) -> None:
        """Say in one line how many rows are left out, and why the first of them."""
        if self.reasons:
            logger.warning("%d rows are left out: %s", len(self.reasons), "; ".join(self.reasons[:5]))


def read_stored(
    paths: Sequence[str],
    agent: LocalAgent,
    compared: Preference | None,
    where: str = "",
    report: Report = lambda *_: None,
    unusable: Unusable | None = None,
) -> list[Group]:
    """Read stored episodes with the tokens of a model.

    Args:
        paths: folders and files of stored episodes, or of rows.
        agent: the model, with its tokenizer and prompts.
        compared: what learns from the groups; None to imitate each episode by itself.
        where: condition on stored episodes.
        unusable: gets what cannot be learned or does not fit into the model's context; by default an error.

    Raises:
        UsageError: a row cannot be learned; the text has file and row.
    """
    unusable = unusable or Unusable()
    found: list[Group] = []
    for path in map(Path, paths):
        if is_data(str(path)) and not has_episodes(path):
            if where:
                raise UsageError(f"a condition chooses among stored episodes; {path} has rows of texts")
            found += _groups_of_rows([*read_stored_rows(path, unusable)], agent, compared, report, unusable)
        else:
            found += groups_of_episodes(path, where, agent, compared, unusable)
    return [group for group in found if _fits(group, agent.engine.max_context, unusable)]


def check_stored(paths: Sequence[str], unusable: Unusable, *, chats: bool = True) -> None:
    """Check that paths exist and that their rows can be read, without a model.

    Args:
        chats: whether the model has a chat template; without one it reads a prompt and its completion only.

    Raises:
        StorageError: the first episode is damaged, or its pictures are missing.
        UsageError: a path does not exist, has no rows, or one of no known shape, unless ``unusable`` drops such rows;
            the text has file and row.
    """
    for path in (Path(path) for path in paths if path != ORACLE):
        if not path.exists():
            raise UsageError(f"there is no file or folder {str(path)!r}")
        if has_episodes(path):
            if not any(t.turns and (t.turns[0].prompt_ids or t.turns[0].messages) for t in stored_episodes(path)):
                raise UsageError(f"the episodes of {path} have {_UNREADABLE}")
            continue
        if not is_data(str(path)):
            raise UsageError(f"{path} has neither rows nor stored episodes")
        rows = [*read_stored_rows(path, unusable)]
        for example in [] if chats else rows:
            if not all(map(_is_completion, example.chats)):
                unusable(UsageError(f"{example.where}: {_NO_CHATS}"))
        if not rows:
            tested = "only files of test or validation rows, by their names" if path.is_dir() else "no rows"
            raise UsageError(f"{path} has {tested}: there is nothing to train on")


class Epochs(Generic[T]):
    """Endless batches of rows, each once per epoch, in an order of the seed and the epoch.

    The last batch of an epoch has the rows that are left.
    """

    def __init__(self, rows: Sequence[T], seed: int, size: int):
        self.rows, self.seed, self.size = rows, seed, size
        self.batches = math.ceil(len(rows) / size)

    def batch(self, number: int) -> list[T]:
        """Return the rows of a batch; the same whenever it is asked for."""
        epoch, place = divmod(number, self.batches)
        order = [*range(len(self.rows))]
        random.Random(task_seed(self.seed, "epoch", epoch)).shuffle(order)
        return [self.rows[index] for index in order[place * self.size : (place + 1) * self.size]]


# -- stored episodes ---------------------------------------------------------------------------------------------------


def has_episodes(path: Path) -> bool:
    """Return whether a file or folder holds trajectories, not rows of texts.

    Raises:
        StorageError: it is damaged, or its pictures are missing.
    """
    if path.is_dir():
        return any(path.glob("**/episodes.jsonl"))
    if path.suffix not in (".jsonl", ".parquet"):
        return False
    try:
        return next(stored_episodes(path), None) is not None
    except StorageError:
        raise
    except Exception:  # of any reader: its rows then say what is wrong
        return False


def groups_of_episodes(
    path: Path, where: str, agent: LocalAgent, compared: Preference | None, unusable: Unusable
) -> Iterator[Group]:
    """Yield stored episodes: each by itself to imitate, those of one task together to compare."""
    failed = without = 0
    tasks: dict[str, Group] = {}
    for number, episode in enumerate(stored(path, where), 1):
        trajectory = own_view(episode.trajectory)
        if not trajectory.complete or not trajectory.turns:
            failed += 1
            continue
        try:
            trajectory = _in_tokens(replace(episode, trajectory=trajectory), agent)
        except UsageError as error:
            unusable(UsageError(f"{path}, episode {number}: {error}"))
            continue
        if not all(turn.prompt_ids for turn in trajectory.turns):
            without += 1
        elif compared:
            tasks.setdefault(repr(trajectory.task), Group(trajectory.task, [])).trajectories.append(trajectory)
        else:
            skipped = {*trajectory.record.get("random_turns", ())}
            turns = [replace(turn, reward=1.0) for n, turn in enumerate(trajectory.turns) if n not in skipped]
            if turns:
                yield Group(trajectory.task, [replace(trajectory, turns=turns)])
    groups = [group for group in tasks.values() if len(group.trajectories) > 1]
    once = "are the only ones of their tasks: play each several times, as with `rollenv eval -k 4`"
    for number, why in (failed, "failed"), (without, f"have {_UNREADABLE}"), (len(tasks) - len(groups), once):
        if number:
            logger.warning("%s: %d episodes are left out, which %s", path, number, why)
    yield from groups


def _in_tokens(episode: StoredEpisode, agent: LocalAgent) -> Trajectory:
    """Return an episode with the tokens of this model: its own, or those of what an endpoint was told and answered.

    Raises:
        UsageError: its tokens do not spell its texts, as they are another tokenizer's, and it has no messages; or
            its messages have other answers than its turns.
    """
    t = episode.trajectory
    told, known = (all(getattr(turn, name) for turn in t.turns) for name in ("messages", "prompt_ids"))
    foreign = [turn for turn in (t.turns if told else t.turns[:1]) if not _spells(turn, agent)]
    if not foreign and (known or not told):
        return t
    if not told:
        raise UsageError(
            "it has tokens of another tokenizer, which do not spell its text in this model's "
            f"({(foreign[0].raw or foreign[0].text)[:40]!r}). Write its texts with `rollenv export --format chat`, and "
            "train on that file"
        )
    images = images_of(episode)
    said = [
        answer
        for chat in chats_of(episode)
        for answer in stored_answers(_format(agent), chat["messages"], chat.get("tools", ()), images)
    ]
    turns = t.turns
    if episode.session is not None:  # lines of its calls, which may begin alike
        said = list(dict.fromkeys(said))
        turns = [replace(turns[-1], reward=0.0, raw="", text=agent.decode(ids)) for _, ids, _ in said]
        turns[-1].reward = t.reward
    if len(said) != len(turns):
        raise UsageError(
            f"its messages have {len(said)} answers to learn for {len(turns)} turns, as examples within a prompt are "
            "answers too: train on what `rollenv export --format chat` writes of it"
        )
    seen = tuple(images.values())  # of all turns: some may be left out later
    turns = [replace(_turn(turn, *ids), prompt_images=seen) for turn, ids in zip(turns, said, strict=True)]
    return replace(t, turns=turns)


def _spells(turn: Turn, agent: LocalAgent) -> bool:
    """Return whether the tokens of an answer are those of its text."""
    said = turn.raw or turn.text
    known = max(text_tokens(turn.prompt_ids + turn.response_ids), default=0) < len(agent.tokenizer)
    return not (turn.response_ids and said) or (known and agent.decode(turn.response_ids) == said)


# -- rows --------------------------------------------------------------------------------------------------------------


def _groups_of_rows(
    examples: list[StoredRow], agent: LocalAgent, compared: Preference | None, report: Report, unusable: Unusable
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
            unusable(UsageError(f"{example.where}: {error}"))
        if number % 100 == 99:
            report("reading", number + 1, len(examples), {})
    return groups


def _group_of(example: StoredRow, agent: LocalAgent, number: int, compared: bool) -> list[Group]:
    """Convert a row to a group; to none, if it has nothing to imitate."""
    task = Task(f"row:{example.where}", number)
    group = Group(task, [], number)
    for chat, reward in zip(example.chats, example.rewards, strict=True):
        turns = [
            Turn(prompt, ids, (0.0,) * len(ids), 0.0 if compared else weight, said, asked, prompt_images=example.images)
            for prompt, ids, weight, said, asked in _answers(chat, example, agent)
            if weight
        ]
        if turns and compared:
            turns[-1].reward = reward
        if turns and (compared or reward):
            margin = {"margin": example.margin} if example.margin else {}
            group.trajectories.append(Trajectory(task, turns, "terminated", success=reward > 0, record=margin))
    return [group] if group.trajectories else []


def _answers(chat: list[dict[str, Any]], example: StoredRow, agent: LocalAgent) -> Iterator[tuple[Any, ...]]:
    """Yield prompt, answer and weight of each answer as tokens, then its text and what it answers."""
    places = [n for n, message in enumerate(chat) if message["role"] == "assistant"]
    texts = [(str(chat[n].get("content") or ""), str(chat[n - 1].get("content") or "") if n else "") for n in places]
    if example.images and not agent.sees:
        raise UsageError("it has pictures, and this model reads texts only")
    if agent.tokenizer.chat_template and getattr(agent.prompt, "chat", True):
        images = {image.sha256: image for image in example.images}
        answers = stored_answers(_format(agent), chat, example.tools, images)
        for given, text in zip(answers, texts, strict=True):
            yield *given, *text
    elif _is_completion(chat):
        ((said, asked),) = texts
        if not said.strip():
            raise UsageError("its answer is empty: there is nothing to imitate")
        yield agent.encode(asked), spoken_ids(agent, said), 1.0, said, asked
    else:
        raise UsageError(_NO_CHATS)


def _is_completion(chat: list[dict[str, Any]]) -> bool:
    """Return whether a chat is one prompt and its completion."""
    return len(chat) == 2 and [message["role"] == "assistant" for message in chat] == [False, True]


def _format(agent: LocalAgent) -> ChatFormat:
    return ChatFormat.from_settings(agent.tokenizer, agent.prompt.template_args)


def _turn(turn: Turn, prompt: tuple[int, ...], ids: tuple[int, ...], weight: float) -> Turn:
    return replace(turn, prompt_ids=prompt, response_ids=ids, logprobs=(0.0,) * len(ids), messages=())


# -- rows of all kinds -------------------------------------------------------------------------------------------------


def _fits(group: Group, context: int, unusable: Unusable) -> bool:
    """Return whether a row fits into the model's context. No row is ever cut."""
    longest = max(len(turn.prompt_ids) + len(turn.response_ids) for t in group for turn in t.turns)
    if longest > context:
        what = group.task.env_id.removeprefix("row:")
        unusable(UsageError(f"{what} has {longest} tokens; the model's context has {context}"))
    return longest <= context


def is_held_out(group: Group, share: float) -> bool:
    """Return whether a row is held out, by a hash of its prompt: equal prompts are on the same side."""
    prompt = repr(group.trajectories[0].turns[0].prompt_ids)
    return int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=6).digest(), "big") < share * 2**48
