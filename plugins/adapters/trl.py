"""rollenv's environments in TRL's ``GRPOTrainer`` (1.16).

Two ways: :class:`Rollout` plays whole episodes and hands their tokens over as they were drawn, which suits every
environment and needs no tool calls; :func:`environment` offers an episode as a tool that the model calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import random
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import Ids, Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.session import TokenSession
from rollenv.core.errors import UsageError
from rollenv.core.needs import peer
from rollenv.core.registry import spec
from rollenv.plugins.adapters import OVER, EpisodeFailed, TextEpisode, in_a_line, whole_of
from rollenv.plugins.adapters.observations import pil_part
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.plain import from_plain, to_plain
from rollenv.rollout.records.samples import trajectory_samples
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.factory import make_workers

with peer("trl", "1.16"):
    import trl  # noqa: F401
    from datasets import Dataset

T = TypeVar("T")

logger = logging.getLogger(__name__)


def dataset(env_id: str, n: int | None = None, *, seed: int = 0, **kwargs: Any) -> Dataset:
    """Tasks as a training set for :class:`Rollout`; several can be concatenated and shuffled.

    Args:
        n: number of tasks; by default all of a data set, and 100 of what is generated.
        seed: seed of the first task; the others count up.

    Returns:
        Rows whose ``prompt`` names a task. The model does not read it: it reads what the environment shows.
    """
    return Dataset.from_dict({"prompt": [json.dumps(to_plain(t)) for t in tasks_of(env_id, kwargs, n, seed)]})


def env_reward(
    env_reward: list[float | None],
    env_success: list[bool],
    log_metric: Callable[[str, float], None] = lambda *_: None,
    **_: Any,
) -> list[float | None]:
    """TRL's reward function for what :class:`Rollout` played: the sum of an episode's rewards.

    Args:
        env_reward: from the rollout; None where the environment failed.
        env_success: from the rollout; its mean is logged.
    """
    played = [won for won, reward in zip(env_success, env_reward, strict=True) if reward is not None]
    if played:
        log_metric("env_success", sum(played) / len(played))
    return env_reward


class Rollout:
    """TRL's ``rollout_func``: rollenv plays, with the model that is trained, and its tokens go back as they were drawn.

    TRL takes no pictures from such a function: for environments that show them there is :func:`environment`.

    An episode is one conversation. TRL's settings hold for it: ``temperature``, ``top_p``, ``top_k``, ``min_p``,
    ``chat_template_kwargs`` and ``max_completion_length``, of the answers and what the environment says between them.
    Besides tokens and log-probabilities TRL gets ``env_mask``, and for reward functions ``env_reward``, ``env_success``
    and ``env_turns``. An episode whose environment failed is played again; if that does not help its reward is None,
    and TRL does not train on it.

    Args:
        max_turns: maximum turns of an episode; by default the environment's own limit.
        workers: where environments live, as on the command line: ``"inline"``, or a number of processes, which have
            deadlines.
        limits: those deadlines, and how many failures are tolerated.
        max_concurrent: episodes at the same time; all by default.
    """

    def __init__(
        self,
        max_new_tokens: int = 64,
        *,
        max_turns: int | None = None,
        system: str = "",
        workers: str = "inline",
        limits: EpisodeLimits | None = None,
        max_concurrent: int | None = None,
    ):
        self.max_new_tokens, self.system = max_new_tokens, system
        self.workers, self.max_concurrent = workers, max_concurrent
        limits = limits or EpisodeLimits()
        self.limits = dataclasses.replace(limits, turns=max_turns or limits.turns)
        self._held = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, self._held.close)
        self._manager: RolloutManager | None = None
        self._calls = 0

    def close(self) -> None:
        """End the workers, which otherwise live until garbage collection or the end of the program."""
        self._finalizer()

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play an episode for every prompt, as TRL asks for.

        Args:
            prompts: from :func:`dataset`; equal ones are a group, whose members start in the same state.

        Raises:
            UsageError: a prompt names no task, or the trainer cannot play.
            EpisodeFailed: no episode could be played.
        """
        self._calls += 1
        player, model = _player(trainer, self), trainer.model
        training = model.training
        model.eval()  # no dropout, and no gradient checkpointing, which does not support a cache
        try:
            texts = [str(p[-1]["content"] if isinstance(p, list) and p else p) for p in prompts]
            played = _run_in_thread(lambda: self._play(texts, player))
        finally:
            model.train(training)
        failed = [t for t in played if not t.complete]
        if failed and len(failed) == len(played):
            raise EpisodeFailed(f"no episode could be played. The first: {in_a_line(failed[0].error)}")
        if failed:
            first = in_a_line(failed[0].error)
            logger.warning("%d of %d episodes failed. The first: %s", len(failed), len(played), first)
        if not any(t.turns for t in played):
            raise UsageError("no prompt leaves room for an answer: raise max_completion_length or lower max_new_tokens")
        return _columns(played, player.tokenizer)

    def _play(self, prompts: Sequence[str], player: LocalAgent) -> list[Trajectory]:
        """Play an episode for every prompt, and return them in order."""
        if self._manager is None:
            workers = self._held.enter_context(make_workers(self.workers))
            plain = RolloutManager(player, workers, limits=self.limits, max_concurrent=self.max_concurrent)
            self._manager = self._held.enter_context(plain)
        manager = self._manager.with_agent(player)
        tasks = {prompt: _task(prompt) for prompt in prompts}
        sizes = Counter(prompts)
        members: dict[str, list[Trajectory]] = {}
        for size in sorted(set(sizes.values())):
            names = [prompt for prompt in tasks if sizes[prompt] == size]
            groups = manager.collect([tasks[name] for name in names], size)
            members |= {name: list(group) for name, group in zip(names, groups, strict=True)}
        return [members[prompt].pop(0) for prompt in prompts]


