"""``gymnasium:ID``: any environment registered in Gymnasium, as text; ``gymnasium:MODULE:ID`` imports a module first.

Actions that are numbers, lists and JSON objects are in the last box (``boxed{}`` of LaTeX), or the whole reply. A text
is the reply's last code block, else its last box, else all of it.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import importlib
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import MissingExtra, NoSuchAbility, UnknownEnv, UsageError, did_you_mean
from rollenv.core.parsing import last_code_block, well_formed
from rollenv.core.pictures import MARK, Picture, picture
from rollenv.plugins.adapters.environments import Misbehaved, boxed, json_of, one_line
from rollenv.plugins.adapters.environments.showing import MOST_NUMBERS, plain, show

#: Spaces whose actions are a JSON value.
_OF_NUMBERS = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
_NESTED = (spaces.Dict, spaces.Tuple)
_WITHOUT_TEXT = (spaces.Graph, spaces.Sequence, spaces.OneOf)

#: Names of discrete actions by number.
Names = Mapping[int, str]


def is_text(space: gymnasium.Space[Any]) -> bool:
    """Return whether actions are texts; those of third-party spaces count as texts."""
    return not isinstance(space, (*_OF_NUMBERS, *_NESTED))


def check(space: gymnasium.Space[Any], env_id: str) -> None:
    """Check that actions can be written as text."""
    if not isinstance(space, gymnasium.Space):
        raise UsageError(f"{env_id}: its action_space is {space!r:.60}, which is not a space of Gymnasium's")
    if isinstance(space, _WITHOUT_TEXT):
        raise UsageError(f"{env_id}: actions of {type(space).__name__} spaces cannot be written as text")
    if isinstance(space, spaces.Dict) and not all(isinstance(name, str) for name in space.spaces):
        raise UsageError(f"{env_id}: actions of a Dict space with names that are not text cannot be written as text")
    for inner in _inner(space):
        check(inner, env_id)


def _inner(space: gymnasium.Space[Any]) -> Sequence[gymnasium.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    return list(space.spaces) if isinstance(space, spaces.Tuple) else []


def found(reply: str, space: gymnasium.Space[Any]) -> str:
    """Return the part of a reply that is the action."""
    if is_text(space) and (block := last_code_block(reply, None)) is not None:
        return well_formed(block.strip())
    return boxed(reply)


def read(text: str, space: gymnasium.Space[Any], names: Names | None = None) -> Any:
    """Parse an action, which :func:`found` has extracted, to a member of the space.

    Raises:
        ValueError: the action is invalid; the message is for the agent.
    """
    value: Any = text
    if isinstance(space, spaces.Discrete):
        value = next((n for n, name in (names or {}).items() if name.lower() == text.lower()), text)
        value = _read_whole_number(value) if isinstance(value, str) else value
    elif isinstance(space, _NESTED):
        value = json_of(text)
    elif isinstance(space, _OF_NUMBERS):
        value = json_of(text) if text.startswith("[") else [json_of(each) for each in re.split(r"[\s,]+", text)]
    action = _member(value, space)
    if not space.contains(action):
        raise ValueError(f"{text:.60} is not among {form(space, names)}")
    return action


def _member(value: Any, space: gymnasium.Space[Any]) -> Any:
    """Convert JSON data to a member of the space."""
    if isinstance(space, spaces.Discrete):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{value!r:.60} is not a whole number")
        least, most = np.iinfo(space.dtype).min, np.iinfo(space.dtype).max
        return space.dtype.type(value) if least <= value <= most else value
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            raise ValueError(f"a JSON object with {', '.join(space.spaces)} is wanted")
        return {name: _member(value[name], inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise ValueError(f"a JSON list of {len(space.spaces)} is wanted")
        return tuple(_member(each, inner) for each, inner in zip(value, space.spaces, strict=True))
    if isinstance(space, _OF_NUMBERS):
        return _array(value, space)
    if not isinstance(value, str):
        raise ValueError("a text is wanted")
    return value


def _array(value: Any, space: Any) -> Any:
    flat = _flat(value)
    whole = space.dtype.kind not in "f"
    flags = space.dtype.kind == "b"
    if not all(isinstance(n, int if whole else int | float) and (flags or not isinstance(n, bool)) for n in flat):
        raise ValueError(f"a list of {'whole ' if whole else ''}numbers is wanted")
    if len(flat) != math.prod(space.shape):
        raise ValueError(f"{math.prod(space.shape)} numbers are wanted, not {len(flat)}")
    try:
        array = np.array(flat, dtype=np.int64 if whole else np.float64)
    except OverflowError:
        raise ValueError("a number is too large") from None
    if not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    with np.errstate(over="ignore"):
        cast = array.astype(space.dtype)
    if (cast != array if whole else np.isinf(cast)).any():
        raise ValueError("a number is out of its range")
    return cast.reshape(space.shape)


def _flat(value: Any) -> list[Any]:
    return [n for each in value for n in _flat(each)] if isinstance(value, list) else [value]


def _read_whole_number(text: str) -> int:
    if not re.fullmatch(r"[-+]?\d{1,18}", text):
        raise ValueError(f"{text!r:.60} is not one of the actions")
    return int(text)


def write(action: Any, space: gymnasium.Space[Any], names: Names | None = None) -> str:
    """Write a member of the space as a reply."""
    if is_text(space):
        return f"```\n{action}\n```"
    if isinstance(space, spaces.Discrete):
        text = (names or {}).get(int(action), str(int(action)))
    else:
        text = json.dumps(_data(action, space))
    return f"\\boxed{{{text}}}"


def _data(action: Any, space: gymnasium.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _data(action[name], inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [_data(each, inner) for each, inner in zip(action, space.spaces, strict=True)]
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":  # the shortest text of the same number
        return np.array([float(str(n)) for n in np.ravel(action)], dtype=np.float64).reshape(space.shape).tolist()
    return action.tolist() if hasattr(action, "tolist") else action


def form(space: gymnasium.Space[Any], names: Names | None = None) -> str:
    """Describe the format of actions."""
    if isinstance(space, spaces.Discrete):
        if names:
            return ", ".join(names.values())
        return f"the whole numbers from {int(space.start)} to {int(space.start + space.n - 1)}"
    if isinstance(space, spaces.MultiDiscrete):
        low = json.dumps(space.start.tolist()) if np.any(space.start) else "0"
        return f"lists of whole numbers below {json.dumps((space.start + space.nvec).tolist())}, from {low}"
    if isinstance(space, spaces.MultiBinary):
        return f"lists of {math.prod(space.shape)} numbers, each 0 or 1"
    if isinstance(space, spaces.Box):
        shape = f" (in the shape {list(space.shape)})" if len(space.shape) > 1 else ""
        return f"lists of {math.prod(space.shape)} numbers{shape}, each {_range(space)}"
    if isinstance(space, spaces.Dict):
        return "JSON objects with " + "; ".join(f"{name}: {form(inner)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return "JSON lists of " + "; ".join(map(form, space.spaces))
    if isinstance(space, spaces.Text):
        return f"texts of {space.min_length} to {space.max_length} of the characters {space.characters!r:.300}"
    return "texts"


def _range(space: spaces.Box) -> str:
    low, high = np.unique(space.low), np.unique(space.high)
    if len(low) == 1 and len(high) == 1:
        return f"from {low[0]:g} to {high[0]:g}"
    return f"at least {space.low.ravel().tolist()} and at most {space.high.ravel().tolist()}"


#: Default turn limit of environments without one in Gymnasium.
_TURNS = 200
#: Maximum length of an environment's own description for the agent.
_LONGEST = 4000
#: Relevant sections of a description.
_TELLING = re.compile(r"description|action|observation|reward|mission|goal|termination|episode end", re.IGNORECASE)


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of ``gymnasium:ID``, with state and copies unless Gymnasium's own spec is nondeterministic.

    Raises:
        UnknownEnv: Gymnasium has no such id.
        MissingExtra: the module before it cannot be imported.
    """
    game = env_id.partition(":")[2]
    found = _spec_of_game(game)
    abilities = {"random_action"} if found.nondeterministic else {"random_action", "state", "spawn"}
    return EnvSpec(
        env_id,
        "rollenv.plugins.adapters.environments.gymnasium_ids:GymnasiumEnv",
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
    except (Exception, SystemExit) as error:  # modules may raise anything
        raise MissingExtra(f"gymnasium:{game}: the module {module} cannot be imported: {one_line(error)}") from error
    try:
        return gymnasium.spec(name)
    except (gymnasium.error.Error, ValueError) as error:
        otherwise = "gymnasium:MODULE:ID imports what registers an id"
        if module:
            otherwise = f"importing {module} registered no such id there: old packages register in gym"
        hint = did_you_mean(name, gymnasium.registry, otherwise, most=3)
        raise UnknownEnv(f"Gymnasium has no environment {name!r}; {hint}") from error


class GymnasiumEnv(Env):
    """An environment of Gymnasium's registry as text.

    A reply without a valid action passes the turn: nothing moves, the reward is 0, and ``info["valid"]`` is false. A
    state consists of the seed and the actions, and is restored by a replay.

    Args:
        game: Gymnasium's id of the environment, or ``module:id``.
        max_turns: turns before the episode is truncated; by default Gymnasium's limit, or 200.
        describe: whether the first observation includes the environment's documentation.
        images: show what the environment renders as pixels: ``only`` with the texts of the observation, or ``also``
            beside all of it.
        settings: further arguments, passed on to ``gymnasium.make``.
    """

    #: ``inner`` are the options for the inner environment's ``reset``.
    reset_options = frozenset({"inner"})

    def __init__(
        self,
        *,
        game: str,
        max_turns: int | None = None,
        describe: bool = True,
        images: str | None = None,
        **settings: Any,
    ):
        if images not in (None, "only", "also"):
            raise UsageError(f"images must be 'only' or 'also', not {images!r}")
        self.images, self._frames = images, list[Picture]()
        settings |= {"render_mode": "rgb_array"} if images else {}
        found = _spec_of_game(game)
        limit = settings.get("max_episode_steps") or found.max_episode_steps
        limit = None if limit == -1 else limit  # Gymnasium's word for no limit
        self.max_turns = limit or _TURNS if max_turns is None else max_turns
        if self.max_turns < 1 or self.max_turns != int(self.max_turns):
            raise UsageError(f"max_turns must be a whole number of at least 1, got {max_turns}")
        if limit and self.max_turns > limit:
            settings["max_episode_steps"] = self.max_turns
        self.game = _made(game, found, settings)
        self._arguments = {"game": game, "max_turns": max_turns, "describe": describe, "images": images, **settings}
        try:
            self._space = copy.deepcopy(self.game.action_space)
            check(self._space, f"gymnasium:{game}")
            if not images:
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
        self._seed_used, self._turn, self._observation = 0, 0, ""
        self._played: list[str] = []
        self._mask: Any = None

    # -- the episode -------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        """Start an episode; see :meth:`rollenv.Env.reset`. The inner seed is the same, or drawn from the stream."""
        self._given = seed
        return super().reset(seed, options=options)

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        inner = options.get("inner") or {}
        if not isinstance(inner, dict):
            raise UsageError(f"{self}: the option inner is a dict of the environment's own options, not {inner!r:.40}")
        self._inner = dict(inner)
        self._seed_used = int(self.np_random.integers(2**31) if self._given is None else self._given)
        observation, info = self._begin()
        how = "a code block" if is_text(self._space) else f"a box, as in {self._example()}"
        described = _documented(self.game) if is_text(self._space) else ""
        actions = described or form(self._space, self.names)
        asked = f"Reply with an action in {how}. Actions are {actions}. You have {self.max_turns} turns."
        return "\n\n".join(filter(None, [self._about, asked, observation])), info

    def _begin(self) -> tuple[str, dict[str, Any]]:
        self._turn, self._played = 0, []
        result = self._asked("reset", seed=self._seed_used, options=self._inner or None)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise Misbehaved(f"{self}: its reset returned no (observation, info)")
        return self._shown(*result)

    def _step(self, action: str) -> StepResult:
        text = found(action, self._space)
        try:
            meant = read(text, self._space, self.names)
        except ValueError as error:
            self._turn += 1
            observation = f"This is not one of the actions, so nothing happened: {error!s}.\n{self._observation}"
            seen = {"images": self._frames} if self.images else {}
            return observation, 0.0, False, self._turn >= self.max_turns, {"valid": False, **seen}
        self._turn += 1
        reward, terminated, truncated, info = self._move(meant, text)
        truncated = not terminated and (truncated or self._turn >= self.max_turns)
        return self._observation, reward, terminated, truncated, _with_success(info) | {"valid": True}

    def _move(self, meant: Any, text: str) -> tuple[float, bool, bool, dict[str, Any]]:
        result = self._asked("step", meant)
        try:
            observation, reward, terminated, truncated, info = result
            if np.ndim(reward):
                raise ValueError(f"the reward {reward!r:.40} is several numbers; a turn is paid by one")
            outcome = float(reward), bool(terminated), bool(truncated)
            words = any(isinstance(each, str | bytes) for each in (reward, terminated, truncated))
            if words or not math.isfinite(outcome[0]) or not isinstance(info, dict):
                ends = f"terminated {terminated!r:.40}, truncated {truncated!r:.40}"
                raise ValueError(f"the reward {reward!r:.40}, {ends}, the info {type(info).__name__}")
        except Exception as error:  # returned objects may raise anything
            self._rollenv_over = True
            raise Misbehaved(f"{self}: its step returned no (observation, reward, ...): {one_line(error)}") from error
        self._played.append(text)
        return *outcome, self._shown(observation, info)[1]

    def _shown(self, observation: Any, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        given = observation
        if self.images == "only" and not isinstance(observation, str):
            parts = observation if isinstance(observation, dict) else {}
            observation = {name: each for name, each in parts.items() if isinstance(each, str)} or ""
        try:
            self._mask = _mask(given, info, self._space)
            text, shown_info = show(observation), plain(info)
            self._observation = f"{MARK}\n{text}".rstrip() if self.images else text
        except Exception as error:  # names and texts may be objects that raise
            self._rollenv_over = True
            raise Misbehaved(f"{self}: what it returned cannot be shown: {one_line(error)}") from error
        listed = shown_info.get("actions", "")
        if not (isinstance(listed, list) and all(isinstance(each, str) for each in listed)):
            shown_info.pop("actions", None)  # something else of this name
        if self.images:
            try:
                self._frames = [picture(self._asked("render"))]
            except UsageError as error:
                self._rollenv_over = True
                raise UsageError(f"{self} renders no pixels, so it takes no images=: {error}") from error
            shown_info["images"] = self._frames
        return self._observation, shown_info

    def _asked(self, name: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.game, name)(*args, **kwargs)
        except (Exception, SystemExit) as error:  # some environments exit instead of raising
            self._rollenv_over = True
            where = f"{name} with seed {self._seed_used}, turn {self._turn}"
            raise Misbehaved(f"{self} failed in {where}: {one_line(error)}") from error

    def render(self) -> str:
        return self._observation

    def close(self) -> None:
        self._rollenv_over = True
        with contextlib.suppress(Exception):  # nothing can be done about it
            self.game.close()

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        self._space.seed(self.action_rng.getrandbits(31))
        for _ in range(20):
            drawn = self._space.sample() if self._mask is None else self._space.sample(self._mask)
            reply = write(drawn, self._space, self.names)
            with contextlib.suppress(ValueError):
                read(found(reply, self._space), self._space, self.names)
                break
        return reply

    def _get_state(self) -> dict[str, Any]:
        self._can_return()
        state = {"seed": self._seed_used, "inner": self._inner, "played": list(self._played)}
        return state | {"turn": self._turn, "seen": self._observation}

    def _set_state(self, state: dict[str, Any]) -> None:
        self._can_return()
        self._seed_used, self._inner = state["seed"], dict(state["inner"])
        self._begin()
        for text in state["played"]:
            self._move(read(text, self._space, self.names), text)
        self._turn = state["turn"]
        if self._observation != state["seen"]:
            self._rollenv_over = True
            raise Misbehaved(f"{self} is not deterministic: the same seed and actions led to another observation")

    def _rollenv_twin(self) -> Env:
        twin = GymnasiumEnv(**self._arguments)
        twin.spec = self.own_spec
        if self._rollenv_begun:
            twin.set_state(self.get_state())
        return twin

    def _can_return(self) -> None:
        if self.own_spec is not None and self.own_spec.nondeterministic:
            raise NoSuchAbility(f"{self} is nondeterministic, so it cannot go back to a state")

    def _example(self) -> str:
        space = copy.deepcopy(self._space)
        space.seed(0)
        return write(space.sample(), space, self.names)


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
    """Raise UsageError if observations are pictures, which only ``images=`` shows."""
    parts = list(space.spaces.values()) if isinstance(space, gymnasium.spaces.Dict) else [space]
    boxes = [part for part in parts if isinstance(part, gymnasium.spaces.Box)]
    if len(boxes) == len(parts) and all(math.prod(box.shape) > MOST_NUMBERS for box in boxes):
        raise UsageError(
            f"{env_id}: observations of the shape {boxes[0].shape} are pictures, which text cannot show; "
            "images='only' shows what it renders"
        )


def _names(game: Any, space: Any) -> dict[int, str]:
    """Return the names of discrete actions, if the environment has them (as MiniGrid and ALE do)."""
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


def _mask(observation: Any, info: dict[str, Any], space: Any) -> Any:
    """Return the discrete actions that the environment says are allowed next, as Taxi does; None if it does not."""
    mask: Any = (observation if isinstance(observation, dict) else {}).get("action_mask", info.get("action_mask"))
    said = isinstance(space, spaces.Discrete) and np.shape(mask) == (space.n,) and np.any(mask)
    return np.asarray(mask, bool).astype(np.int8) if said else None


def _about(game: Any) -> str:
    """Return the relevant sections of the environment's documentation."""
    text = inspect.getdoc(type(game.unwrapped)) or ""
    if inspect.getdoc(gymnasium.Env) == text:
        return ""
    parts = re.split(r"^#+ *(.+)$", text, flags=re.MULTILINE)
    sections = [(parts[i], parts[i + 1]) for i in range(1, len(parts) - 1, 2)]
    telling = [f"{title}:\n{section.strip()}" for title, section in sections if _TELLING.search(title)]
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
    """Return the info with ``success`` as a bool, or without it."""
    success = info.get("success", info.get("is_success"))
    rest = {name: value for name, value in info.items() if name != "success"}
    return rest | ({"success": bool(success)} if isinstance(success, bool | int | float) and success == success else {})
