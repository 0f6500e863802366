"""``gymnasium:ID``: any environment that Gymnasium knows, as text; ``gymnasium:MODULE:ID`` imports a module first."""

from __future__ import annotations

import contextlib
import copy
import difflib
import enum
import importlib
import inspect
import math
import re
from typing import Any

import gymnasium

from rollenv.core import Env, NoSuchAbility, ResetResult, StepResult, UsageError
from rollenv.env_spec import EnvSpec
from rollenv.envs.others import Misbehaved, one_line, spaces
from rollenv.envs.others.showing import MOST_NUMBERS, plain, show
from rollenv.errors import MissingExtra, UnknownEnv

#: Turns of an episode, where Gymnasium has no limit.
_TURNS = 200
#: Characters of an environment's own description that an agent sees.
_LONGEST = 4000
#: Sections of a description that matter for playing.
_TELLING = re.compile(r"description|action|observation|reward|mission|goal|termination|episode end", re.IGNORECASE)


def spec_of(env_id: str) -> EnvSpec:
    """The spec of ``gymnasium:ID``. State and copies are promised unless Gymnasium's own spec says nondeterministic.

    Raises:
        UnknownEnv: Gymnasium has no such id.
        MissingExtra: the module before it cannot be imported.
    """
    game = env_id.partition(":")[2]
    found = _spec_of_game(game)
    abilities = {"random_action"} if found.nondeterministic else {"random_action", "state", "spawn"}
    return EnvSpec(
        env_id,
        "rollenv.envs.others.gymnasium_ids:GymnasiumEnv",
        {"game": game},
        frozenset(abilities),
        nondeterministic=found.nondeterministic,
        summary=f"Gymnasium's {found.id} as text",
    )


