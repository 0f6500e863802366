"""``openenv:URL``: the environment of a running OpenEnv server."""

from __future__ import annotations

import json
import weakref
from typing import Any

from rollenv.core import Env, NoSuchAbility, ResetResult, StepResult, UsageError
from rollenv.env_spec import EnvSpec
from rollenv.envs.others import Misbehaved
from rollenv.envs.others.openenv_action import Form
from rollenv.envs.others.openenv_wire import Refused, Wire, about, base_of
from rollenv.envs.others.showing import plain, show
from rollenv.errors import RollenvError

#: OpenEnv's own fields, which are not shown.
_NOT_SHOWN = ("done", "reward", "metadata")
#: No reward is larger.
_LARGEST = 1e100


def spec_of(env_id: str) -> EnvSpec:
    """The spec of ``openenv:URL``, with what the server says of itself.

    Nothing is promised but random actions, where the form of actions allows any: OpenEnv has no states and copies, and
    a server need not follow the seed.

    Raises:
        UsageError: it is not the address of an OpenEnv server.
        ServerLost: no server answers.
    """
    base = base_of(env_id.partition(":")[2])
    told = about(base)
    what = " ".join(str(told["description"] or told["name"] or "an environment").split())
    return EnvSpec(
        env_id,
        "rollenv.envs.others.openenv:make_openenv",
        {"url": base},
        frozenset({"random_action"} if Form(told["schema"]).can_sample else ()),
        nondeterministic=True,
        summary=f"{what:.100} (an OpenEnv server)",
    )


def make_openenv(url: str, max_turns: int = 200, timeout: float = 600.0, action_field: str | None = None) -> Env:
    """An environment of an OpenEnv server; the session begins with the first reset.

    Args:
        max_turns: the episode is truncated after this many turns.
        timeout: seconds to wait for an answer.
        action_field: of the server's actions, which gets the agent's reply; by default see :class:`Form`.

    Raises:
        UsageError: an argument is wrong, or it is no OpenEnv server.
        ServerLost: no server answers.
    """
    if max_turns < 1 or not timeout > 0:
        raise UsageError(f"max_turns and timeout are above 0, not {max_turns} and {timeout}")
    base = base_of(url)
    form = Form(about(base)["schema"], action_field)
    return (_Sampling if form.can_sample else OpenEnv)(Wire(base, timeout), form, max_turns)


class OpenEnv(Env):
    """An environment of an OpenEnv server.

    A reply that the server's form of actions does not allow passes the turn: nothing moves, the reward is 0, and
    ``info["valid"]`` is false.
    """

    #: ``inner`` holds more arguments of the server's reset.
    reset_options = frozenset({"inner"})

    def __init__(self, wire: Wire, form: Form, max_turns: int):
        self.wire, self.form, self.max_turns = wire, form, max_turns
        self._given: int | None = None
        self._turn, self._seen = 0, ""
        weakref.finalize(self, wire.close).atexit = False  # where nobody calls close()

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        """Begin an episode. The server gets the same seed; without one, the next of the private stream.

        Args:
            seed: see :meth:`rollenv.Env.reset`.
            options: see :attr:`reset_options`.
        """
        self._given = seed
        return super().reset(seed, options=options)

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        seed = int(self.np_random.integers(2**31) if self._given is None else self._given)
        self._turn, inner = 0, options.get("inner") or {}
        try:
            asked = {"seed": seed, **inner}
            json.dumps(asked)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{self}: the option inner is a dict of JSON data, not {inner!r:.40}") from error
        try:
            answer = self.wire.ask("reset", asked)
        except Refused as error:
            raise UsageError(f"{self}: the server refused the reset: {error}") from error
        _, terminated, truncated, info = self._taken(answer)
        if terminated or truncated:
            raise Misbehaved(f"{self}: the episode ended before the first turn")
        how = "" if _is_rollenvs(answer["observation"]) else self.form.asked
        return "\n\n".join(filter(None, [self._seen, how])), info

    def _step(self, action: str) -> StepResult:
        self._turn += 1
        late = self._turn >= self.max_turns
        try:
            answer = self.wire.ask("step", self.form.read(action))
        except (Refused, ValueError) as error:
            said = f"This is not one of the actions, so nothing happened: {error}.\n{self._seen}"
            return said, 0.0, False, late, {"valid": False}
        except RollenvError:
            self._over = True
            raise
        reward, terminated, truncated, info = self._taken(answer)
        return self._seen, reward, terminated, not terminated and (truncated or late), {"valid": True} | info

    def _taken(self, answer: dict[str, Any]) -> tuple[float, bool, bool, dict[str, Any]]:
        observation, reward, done = answer["observation"], answer.get("reward"), answer.get("done", False)
        reward = 0.0 if reward is None else reward
        if not isinstance(reward, int | float) or not abs(reward) <= _LARGEST or not isinstance(done, bool | None):
            self._over = True
            self.wire.close()
            raise Misbehaved(f"{self.wire.base} answered with the reward {reward!r:.40} and done {done!r:.40}")
        self._seen, info = _read(observation)
        if metadata := answer.get("metadata"):
            info.setdefault("metadata", plain(metadata))
        truncated = bool(done) and isinstance(observation, dict) and observation.get("truncated") is True
        return float(reward), bool(done) and not truncated, truncated, info

    def render(self) -> str:
        return self._seen

    def close(self) -> None:
        self._over = True
        self.wire.close()

    def _twin(self) -> Env:
        raise NoSuchAbility(f"{self}: OpenEnv's servers cannot copy an episode")


class _Sampling(OpenEnv):
    """One whose form of actions lists them, or bounds them."""

    __doc__ = OpenEnv.__doc__

    def sample_random_action(self) -> str:
        return self.form.sample(self.action_rng)


def _is_rollenvs(observation: Any) -> bool:
    """Return whether rollenv's server has it from an environment that explains its actions itself."""
    told = observation if isinstance(observation, dict) else {}
    return isinstance(told.get("text"), str) and isinstance(told.get("info"), dict)


def _read(observation: Any) -> tuple[str, dict[str, Any]]:
    """The text of an observation, and the info that it brings."""
    if not isinstance(observation, dict):
        return show(observation), {}
    info: dict[str, Any] = {}
    if _is_rollenvs(observation):
        return show(observation["text"]), dict(observation["info"])
    if isinstance(success := observation.get("success"), bool):
        info["success"] = success
    if isinstance(metadata := observation.get("metadata"), dict) and metadata:
        info["metadata"] = plain(metadata)
    shown = {name: value for name, value in observation.items() if name not in _NOT_SHOWN and value is not None}
    only = next(iter(shown.values()), "") if len(shown) < 2 else None
    return show(only if isinstance(only, str) else shown), info