def _player(trainer: Any, rollout: Rollout) -> LocalAgent:
    """Make an agent with the current weights: a new one for every batch, so that no cache is stale."""
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
        raise UsageError("rollenv's Rollout needs the whole model in each process: train without FSDP and DeepSpeed")
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "get_base_model"):  # PEFT's; its layers stay in there
        model = model.get_base_model()
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    longest = args.max_completion_length or model.config.max_position_embeddings
    sampling = Sampling(
        args.temperature, min(rollout.max_new_tokens, longest), args.top_p, args.top_k or 0, args.min_p or 0.0
    )
    player = _Player(model, tokenizer, ChatPrompt(rollout.system, 0, args.chat_template_kwargs or {}), sampling)
    player.longest = longest
    player.salt = f"{args.seed} {rollout._calls} {trainer.accelerator.process_index}"
    return player


class _Player(LocalAgent):
    """Draws differently in every batch and process, and keeps to the length that TRL trains on.

    TRL wants one sequence of tokens: responses stay as they were sampled, as in TRL's own loop over tool calls.
    """

    salt = ""
    longest = 0

    def conversation(self) -> Conversation:
        about: Any = self.prompt
        form = ChatFormat.from_settings(self.tokenizer, about.template_args)
        return Conversation(form, about.system or None, max_context=self.engine.max_context, append_only=True)

    def start(self, env: Any, seed: int) -> TokenSession:
        session = super().start(env, random.Random(f"{self.salt} {seed}").getrandbits(64))
        same = {each.name: getattr(session, each.name) for each in dataclasses.fields(session)}
        return _Bounded(**same, longest=self.longest)


@dataclasses.dataclass(slots=True)
class _Bounded(TokenSession):
    """Ends an episode if another reply might exceed the maximum completion length."""

    longest: int = 0
    _begin: int = 0

    def ask(self, observation: str, info: dict[str, Any]) -> Ids:
        prompt = TokenSession.ask(self, observation, info)
        self._begin = self._begin or len(prompt)
        if len(prompt) - self._begin + self.sampling.max_new_tokens > self.longest:
            raise ContextFull(f"the episode's tokens do not fit in max_completion_length={self.longest}")
        return prompt


