"""The contract of several agents, with a game of rounds in which all bid at once."""

import json

import pytest

from rollenv import EpisodeOver, UsageError
from rollenv.envs.multi import MultiAgentEnv


class Auction(MultiAgentEnv):
    """Three rounds of sealed bids; the highest bid wins the round; who bids nothing is out."""

    def __init__(self, mode="parallel"):
        super().__init__(["ann", "bob", "cy"], mode)
        self.round = self.prize = 0

    def _new_game(self, options):
        self.round, self.prize = 0, 1 + self.randint(1000)

    def observe(self, agent):
        return f"{agent}: round {self.round}, prize {self.prize}"

    def _process_actions(self, actions):
        self.round += 1
        bids = {agent: int(action) for agent, action in actions.items() if action.isdecimal()}
        best = max(bids, key=bids.get, default=None)
        over = self.round == 3
        gone = {agent: True for agent in actions if agent not in bids}
        return (
            {agent: self.observe(agent) for agent in self.agents},
            {best: 1.0} if best else {},
            gone,
            dict.fromkeys(set(self.agents) - set(gone), True) if over else {},
            {agent: {"bid": bid} for agent, bid in bids.items()},
        )

    def _get_state(self):
        return super()._get_state() | {"round": self.round, "prize": self.prize}

    def _set_state(self, state):
        super()._set_state(state)
        self.round, self.prize = state["round"], state["prize"]


def test_a_round_of_everybody():
    env = Auction()
    observations, infos = env.reset(3)
    assert list(observations) == list(infos) == ["ann", "bob", "cy"]
    observations, rewards, terminations, truncations, infos = env.step({"ann": "1", "bob": "5", "cy": "x"})
    assert rewards == {"ann": 0.0, "bob": 1.0, "cy": 0.0}
    assert terminations == {"ann": False, "bob": False, "cy": True}
    assert not any(truncations.values())
    assert infos == {"ann": {"bid": 1}, "bob": {"bid": 5}, "cy": {}}
    assert env.agents == ["ann", "bob"]
    env.step({"ann": "7", "bob": "5"})
    *_, truncations, _ = env.step({"ann": "1", "bob": "5"})
    assert truncations == {"ann": True, "bob": True}
    assert env.cumulative_rewards == {"ann": 1.0, "bob": 2.0, "cy": 0.0}
    with pytest.raises(EpisodeOver):
        env.step({})
    assert list(env.reset()[0]) == ["ann", "bob", "cy"]


def test_who_has_a_turn_must_act_and_nobody_else():
    env = Auction("sequential")
    with pytest.raises(EpisodeOver):
        env.step({"ann": "1"})
    env.reset(0)
    with pytest.raises(UsageError, match="'ann'"):
        env.step({"bob": "1"})
    with pytest.raises(UsageError, match="'ann'"):
        env.step({"ann": "1", "bob": "1"})
    env.step({"ann": "1"})
    assert env.agent_selector.get_active_agents() == ["bob"]
    env.step({"bob": "x"})
    assert env.agent_selector.selected == "cy"


def test_states_of_agents():
    env = Auction()
    env.reset(0)
    env.step({"ann": "1", "bob": "5", "cy": "x"})
    observation, reward, terminated, truncated, info = env.get_state("bob")
    assert observation == env.observe("bob")
    assert (reward, terminated, truncated, info) == (1.0, False, False, {"bid": 5})
    assert env.get_state("cy")[2] is True
    assert env.agent_selector.get_active_agents() == ["ann", "bob"]
    with pytest.raises(UsageError, match="'dee'"):
        env.get_state("dee")


def test_agents_join_and_leave():
    env = Auction()
    env.reset(0)
    env.add_agent("dee")
    env.remove_agent("ann")
    *_, rewards, _, _, _ = env.step({"bob": "1", "cy": "2", "dee": "3"})
    assert rewards["dee"] == 1.0
    assert "dee" not in env.reset()[0], "who joined an episode is not in the next one"


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_the_json_state_goes_on_alike(mode):
    env, other = Auction(mode), Auction(mode)
    env.reset(5)
    env.step({agent: "4" if agent != "cy" else "x" for agent in env.agent_selector.get_active_agents()})
    other.set_state(json.loads(json.dumps(env.get_state())))
    for _ in range(2):
        actions = dict.fromkeys(env.agent_selector.get_active_agents(), "9")
        assert env.step(actions) == other.step(actions)
    assert env.reset() == other.reset()