def _spec_of_game(game: str) -> Any:
    module, _, name = game.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the module does
        raise MissingExtra(f"gymnasium:{game}: the module {module} cannot be imported: {one_line(error)}") from error
    try:
        return gymnasium.spec(name)
    except (gymnasium.error.Error, ValueError) as error:
        near = difflib.get_close_matches(name, list(gymnasium.registry), n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium:MODULE:ID imports what registers an id"
        raise UnknownEnv(f"Gymnasium has no environment {name!r}; {hint}") from error


class GymnasiumEnv(Env):
    """An environment of Gymnasium's registry as text.

    A reply that means no action passes the turn: nothing moves, the reward is 0, and ``info["valid"]`` is false. A
    state holds the seed and the actions; to go back to it is to play them again.

    Args:
        game: Gymnasium's id, or ``module:id``.
        max_turns: the episode is truncated after this many turns; by default Gymnasium's limit, or 200.
        describe: whether the first observation has what the environment's documentation says.
        settings: arguments of ``gymnasium.make``.
    """

    #: ``inner`` is what the environment's own ``reset`` gets as options.
    reset_options = frozenset({"inner"})

    def __init__(self, *, game: str, max_turns: int | None = None, describe: bool = True, **settings: Any):
        found = _spec_of_game(game)
        limit = settings.get("max_episode_steps") or found.max_episode_steps
        limit = None if limit == -1 else limit  # Gymnasium's word for no limit
        self.max_turns = limit or _TURNS if max_turns is None else max_turns
        if self.max_turns < 1 or self.max_turns != int(self.max_turns):
            raise UsageError(f"max_turns must be a whole number of at least 1, got {max_turns}")
        if limit and self.max_turns > limit:
            settings["max_episode_steps"] = self.max_turns
        self.game = _made(game, found, settings)
        self._arguments = {"game": game, "max_turns": max_turns, "describe": describe, **settings}
        try:
            self._space = copy.deepcopy(self.game.action_space)
            spaces.check(self._space, f"gymnasium:{game}")
            _check_shown(self.game.observation_space, f"gymnasium:{game}")
            self.names = _names(self.game, self._space)
            self._about = _about(self.game) if describe else ""
        except Exception as error:
            self.close()
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"gymnasium:{game} has spaces that cannot be read: {one_line(error)}") from error
        self._given: int | None = None
        self._inner: dict[str, Any] = {}
        self._seed_used, self._turn, self._seen = 0, 0, ""
        self._played: list[str] = []

    # -- the episode -------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        """Begin an episode. The environment gets the same seed; without one, the next of the private stream.

        Args:
            seed: see :meth:`rollenv.Env.reset`.
            options: see :attr:`reset_options`.
        """
        self._given = seed
        return super().reset(seed, options=options)

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        inner = options.get("inner") or {}
        if not isinstance(inner, dict):
            raise UsageError(f"{self}: the option inner is a dict of the environment's own options, not {inner!r:.40}")
        self._inner = dict(inner)
        self._seed_used = int(self.np_random.integers(2**31) if self._given is None else self._given)
        observation, info = self._begin()
        how = "a code block" if spaces.is_text(self._space) else f"a box, as in {self._example()}"
        asked = f"Reply with an action in {how}. Actions are {self._form()}. You have {self.max_turns} turns."
        return "\n\n".join(filter(None, [self._about, asked, observation])), info

    def _begin(self) -> tuple[str, dict[str, Any]]:
        self._turn, self._played = 0, []
        result = self._asked("reset", seed=self._seed_used, options=self._inner or None)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise Misbehaved(f"{self}: its reset returned no (observation, info)")
        return self._shown(*result)

    def _step(self, action: str) -> StepResult:
        text = spaces.found(action, self._space)
        try:
            meant = spaces.read(text, self._space, self.names)
        except ValueError as error:
            return self._passed(str(error))
        self._turn += 1
        reward, terminated, truncated, info = self._move(meant, text)
        truncated = not terminated and (truncated or self._turn >= self.max_turns)
        return self._seen, reward, terminated, truncated, _with_success(info) | {"valid": True}

    def _passed(self, why: str) -> StepResult:
        self._turn += 1
        said = f"This is not one of the actions, so nothing happened: {why}.\n{self._seen}"
        return said, 0.0, False, self._turn >= self.max_turns, {"valid": False}

    def _move(self, meant: Any, text: str) -> tuple[float, bool, bool, dict[str, Any]]:
        result = self._asked("step", meant)
        try:
            observation, reward, terminated, truncated, info = result
            told = float(reward), bool(terminated), bool(truncated)
            words = any(isinstance(each, str | bytes) for each in (reward, terminated, truncated))
            if words or not math.isfinite(told[0]) or not isinstance(info, dict):
                ends = f"terminated {terminated!r:.40}, truncated {truncated!r:.40}"
                raise ValueError(f"the reward {reward!r:.40}, {ends}, the info {type(info).__name__}")
        except Exception as error:  # whatever these are
            self._over = True
            raise Misbehaved(f"{self}: its step returned no (observation, reward, ...): {one_line(error)}") from error
        self._played.append(text)
        return *told, self._shown(observation, info)[1]

    def _shown(self, observation: Any, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        try:
            self._seen, told = show(observation), plain(info)
        except Exception as error:  # names and texts can be objects that fail
            self._over = True
            raise Misbehaved(f"{self}: what it returned cannot be shown: {one_line(error)}") from error
        return self._seen, told

    def _asked(self, name: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.game, name)(*args, **kwargs)
        except (Exception, SystemExit) as error:  # some environments exit where others raise
            self._over = True
            where = f"{name} with seed {self._seed_used}, turn {self._turn}"
            raise Misbehaved(f"{self} failed in {where}: {one_line(error)}") from error

    def render(self) -> str:
        return self._seen

    def close(self) -> None:
        self._over = True
        with contextlib.suppress(Exception):  # whatever it is, there is nothing left to do about it
            self.game.close()

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        self._space.seed(self.action_rng.getrandbits(31))
        for _ in range(20):
            reply = spaces.write(self._space.sample(), self._space, self.names)
            with contextlib.suppress(ValueError):
                spaces.read(spaces.found(reply, self._space), self._space, self.names)
                break
        return reply

    def _get_state(self) -> dict[str, Any]:
        self._can_return()
        told = {"seed": self._seed_used, "inner": self._inner, "played": list(self._played)}
        return told | {"turn": self._turn, "seen": self._seen}

    def _set_state(self, state: dict[str, Any]) -> None:
        self._can_return()
        self._seed_used, self._inner = state["seed"], dict(state["inner"])
        self._begin()
        for text in state["played"]:
            self._move(spaces.read(text, self._space, self.names), text)
        self._turn = state["turn"]
        if self._seen != state["seen"]:
            self._over = True
            raise Misbehaved(f"{self} is not deterministic: the same seed and actions led to another observation")

    def _twin(self) -> Env:
        twin = GymnasiumEnv(**self._arguments)
        twin.spec = self.spec
        if self._begun:
            twin.set_state(self.get_state())
        return twin

    def _can_return(self) -> None:
        if self.spec is not None and self.spec.nondeterministic:
            raise NoSuchAbility(f"{self} is nondeterministic, so it cannot go back to a state")

    # -- words -------------------------------------------------------------------------------------------------------

    def _form(self) -> str:
        described = _documented(self.game) if spaces.is_text(self._space) else ""
        return described or spaces.form(self._space, self.names)

    def _example(self) -> str:
        space = copy.deepcopy(self._space)
        space.seed(0)
        return spaces.write(space.sample(), space, self.names)


def _made(game: str, found: Any, settings: dict[str, Any]) -> Any:
    try:
        return gymnasium.make(found, disable_env_checker=True, **settings)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f"gymnasium:{game}: {one_line(error)}") from error
    except ImportError as error:
        raise MissingExtra(f"gymnasium:{game} needs a package that is not here: {one_line(error)}") from error
    except (Exception, SystemExit) as error:
        given = " ".join(str(settings).split())
        raise UsageError(f"gymnasium:{game} cannot be made with {given:.300}: {one_line(error)}") from error


def _check_shown(space: Any, env_id: str) -> None:
    """Raises UsageError if the whole observation is a picture."""
    parts = list(space.spaces.values()) if isinstance(space, gymnasium.spaces.Dict) else [space]
    boxes = [part for part in parts if isinstance(part, gymnasium.spaces.Box)]
    if len(boxes) == len(parts) and all(math.prod(box.shape) > MOST_NUMBERS for box in boxes):
        raise UsageError(f"{env_id}: observations of the shape {boxes[0].shape} are pictures, which text cannot show")


def _names(game: Any, space: Any) -> dict[int, str]:
    """Names of discrete actions, where the environment has them (as MiniGrid and ALE do)."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        return {}
    numbers = range(int(space.start), int(space.start + space.n))
    actions = getattr(game.unwrapped, "actions", None)
    if inspect.isclass(actions) and issubclass(actions, enum.IntEnum):
        named = {int(action): action.name for action in actions}
    elif callable(meanings := getattr(game.unwrapped, "get_action_meanings", None)):
        named = dict(zip(numbers, map(str, meanings()), strict=False))
    else:
        named = {}
    return {n: named[n] for n in numbers} if named and all(n in named for n in numbers) else {}