def _columns(played: Sequence[Trajectory], tokenizer: Any) -> dict[str, list[Any]]:
    """Return the columns that TRL reads. An episode without answers is one token that is not trained on: TRL needs
    one.
    """
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "env_reward", "env_success", "env_turns")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    split = 0
    for trajectory in played:
        samples = trajectory_samples(trajectory) if trajectory.complete else []
        split += len(samples) > 1
        ids, mask, logprobs, begin = [tokenizer.eos_token_id] * 2, [0, 0], [0.0, 0.0], 1
        if samples:
            longest = max(samples, key=lambda sample: int(sample.mask.sum()))
            ids, logprobs = longest.ids.tolist(), longest.logprobs.tolist()
            mask, begin = longest.mask.astype(int).tolist(), int(longest.mask.argmax())
        reward = trajectory.reward if trajectory.complete else None
        tokens = ids[:begin], ids[begin:], logprobs[begin:], mask[begin:]
        row = (*tokens, reward, trajectory.success, len(trajectory.turns))
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    if split:
        logger.warning(
            "the chat template rewrote what was said before in %d of %d episodes, and TRL trains on one sequence of "
            "tokens for each: of those, only the longest part is trained on",
            split,
            len(played),
        )
    return columns


def _task(prompt: str) -> Task:
    try:
        return from_plain(Task, json.loads(prompt))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"the prompt {prompt!r:.80} is not a rollenv task: make the training set with dataset() of {__name__}"
        ) from error


def _run_in_thread(work: Callable[[], T]) -> T:
    """Call a function, in another thread if this one runs an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def environment(env_id: str, **kwargs: Any) -> Callable[[], Environment]:
    """TRL's ``environment_factory`` for an id; it can be pickled.

    The training set needs a column ``seed``, or ``index`` for the tasks of a data set, so that the members of a group
    play the same task.

    Raises:
        UnknownEnv: there is no such id.
    """
    spec(env_id)
    return functools.partial(Environment, env_id, kwargs)


class Environment:
    """One environment with TRL's interface: errors and the end of an episode come as text.

    Observations with pictures are lists of TRL's parts of messages, for models that see.
    """

    def __init__(self, env_id: str, kwargs: dict[str, Any]):
        self._episode = TextEpisode(env_id, **kwargs)
        self._episode.sees = True
        self._finalizer = weakref.finalize(self, self._episode.close)
        self._failed = self._lost = False

    def reset(self, seed: int | None = None, index: int | None = None, **row: Any) -> str | list[Any]:
        """Begin an episode.

        Args:
            index: of the task, in a data set.

        Raises:
            UsageError: the training set does not say which task, or not by a whole number.
            EpisodeFailed: two resets in a row failed.
        """
        options = {"seed": seed, "index": index}
        seed, index = whole_of(options, "seed"), whole_of(options, "index")
        if seed is None and index is None:
            raise UsageError("the training set needs a column 'seed' (or 'index'): a group has to play the same task")
        lost, self._failed, self._lost = self._lost, False, False
        try:
            shown = self._episode.start(seed or 0, None if index is None else {"index": index})
            return self._episode.content(pil_part, shown)
        except EpisodeFailed as error:
            self._failed = self._lost = True
            if lost:
                raise
            logger.warning("%s", str(error))
            return OVER

    def step(self, action: str) -> str | list[Any]:
        """
        Take an action in the environment.

        Args:
            action: The action, written as the environment asks for.

        Returns:
            What the environment shows then.
        """
        try:
            shown, _ = self._episode.step(action if isinstance(action, str) else json.dumps(action))
        except EpisodeFailed as error:
            self._failed = True
            logger.warning("%s", str(error))
            return OVER
        if shown == OVER:
            return OVER
        return self._episode.content(pil_part, f"{shown}\n{OVER}" if self._episode.over else shown)

    def get_reward(self) -> float | None:
        """The sum of rewards; None, which TRL does not train on, if the environment failed."""
        return None if self._failed else self._episode.total
