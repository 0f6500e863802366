"""``pettingzoo:MODULE``: a turn-based environment (AEC) of PettingZoo, as text for several players.

https://pettingzoo.farama.org. The module has a function ``env``, as PettingZoo's own have; ``MODULE:FUNCTION`` names
another one. Actions and observations are written as those of ``gymnasium:ID``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UsageError
from rollenv.core.parsing import well_formed
from rollenv.core.plugins import function_at
from rollenv.envs.ta.env import LONGEST, ReplayState
from rollenv.plugins.adapters.environments import Misbehaved, one_line
from rollenv.plugins.adapters.environments.gymnasium_ids import check, form, found, is_text, read, write
from rollenv.plugins.adapters.environments.showing import show
from rollenv.plugins.players.table import Table, winners


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of ``pettingzoo:MODULE``; its arguments are the function's."""
    return EnvSpec(
        env_id,
        "rollenv.plugins.players.pettingzoo:PettingZoo",
        {"module": env_id.partition(":")[2]},
        frozenset({"state", "spawn", "random_action"}),
        summary="A turn-based environment of PettingZoo, as text",
    )


class PettingZoo(ReplayState, Table):
    r"""An AEC environment whose agents are the players, in the order of ``possible_agents``.

    An action is read from the last box or the whole reply, as the action space asks; texts are passed on. One that is
    no action, or that an action mask forbids, forfeits: the episode ends with the reward -1 for its player. Agents that
    are done are stepped with None, as PettingZoo asks. The episode is truncated if all
    agents were. ``success`` is the agent's own ``info["success"]`` at its end,
    else the highest return, if it is positive.

    Args:
        module: ``MODULE`` or ``MODULE:FUNCTION``.
        max_turns: turns of all players before the episode is truncated.
        settings: arguments of the function.
    """

    def __init__(self, *, module: str, max_turns: int = 200, **settings: Any):
        self._arguments = {"module": module, "max_turns": max_turns, **settings}
        if max_turns < 1:
            raise UsageError(f"max_turns must be at least 1, got {max_turns}")
        name, _, function = module.partition(":")
        make = function_at(f"{name}:{function or 'env'}", "PettingZoo's environment")
        try:
            self.game = make(**settings)
        except Exception as error:
            raise UsageError(f"pettingzoo:{module} cannot be made with {settings}: {one_line(error)}") from error
        self.agents: list[Any] = list(getattr(self.game, "possible_agents", ()))
        if len(self.agents) < 2 or not hasattr(self.game, "last"):
            raise UsageError(f"pettingzoo:{module} is no AEC environment with two or more possible_agents")
        for agent in self.agents:
            check(self.game.action_space(agent), f"pettingzoo:{module}")
        self.players, self.max_turns, self.actions = len(self.agents), max_turns, []

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.episode_seed, self.actions = self.randint(2**31), []
        self._start(self.episode_seed)
        return self._asked()

    def _start(self, seed: int) -> None:
        self._met, self._last = [False] * self.players, [""] * self.players
        self._won: dict[int, bool] = {}
        self._limited = True
        self._returns = [0.0] * self.players
        self._asked_of("reset", seed=seed)
        self._pass_over_the_dead()

    def _asked_of(self, method: str, *args: Any, **named: Any) -> Any:
        try:
            return getattr(self.game, method)(*args, **named)
        except Exception as error:  # environments may raise anything
            raise Misbehaved(f"{self}: {method} raised {one_line(error)}") from error

    def _move(self, action: Any) -> None:
        self._asked_of("step", action)
        for agent, reward in self.game.rewards.items():
            self._returns[self.agents.index(agent)] += float(reward)

    def _pass_over_the_dead(self) -> None:
        """Step agents that are done with None, and keep what they see last."""
        while self.game.agents:
            observation, _, terminated, truncated, info = self._asked_of("last")
            if not (terminated or truncated):
                return
            self._limited = self._limited and not terminated
            player = self.mover()
            self._last[player] = show(observation)
            if "success" in info:
                self._won[player] = bool(info["success"])
            self._move(None)

    def _play(self, action: str) -> bool:
        """Carry out an action; return whether it is one."""
        space = self.game.action_space(self.agents[self.mover()])
        try:
            move = read(found(action, space), space)
        except ValueError:
            return False
        mask = self._mask()
        if mask is not None and not mask[int(move) - int(space.start)]:
            return False
        self._move(move)
        self._pass_over_the_dead()
        return True

    def _mask(self) -> Any:
        observation, *_, info = self._asked_of("last")
        shown = observation if isinstance(observation, dict) else {}
        mask = shown.get("action_mask", info.get("action_mask"))
        return None if mask is None else np.asarray(mask, np.int8)

    def _step(self, action: str) -> StepResult:
        mover, before = self.mover(), list(self._returns)
        self.actions.append(well_formed(action[:LONGEST]))
        valid = self._play(self.actions[-1])
        if not valid:
            self._returns[mover] -= 1.0
        rewards = [after - held for after, held in zip(self._returns, before, strict=True)]
        over = not valid or not self.game.agents
        if not over and len(self.actions) < self.max_turns:
            return self._told(mover, rewards, valid)
        won = [self._won.get(player, beats) for player, beats in enumerate(winners(self._returns))]
        if not valid:
            won[mover] = False
        truncated = not over or (valid and self._limited)
        return self._ended(mover, rewards, valid, won, forfeit=not valid, truncated=truncated)

    def mover(self) -> int:
        return self.agents.index(self.game.agent_selection)

    # -- what players see --------------------------------------------------------------------------------------------

    def _tell(self, player: int) -> str:
        agent = self.agents[player]
        seen = show(self._asked_of("observe", agent)) if agent in self.game.agents else self._last[player]
        if self._met[player]:
            return seen
        self._met[player] = True
        space = self.game.action_space(agent)
        how = "" if is_text(space) else f" Answer with an action in \\boxed{{}}; actions are {form(space)}."
        return f"You are {agent}, one of {', '.join(map(str, self.agents))}.{how}\n{seen}"

    def render(self) -> str:
        """The observation of the agent to move."""
        if not self._rollenv_begun or not self.game.agents:
            return ""
        agent = self.game.agent_selection
        return f"{agent}\n{show(self._asked_of('observe', agent))}"

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        space = self.game.action_space(self.agents[self.mover()])
        space.seed(self.action_rng.getrandbits(31))
        mask = self._mask()
        return write(space.sample() if mask is None else space.sample(mask), space)

    def _set_state(self, state: dict[str, Any]) -> None:
        self.episode_seed, self.actions = state["episode_seed"], list(state["actions"])
        self._start(self.episode_seed)
        for action in self.actions:
            self._met[self.mover()] = True
            self._play(action)
        if self.game.agents:
            self._met[self.mover()] = True

    def _rollenv_twin(self) -> Env:
        """Play again: a game that is an ``EzPickle``, as most of PettingZoo's are, is copied without its state."""
        twin = PettingZoo(**self._arguments)
        twin.spec = self.own_spec
        if self._rollenv_begun:
            twin.set_state(self.get_state())
        return twin

    def close(self) -> None:
        self.game.close()
