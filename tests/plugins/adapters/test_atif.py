"""Trajectories in ATIF: ours come back as they were, others' as far as they tell."""

import contextlib
import json

import pytest

from rollenv.agents.base import OracleAgent, RandomAgent
from rollenv.core.errors import UsageError
from rollenv.plugins.adapters.atif import from_atif, load_atif, save_atif, to_atif
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory, Turn


@pytest.fixture(scope="module", params=["game:Sokoban-v0-easy", "tools:Tiny-v0"])
def played(request):
    with RolloutManager(OracleAgent()) as manager:
        ((one,),) = manager.collect([Task(request.param, 3)])
    return one


def test_a_trajectory_comes_back_as_it_was(played, tmp_path):
    save_atif(played, tmp_path / "a.json", model="tiny")
    assert load_atif(tmp_path / "a.json") == played


def test_tokens_come_back():
    turn = Turn((1, 2, 3), (4, 5), (-0.5, -1.25), 0.5, "go", "look", versions=(1, 2), raw="<think>x</think>go")
    one = Trajectory(
        Task("game:Sokoban-v0", 1), [turn, turn], "truncated", True, final_observation="end", metrics={"a": 1.0}
    )
    data = to_atif(one)
    assert data["steps"][1]["metrics"]["completion_token_ids"] == [4, 5]
    assert data["steps"][1]["message"] == "<think>x</think>go"
    assert from_atif(json.loads(json.dumps(data))) == one


def test_what_the_format_asks_for(played):
    data = to_atif(played)
    assert [step["step_id"] for step in data["steps"]] == list(range(1, len(data["steps"]) + 1))
    calls = {call["tool_call_id"] for step in data["steps"] for call in step.get("tool_calls", [])}
    for step in data["steps"]:
        for result in step.get("observation", {}).get("results", []):
            assert result.get("source_call_id") in (None, *calls)
    assert data["final_metrics"]["extra"]["reward"] == played.reward


def test_an_episode_without_a_turn():
    one = Trajectory(Task("game:Sokoban-v0", 1), [], "failed", error="it broke", final_observation="")
    assert from_atif(to_atif(one)) == one


def test_text_that_is_no_unicode_comes_back(tmp_path):
    turn = Turn((), (), (), 0.0, "a\udcff\u2028\0", "\ud800")
    one = Trajectory(Task("game:Sokoban-v0", 1), [turn], "terminated", final_observation="\udc80 ä")
    save_atif(one, tmp_path / "a.json")
    assert load_atif(tmp_path / "a.json") == one


def test_a_number_that_json_lacks(tmp_path):
    one = Trajectory(Task("game:Sokoban-v0", 1), [Turn((), (1,), (float("-inf"),), 0.0, "a", "")], "terminated")
    with pytest.raises(UsageError, match="not finite"):
        save_atif(one, tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("junk", [None, [], "x", -1, [None], ["x"], [[]], {"a": 1}, 10**400, "\ud800"])
def test_a_malformed_document_is_read_or_refused(junk):
    turn = Turn((1,), (2,), (-0.5,), 1.0, '<tool_call>{"name": "x", "arguments": {}}</tool_call>', "o")
    whole = json.dumps(to_atif(Trajectory(Task("game:Sokoban-v0", 1), [turn], "terminated")))

    def places(part, *way):
        for key in part if isinstance(part, dict) else range(len(part) if isinstance(part, list) else 0):
            yield (*way, key)
            yield from places(part[key], *way, key)

    for *way, last in places(json.loads(whole)):
        data = part = json.loads(whole)
        for key in way:
            part = part[key]
        part[last] = junk
        with contextlib.suppress(UsageError):
            json.dumps(to_atif(from_atif(data)))


def test_a_document_of_another_agent():
    data = {
        "schema_version": "ATIF-v1.6",
        "agent": {"name": "other", "version": "1"},
        "extra": {"task": "tidy-up", "status": "done", "error": {"code": 3}, "metrics": [1], "success": "yes"},
        "steps": [
            {"step_id": 1, "source": "system", "message": "Rules."},
            {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Do it."}]},
            {
                "step_id": 3, "source": "agent", "message": "",
                "tool_calls": [{"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "ls"}}],
                "observation": {"results": [{"source_call_id": "a", "content": "x y"}, {"content": None}]},
                "metrics": {"completion_token_ids": [7, 8]},
            },
            {"step_id": 4, "source": "agent", "message": "Done.", "extra": {"reward": "high", "text": None, "raw": 1}},
        ],
    }  # fmt: skip
    one = from_atif(data)
    assert [turn.observation for turn in one.turns] == ["Rules.\nDo it.", "x y\n"]
    assert '"ls"' in one.turns[0].text
    assert one.turns[0].response_ids == (7, 8)
    assert one.turns[1].text == "Done."


def test_log_probabilities_that_do_not_fit_the_tokens_are_reported():
    step = {"step_id": 1, "source": "agent", "message": "a", "metrics": {"completion_token_ids": [7, 8]}}
    step["metrics"]["logprobs"] = [-0.5]
    with pytest.raises(UsageError, match="logprobs"):
        from_atif({"schema_version": "ATIF-v1.6", "steps": [step]})


@pytest.mark.parametrize("data", [None, [], {}, {"schema_version": "2"}, {"schema_version": "ATIF-v1.8", "steps": 3}])
def test_what_is_no_document_is_reported(data):
    with pytest.raises(UsageError, match="ATIF"):
        from_atif(data)


def test_random_play_of_many_turns_comes_back():
    with RolloutManager(RandomAgent()) as manager:
        groups = manager.collect([Task("game:Sokoban-v0-easy", seed) for seed in range(5)])
    for (one,) in groups:
        assert from_atif(json.loads(json.dumps(to_atif(one)))) == one
