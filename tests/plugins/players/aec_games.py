"""Environments of PettingZoo for the tests: one with numbered actions and a mask, one with texts."""

from gymnasium import spaces
from gymnasium.utils import EzPickle
from pettingzoo import AECEnv
from pettingzoo.utils import AgentSelector


class _Game(AECEnv, EzPickle):  # copied without its state, as most of PettingZoo's are
    metadata = {"name": "game_v0", "is_parallelizable": False}

    def __init__(self, names=("ann", "bob")):
        EzPickle.__init__(self, names)
        self.possible_agents = list(names)

    def observation_space(self, agent):
        return spaces.Text(200)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        for table in ("rewards", "_cumulative_rewards"):
            setattr(self, table, dict.fromkeys(self.agents, 0))
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.selector = AgentSelector(self.agents)
        self.agent_selection = self.selector.next()
        self.left, self.log = 3 + (seed or 0) % 6, []

    def step(self, action):
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0
        self._clear_rewards()
        self.play(self.agent_selection, action)
        self.agent_selection = self.selector.next()
        self._accumulate_rewards()


class Sticks(_Game):
    """Take one or two sticks (actions 1 and 2); whoever takes the last one wins a point from the other."""

    def action_space(self, agent):
        return spaces.Discrete(2, start=1)

    def observe(self, agent):
        return {"observation": f"{self.left} left", "action_mask": [int(self.left > taken) for taken in (0, 1)]}

    def play(self, agent, action):
        self.left -= int(action)
        if not self.left:
            self.rewards = {each: 1 if each == agent else -1 for each in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)


class Short(Sticks):
    def play(self, agent, action):
        self.left = 9
        self.log.append(action)
        self.truncations = dict.fromkeys(self.agents, len(self.log) == 4)


class Chain(_Game):
    """Say a word that begins as the last one ended, until three have been said; a wrong one ends the game."""

    def action_space(self, agent):
        return spaces.Text(20)

    def observe(self, agent):
        return " ".join(self.log) or "Say any word."

    def play(self, agent, action):
        right = not self.log or action[:1] == self.log[-1][-1:]
        self.log.append(action)
        self.rewards = dict.fromkeys(self.agents, 0.5 if right else -0.5)
        if not right or len(self.log) == 3:
            self.terminations = dict.fromkeys(self.agents, True)
            for each in self.agents:
                self.infos[each]["success"] = right


class Failing(Sticks):
    def play(self, agent, action):
        raise RuntimeError("no such stick")


env = Sticks
