"""Whose turn it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv import UsageError
from rollenv.envs.multi import AgentSelector


def test_one_after_the_other_and_round_again():
    selector = AgentSelector(["a", "b", "c"])
    assert selector.selected == "a"
    assert [selector.next() for _ in range(4)] == ["b", "c", "a", "b"]
    assert selector.get_active_agents() == ["b"]


def test_all_at_once():
    selector = AgentSelector(["a", "b"], "parallel")
    assert selector.get_active_agents() == ["a", "b"]
    assert selector.next() == "a"


def test_who_leaves_hands_the_turn_on():
    selector = AgentSelector(["a", "b", "c"])
    selector.next()
    selector.remove_agent("b")
    assert selector.selected == "c"
    selector.remove_agent("a")
    assert selector.selected == "c"
    selector.add_agent("d")
    assert selector.next() == "d"
    selector.remove_agent("d")
    assert selector.selected == "c"
    selector.remove_agent("c")
    assert selector.selected is None
    assert selector.get_active_agents() == []
    assert selector.next() is None
    selector.reinit(["x", "y"])
    assert selector.selected == "x"


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "next"]), st.integers(0, 5)), max_size=40))
def test_the_selected_agent_is_always_one_of_them(moves):
    selector = AgentSelector(["0", "1", "2"])
    for move, number in moves:
        name = str(number)
        if move == "next":
            selector.next()
        elif move == "add" and name not in selector.agents:
            others = selector.selected
            selector.add_agent(name)
            assert others is None or selector.selected == others
        elif move == "remove" and name in selector.agents:
            kept = selector.selected
            selector.remove_agent(name)
            assert kept == name or selector.selected == kept
        assert (selector.selected in selector.agents) == bool(selector.agents)


@pytest.mark.parametrize("wrong", [{"agents": ["a"], "mode": "random"}, {"agents": ["a", "a"]}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(UsageError):
        AgentSelector(**wrong)


def test_unknown_agents_are_refused():
    selector = AgentSelector(["a"])
    with pytest.raises(UsageError, match="'b'"):
        selector.remove_agent("b")
    with pytest.raises(UsageError, match="'b'"):
        selector.select("b")
    with pytest.raises(UsageError, match="already"):
        selector.add_agent("a")
