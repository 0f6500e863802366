"""Patterns: several agents."""

from __future__ import annotations

from common import pattern, raises
from gem.multiagent import AgentSelector, MultiAgentEnv


def pair_of_agents(mode="sequential"):
    class Pair(MultiAgentEnv):
        def __init__(self, rounds=2):
            super().__init__()
            self.possible_agents, self.rounds, self.turn = ["ann", "bob"], rounds, 0
            self.agent_selector = AgentSelector(self.possible_agents, mode=mode)

        def observe(self, agent):
            return f"{agent} at {self.turn}"

        def _process_actions(self, actions):
            self.turn += 1
            for agent, action in actions.items():
                self.infos[agent] = {"said": action}
                self.terminations[agent] = action == "stop"
            return (
                {agent: self.observe(agent) for agent in self.agents},
                {agent: float(len(action)) for agent, action in actions.items()},
                dict(self.terminations),
                dict(self.truncations),
                dict(self.infos),
            )

        def reset(self, seed=None):
            self.turn = 0
            return super().reset(None)

    return Pair()


@pattern
def agents_in_turns():
    env = pair_of_agents()
    observations, infos = env.reset(seed=None)
    assert observations == {"ann": "ann at 0", "bob": "bob at 0"} and infos == {"ann": {}, "bob": {}}
    assert env.agent_selector.selected == "ann"
    _, rewards, _, _, infos = env.step({"ann": "hi"})
    assert rewards == {"ann": 2.0} and env.agent_selector.selected == "bob" and infos["ann"] == {"said": "hi"}
    assert env.get_state("ann") == ("ann at 1", 2.0, False, False, {"said": "hi"})
    assert list(env.get_active_states()) == ["bob"]
    env.step({"bob": "hello"})
    assert env.agent_selector.selected == "ann" and env.get_state("bob")[1] == 5.0


@pattern
def agents_at_once():
    env = pair_of_agents("parallel")
    env.reset()
    env.step({"ann": "stop", "bob": "go"})
    assert env.agents == ["bob"] and list(env.get_active_states()) == ["bob"]
    raises(ValueError, env.get_state, "ann")


@pattern
def actions_of_the_wrong_agents():
    env = pair_of_agents()
    env.reset()
    raises(ValueError, env.step, ["hi"])
    raises(ValueError, env.step, {"bob": "hi"})
    raises(ValueError, env.step, {})


@pattern
def agents_that_come_go_and_talk():
    env = pair_of_agents("parallel")
    env.reset()
    env.add_agent("cy")
    env.add_agent("cy")
    assert env.agents == ["ann", "bob", "cy"] and env.agent_selector.get_active_agents()[-1] == "cy"
    env.send_message("ann", "cy", "psst")
    env.broadcast_message("bob", "all")
    assert env.shared_memory[0] == {"from": "ann", "to": "cy", "message": "psst"} and len(env.shared_memory) == 3
    raises(ValueError, env.send_message, "ann", "nobody", "x")
    env.remove_agent("cy")
    env.remove_agent("cy")
    assert env.agents == ["ann", "bob"] and "cy" not in env.rewards


@pattern
def whose_turn_it_is():
    from gem.multiagent.multi_agent_env import AgentSelector

    selector = AgentSelector(["a", "b", "c"])
    assert (selector.selected, selector.is_first(), selector.is_last()) == ("a", True, False)
    selector.next()
    selector.next()
    assert selector.selected == "c" and selector.is_last()
    selector.remove_agent("c")
    assert selector.selected == "b"
    selector.add_agent("d")
    selector.add_agent("d")
    selector.next()
    assert selector.selected == "d" and selector.get_active_agents() == ["d"]
    selector.reinit(["x"])
    assert selector.selected == "x" and AgentSelector([]).selected is None
    raises(ValueError, AgentSelector(["a"], mode="odd").get_active_agents)
    selector = AgentSelector(["a", "b", "c"])
    selector.selected = "c"
    assert selector.get_active_agents() == ["c"] and selector._agents == ["a", "b", "c"]
