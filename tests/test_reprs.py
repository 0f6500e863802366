"""What a REPL and a notebook show."""

from __future__ import annotations

import asyncio
import re
import xml.etree.ElementTree as ET

import pytest

import rollenv
from rollenv import UsageError
from rollenv.agents.base import RandomAgent
from rollenv.rollout import Group, RolloutManager, Task, Trajectory, Turn
from rollenv.rollout.evaluate import evaluate

ID = "game:Sokoban-v0-tiny"


class Rude(rollenv.Env):
    """Text that would be a script, and a drawing that is gone once it is closed."""

    closed = False

    def _reset(self, options):
        return "<script>alert(1)</script>", {}

    def _step(self, action):
        return "<b>", 0.0, True, False, {}

    def render(self):
        if self.closed:
            raise RuntimeError("closed")
        return "<script>alert(1)</script>"

    def close(self):
        self.closed = True


@pytest.mark.parametrize("mode", ["text", "svg", "ansi"])
def test_an_environment_says_where_it_is_and_shows_its_board(mode):
    env = rollenv.make(ID, render_mode=mode)
    assert "not yet reset" in repr(env)
    assert "<svg" not in env._repr_html_()
    env.reset(0)
    assert ID in repr(env)
    assert "under way" in repr(env)
    assert ET.fromstring(env._repr_html_()).find("{http://www.w3.org/2000/svg}svg") is not None
    while not any(env.step(env.sample_random_action())[2:4]):
        pass
    assert "episode over" in repr(env)


def test_text_is_escaped_and_a_closed_environment_still_shows_its_name():
    env = Rude()
    env.reset(0)
    assert "<script" not in env._repr_html_()
    assert "alert(1)" in env._repr_html_()
    env.close()
    assert "Rude" in env._repr_html_()
    assert "alert" not in env._repr_html_()
    assert repr(env)


def turn(text: str, reward: float) -> Turn:
    return Turn((1,) * 5000, (2,) * 5000, (0.0,) * 5000, reward, text, "<i>" + "long " * 5000)


def test_episodes_and_groups_are_a_line_and_a_table():
    task = Task(ID, 3)
    won = Trajectory(task, [turn("<script>", 1.0)] * 200, "terminated", True, final_observation="<u>")
    lost = Trajectory(task, [turn("x" * 500, 0.0)], "failed", error="<b>lost</b> " + "why " * 100, member=1)
    group = Group(task, [won, lost])
    assert repr(won) == f"<Trajectory {ID} seed 3: terminated, success, reward 200, 200 turns>"
    assert repr(group) == f"<Group {ID} seed 3: 2 trajectories, 1 successful, reward 200, 1 not complete>"
    assert all(len(repr(each)) < 250 for each in (won, lost, group, won.turns[0], lost.turns[0]))
    for each in (won, lost, group):
        page = each._repr_html_()
        assert not any(tag in page for tag in ("<script", "<i>", "<u>", "<b>lost"))
        assert len(page) < 100_000
        ET.fromstring(page)
    assert repr(Group(task, []))
    assert ET.fromstring(Group(task, [])._repr_html_()) is not None


def test_in_a_running_loop_every_plain_call_says_what_to_await():
    manager = RolloutManager(RandomAgent())
    calls = {
        "collect_async": lambda: manager.collect([Task(ID, 0)]),
        "batch_async": lambda: manager.batch([Task(ID, 0)], 1),
        "play_async": lambda: manager.play([Trajectory(Task(ID, 0))]),
        "asyncio.to_thread(evaluate": lambda: evaluate(RandomAgent(), ID, n=1),
    }

    async def notebook() -> None:
        for instead, call in calls.items():
            with pytest.raises(UsageError, match=re.escape(instead)):
                call()
        assert (await asyncio.to_thread(evaluate, RandomAgent(), ID, n=1)).n == 1
        with RolloutManager(RandomAgent()) as other:
            groups = await other.collect_async([Task(ID, 0)])
        assert groups[0].complete

    asyncio.run(notebook())


def test_what_no_page_can_hold_is_replaced_and_what_is_huge_is_cut():
    class Odd(rollenv.Env):
        text = ""

        def render(self):
            return self.text

        def _reset(self, options):
            return "", {}

        def _step(self, action):
            return "", 0.0, True, False, {}

    env = Odd()
    for env.text in ("\x00\ud800<b>", "x" * 5_000_000):
        page = env._repr_html_()
        assert page.encode()
        assert "<b>" not in page.replace("<b>Odd</b>", "")
        assert len(page) < 30_000