def _about(game: Any) -> str:
    """Return the environment's documentation about playing it."""
    text = inspect.getdoc(type(game.unwrapped)) or ""
    if inspect.getdoc(gymnasium.Env) == text:
        return ""
    parts = re.split(r"^#+ *(.+)$", text, flags=re.MULTILINE)
    sections = [(parts[i], parts[i + 1]) for i in range(1, len(parts) - 1, 2)]
    telling = [f"{title}:\n{said.strip()}" for title, said in sections if _TELLING.search(title)]
    return "\n\n".join([parts[0].strip(), *telling]).strip()[:_LONGEST]


def _documented(game: Any) -> str:
    """Return the documentation of BrowserGym's sets of actions."""
    actions: Any = getattr(getattr(game.unwrapped, "action_mapping", None), "__self__", None)
    if not hasattr(actions, "describe"):
        return ""
    with contextlib.suppress(Exception):
        return str(actions.describe(with_long_description=False, with_examples=True))
    return ""


def _with_success(info: dict[str, Any]) -> dict[str, Any]:
    """``success`` is a bool, or is not told."""
    told = info.get("success", info.get("is_success"))
    rest = {name: value for name, value in info.items() if name != "success"}
    return rest | ({"success": bool(told)} if isinstance(told, bool | int | float) and told == told else {})
