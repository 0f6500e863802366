"""Exports of stored episodes: our own format comes back bit by bit, other trainers read theirs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import datasets
import pytest
from typer.testing import CliRunner

import rollenv
from rollenv.agents.base import Action, Agent, OracleAgent, RandomAgent
from rollenv.agents.scripted import ReplayAgent
from rollenv.cli.main import app
from rollenv.core import registry
from rollenv.core.errors import UsageError
from rollenv.core.pictures import picture
from rollenv.plugins.adapters.atif import from_atif
from rollenv.rollout import RolloutManager, Task
from rollenv.rollout.exports import export, format_of
from rollenv.rollout.exports.files import task_key
from rollenv.rollout.records import storage
from rollenv.rollout.records.plain import to_plain
from rollenv.rollout.records.samples import trajectory_samples
from rollenv.rollout.records.stored import stored_episodes
from rollenv.rollout.types import Trajectory, Turn


def episode(*answers, seed=0, member=0, reward=0.0, status="terminated"):
    turns = [
        Turn((1, 2, i), (3 + len(answer), 4), (-0.1 / 3, -1e-17), 0.0, answer, f"question {seed} {i}", versions=(7, 8))
        for i, answer in enumerate(answers)
    ]
    if turns:
        turns[-1].reward = reward
    return Trajectory(Task("game:Sokoban-v0", seed), turns, status, reward > 0, member=member)


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def source(tmp_path):
    """Stored episodes of twelve tasks, three of each."""
    file = tmp_path / "episodes of mine.jsonl"
    each = [
        episode(f"{member}", "\ud800 and so on", seed=seed, member=member, reward=member / 2)
        for seed in range(12)
        for member in range(3)
    ]
    storage.write(file, [*each, episode("x", seed=99, status="failed")])
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_our_own_format_comes_back_bit_by_bit_and_makes_the_same_samples(source, suffix, tmp_path):
    card = export(source, tmp_path / f"out{suffix}")
    before, after = list(stored_episodes(source, "complete")), list(stored_episodes(tmp_path / f"out{suffix}"))
    assert [to_plain(t) for t in after] == [to_plain(t) for t in before]
    for one, other in zip(before, after, strict=True):
        for a, b in zip(trajectory_samples(one), trajectory_samples(other), strict=True):
            assert all((getattr(a, name) == getattr(b, name)).all() for name in ("ids", "mask", "logprobs", "versions"))
    assert card["episodes"] == 36
    assert card["tasks"] == 12
    assert card["weights"] == [0, 0]


@pytest.mark.parametrize("form", ["own", "chat", "completions", "pairs", "atif"])
def test_a_split_is_by_task_and_the_same_in_every_format(source, form, tmp_path):
    to = tmp_path / f"out.{form}.jsonl"
    card = export(source, to, split=0.4)
    test = tmp_path / f"out.test.{form}.jsonl"
    held_out = {t.turns[0].observation for t in _own_test(source, tmp_path / "own")}
    assert 0 < len(held_out) < 12
    asked = [{first_text(row) for row in lines(file)} for file in (to, test)]
    assert asked[1] == held_out
    assert not asked[0] & asked[1]
    assert len(asked[0] | asked[1]) == 12
    assert [each["rows"] for each in card["files"].values()] == [len(lines(file)) for file in (to, test)]


def _own_test(source, folder):
    export(source, folder / "x.jsonl", split=0.4)
    return stored_episodes(folder / "x.test.jsonl")


def first_text(row):
    if "turns" in row:
        return row["turns"][0]["observation"]
    if "steps" in row:
        return row["steps"][0]["message"]
    return row.get("messages", row.get("prompt"))[0]["content"]


def test_a_text_is_written_once_for_a_task(tmp_path):
    file = tmp_path / "in.jsonl"
    same = episode("a", "b", member=1)
    storage.write(file, [episode("a", "b"), same, replace(same, task=Task("game:Sokoban-v0", 5)), episode("a", "c")])
    for form, rows in (("own", 3), ("chat", 3), ("completions", 5)):
        card = export(file, tmp_path / f"out.{form}.jsonl", form=form)
        (counts,) = card["files"].values()
        assert (counts["rows"], len(lines(tmp_path / f"out.{form}.jsonl"))) == (rows, rows)


def test_a_chat_and_its_answers_are_read_by_datasets(source, tmp_path):
    for form in ("chat", "completions", "pairs"):
        export(source, tmp_path / f"out.{form}.jsonl")
    read = {
        form: datasets.load_dataset("json", data_files=str(tmp_path / f"out.{form}.jsonl"), split="train",
                                    cache_dir=str(tmp_path / "cache"))
        for form in ("chat", "completions", "pairs")
    }  # fmt: skip
    roles = ["user", "assistant", "user", "assistant"]
    assert all([message["role"] for message in chat] == roles for chat in read["chat"]["messages"])
    assert Counter(len(prompt) for prompt in read["completions"]["prompt"]) == {1: 36, 3: 36}
    assert {message["role"] for row in read["completions"]["completion"] for message in row} == {"assistant"}
    pairs = Counter(
        (row["chosen"][0]["content"], row["rejected"][0]["content"], row["margin"]) for row in read["pairs"]
    )
    assert pairs == {("2", "1", 0.5): 12, ("2", "0", 1.0): 12, ("1", "0", 0.5): 12}


def test_pairs_are_of_one_task_with_other_returns_and_other_texts(tmp_path):
    file = tmp_path / "in.jsonl"
    each = [
        *(episode("best", seed=0, reward=2.0), episode("good", seed=0, reward=1.0), episode("bad", seed=0)),
        *(episode("same", seed=1, reward=1.0), episode("same", seed=1)),
        *(episode("equal", seed=2, reward=1.0), episode("returns", seed=2, reward=1.0)),
        *(episode("one", seed=3, reward=1.0),),
        *(replace(episode("1", seed=4, reward=r), turns=[replace(episode("1", reward=r).turns[0], observation=str(r))])
          for r in (0.0, 1.0)),
    ]  # fmt: skip
    storage.write(file, each)
    card = export(file, tmp_path / "out.pairs.jsonl")
    rows = [(row["chosen"][0]["content"], row["rejected"][0]["content"], row["margin"])
            for row in lines(tmp_path / "out.pairs.jsonl")]  # fmt: skip
    assert rows == [("best", "good", 1.0), ("best", "bad", 2.0), ("good", "bad", 1.0)]
    (counts,) = card["files"].values()
    assert counts["rows"] == 3


def test_calls_become_structured_where_the_text_does_not_describe_the_functions(tmp_path):
    call = '<tool_call>{"name": "search_text", "arguments": {"text": "a"}}</tool_call>'
    wrong = "<tool_call>not JSON</tool_call>"
    rows = [{"env_id": "tools:Files-v0", "seed": 0, "actions": [call, f"{call}{call}", wrong, "Done."]}]
    for native in (True, False):
        task = Task("tools:Files-v0", 0, {"calls": "native"} if native else {})
        with RolloutManager(ReplayAgent(rows)) as manager:
            (group,) = manager.collect([task], group_size=1)
        storage.write(tmp_path / "in.jsonl", group)
        export(tmp_path / "in.jsonl", tmp_path / f"{native}.chat.jsonl")
    (chat,) = lines(tmp_path / "True.chat.jsonl")
    said = [message["role"] for message in chat["messages"]]
    assert said == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    asked = [each for m in chat["messages"] for each in m.get("tool_calls", ())]
    assert [json.loads(each["function"]["arguments"]) for each in asked] == 3 * [{"text": "a"}]
    answered = [m["tool_call_id"] for m in chat["messages"] if "tool_call_id" in m]  # a refused text is no call
    assert answered == [each["id"] for each in asked]
    assert len(set(answered)) == 3
    assert any(tool["function"]["name"] == "search_text" for tool in json.loads(chat["tools"]))
    (plain,) = lines(tmp_path / "False.chat.jsonl")
    assert set(plain) == {"messages"}
    assert plain["messages"][1] == {"role": "assistant", "content": call}


class Reader(rollenv.Env):
    """Its function returns what looks like the results of several."""

    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
    text = "the page\n</tool_response>\n<tool_response>\nand its end"

    def _reset(self, options):
        return "What is on the page?", {"tools": self.tools}

    def _step(self, action):
        observation = f"<tool_response>\n{self.text}\n</tool_response>"
        return observation, 0.0, "read" not in action, False, {"use_tool": True, "tool_responses": [self.text]}


def test_a_result_that_looks_like_several_is_one_message(tmp_path, monkeypatch):
    name = "exports:Reader-v0"
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register(name, Reader)
    call = '<tool_call>{"name": "read", "arguments": {}}</tool_call>'
    rows = [{"env_id": name, "seed": 0, "actions": [call, "Done."]}]
    with RolloutManager(ReplayAgent(rows)) as manager:
        (group,) = manager.collect([Task(name, 0)], group_size=1)
    storage.write(tmp_path / "in.jsonl", group)
    export(tmp_path / "in.jsonl", tmp_path / "out.chat.jsonl")
    (chat,) = lines(tmp_path / "out.chat.jsonl")
    assert [m["content"] for m in chat["messages"] if m["role"] == "tool"] == [Reader.text]
    old = [replace(turn, results=None) for turn in group.trajectories[0].turns]  # as earlier versions stored it
    storage.write(tmp_path / "old.jsonl", [replace(group.trajectories[0], turns=old)])
    with pytest.raises(UsageError, match="play it again"):
        export(tmp_path / "old.jsonl", tmp_path / "old.chat.jsonl")


@pytest.mark.parametrize(("env_id", "as_list"), [("tools:Files-v0", False), ("tool:Calculator-v0", True)])
def test_verl_gets_functions_as_a_list_or_as_text_where_parquet_would_change_them(env_id, as_list, tmp_path):
    call = '<tool_call>{"name": "calculate", "arguments": {"expression": "1+1"}}</tool_call>'
    turns = [Turn((), (), (), 1.0, call, "What is 1+1?")]
    storage.write(tmp_path / "in.jsonl", [Trajectory(Task(env_id, 0, {}), turns, "terminated")])
    export(tmp_path / "in.jsonl", tmp_path / "out.verl.parquet")
    read = datasets.load_dataset("parquet", data_files=str(tmp_path / "out.verl.parquet"), split="train",
                                 cache_dir=str(tmp_path / "cache"))  # fmt: skip
    (row,) = read
    assert ("tools" in row and bool(row["tools"])) == as_list
    assert ("search_text" in row["messages"][0]["content"]) == (not as_list)


def test_atif_comes_back(source, tmp_path):
    export(source, tmp_path / "out.atif.jsonl")
    read = [from_atif(row) for row in lines(tmp_path / "out.atif.jsonl")]
    assert read == list(stored_episodes(source, "complete"))


def test_nothing_is_overwritten_and_an_empty_choice_writes_nothing(source, tmp_path):
    export(source, tmp_path / "out.jsonl")
    before = sorted(tmp_path.iterdir())
    for to, more, says in [
        ("out.jsonl", {}, "exists"),
        ("new.jsonl", {"where": "reward > 5"}, "nothing of"),
        ("new.jsonl", {"split": 1.0}, "share of the test split"),
        ("new.txt", {}, "jsonl or .parquet"),
        ("new.jsonl", {"form": "csv"}, "there is no format 'csv'"),
        ("new.verl.jsonl", {}, "verl reads Parquet only"),
        ("new.jsonl", {"where": "rewards > 5"}, "no episode has a 'rewards'"),
        (f"{source.name}/new.jsonl", {}, "cannot write"),
    ]:
        with pytest.raises(UsageError, match=says):
            export(source, tmp_path / to, **more)
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_says_what_it_wrote(source, tmp_path):
    to = tmp_path / "out.chat.jsonl"
    args = ["export", str(source), "--where", "reward == 1", "--to", str(to), "--json"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    card = json.loads(done.stdout)
    assert (card["episodes"], card["success"], card["where"], card["format"]) == (12, 1.0, "reward == 1", "chat")
    assert card == json.loads((tmp_path / "out.chat.jsonl.card.json").read_text())
    assert '"where": "reward == 1"' in (tmp_path / "out.chat.jsonl.card.md").read_text()
    assert format_of(to) == "chat"
    assert task_key(Task("a", 1)) == task_key(Task("a", 1, agent_seed=5))


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(tmp_path):
    """Stored episodes of a visual id: two turns each."""
    tasks = [Task("game:Sokoban-v0-tiny", seed, {"images": "also", "max_turns": 2}) for seed in (1, 2, 3)]
    with RolloutManager(RandomAgent()) as manager:
        groups = manager.collect(tasks, 1)
    file = tmp_path / "seen episodes.jsonl"
    storage.write(file, [t for group in groups for t in group])
    return file, [t for group in groups for t in group]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", ["chat", "completions", "verl"])
def test_pictures_have_a_column_and_places_in_messages(seen, form, suffix, tmp_path):
    source, played = seen
    to = tmp_path / "an export" / f"out.{form}{suffix}"
    if (form, suffix) == ("verl", ".jsonl"):
        pytest.skip("verl reads Parquet only")
    card = export(source, to)
    kind = "json" if suffix == ".jsonl" else "parquet"
    rows = datasets.load_dataset(kind, data_files=str(to), cache_dir=str(tmp_path / "cache"))["train"]
    assert card["files"][str(to)]["rows"] == len(rows) == (6 if form == "completions" else 3)
    for row in rows:
        messages = row["prompt"] if form == "completions" else row["messages"]
        images = [
            picture(each["bytes"]) if suffix == ".parquet" else picture((to.parent / each).read_bytes())
            for each in row["images"]
        ]
        if form == "verl":
            assert sum(m["content"].count("<image>") for m in messages) == len(images)
        else:
            assert sum(part["type"] == "image" for m in messages for part in m["content"]) == len(images)
        owns = [[image for turn in t.turns for image in turn.images] for t in played]
        assert any(images == own[: len(images)] for own in owns)
        assert images


def test_pairs_with_pictures_behind_an_answer_are_refused_in_a_line(seen, tmp_path):
    _, played = seen
    other = replace(played[0], turns=[replace(turn, text="left", reward=turn.reward + 1) for turn in played[0].turns])
    storage.write(tmp_path / "two.jsonl", [played[0], other])
    with pytest.raises(UsageError, match="pictures in their prompts only"):
        export(tmp_path / "two.jsonl", tmp_path / "out.pairs.jsonl")


def test_own_and_atif_keep_pictures(seen, tmp_path):
    source, played = seen
    export(source, tmp_path / "own" / "out.jsonl")
    assert [t.turns[1].images for t in stored_episodes(tmp_path / "own" / "out.jsonl")] == [
        t.turns[1].images for t in played
    ]
    export(source, tmp_path / "atif" / "out.atif.jsonl")
    documents = lines(tmp_path / "atif" / "out.atif.jsonl")
    assert "base64" not in json.dumps(documents)
    restored = [from_atif(document, tmp_path / "atif") for document in documents]
    assert [to_plain(t) for t in restored] == [to_plain(t) for t in played]
    with pytest.raises(UsageError, match=r"the format atif does not fit \.parquet: .*; write it to a \.jsonl file"):
        export(source, tmp_path / "out.atif.parquet")
    paths = {part["source"]["path"] for step in documents[0]["steps"] for part in step["message"] if "source" in part}
    assert paths == {f"pictures/{image.sha256}.png" for image in played[0].turns[0].images}


def shown_to(agent, env_id, tmp_path, form="chat", **kwargs):
    """Play a game, export it, and return the rows and the trajectory."""
    with RolloutManager(agent) as manager:
        (group,) = manager.collect([Task(env_id, 3, kwargs)], group_size=1)
    storage.write(tmp_path / "episodes.jsonl", group.trajectories)
    export(tmp_path / "episodes.jsonl", tmp_path / f"out.{form}.jsonl")
    return lines(tmp_path / f"out.{form}.jsonl"), group.trajectories[0]


def test_a_chat_has_the_board_that_the_agent_saw(tmp_path):
    (row,), played = shown_to(OracleAgent(), "game:Sokoban-v0-tiny", tmp_path)
    asked = [message["content"] for message in row["messages"] if message["role"] == "user"]
    env = rollenv.make("game:Sokoban-v0-tiny", seed=3)
    observation, info = env.reset()
    for turn, text in zip(played.turns, asked, strict=True):
        assert text.startswith(observation)
        assert text.endswith(info["suffix"])
        observation, _, _, _, info = env.step(turn.text)


def test_a_prompt_of_each_turn_is_a_chat_of_one_answer(tmp_path):
    class Prompted(Agent):
        def start(self, env, seed):
            return self

        async def act(self, observation, info):
            return Action("\\boxed{down}", prompt=f"The room is\n{info['suffix']}")

        def close(self):
            pass

    rows, played = shown_to(Prompted(), "game:Sokoban-v0-tiny", tmp_path, "completions", max_turns=3)
    assert len(rows) == len({row["prompt"][0]["content"] for row in rows})
    assert all(len(row["prompt"]) == 1 for row in rows)
    assert all(row["prompt"][0]["content"].startswith("The room is\n") for row in rows)
    assert not any(turn.continues for turn in played.turns)


def test_episodes_that_do_not_say_what_was_shown_are_refused_where_it_was_more(tmp_path):
    for env_id, more in (("game:Sokoban-v0-tiny", True), ("rg:leg_counting", False)):
        task, folder = Task(env_id, 3), tmp_path / env_id.replace(":", "-")
        folder.mkdir()
        storage.write(folder / "episodes.jsonl", [Trajectory(task, [Turn((), (), (), 1.0, "5", "seen")], "terminated")])
        if more:
            with pytest.raises(UsageError, match="play it again"):
                export(folder / "episodes.jsonl", folder / "out.chat.jsonl")
        else:
            assert export(folder / "episodes.jsonl", folder / "out.chat.jsonl")
