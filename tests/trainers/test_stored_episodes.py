"""Training on given episodes: rows of texts, an expert's episodes, stored ones."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import tiny_runs
import words

from rollenv import UsageError
from rollenv.core.interrupt import Terminated
from rollenv.rollout.records import storage
from rollenv.rollout.records.stored import stored_episodes
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers.config import load_config
from rollenv.trainers.preflight import preflight
from rollenv.trainers.run_dir import RunDir, RunDirError
from rollenv.trainers.sources.stored_rows import read_stored_rows, stored_row
from rollenv.trainers.stored_episodes import Epochs
from rollenv.trainers.trainer import Trainer

SAID = [{"role": "user", "content": "what is 2 + 3"}, {"role": "assistant", "content": "5"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_runs.chat_model(tmp_path_factory.mktemp("a chat model"))


def rows_at(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions(count):
    return [
        {"messages": [{"role": "user", "content": f"what is {n} + 3"}, {"role": "assistant", "content": f"{n + 3}"}]}
        for n in range(count)
    ]


def sft(model, data, run, *settings, recipe="sft", algorithm="sft"):
    small = ["threads=1", "batches.size=4", "eval.every=2", "checkpoint_every=2", "optimizer.lr=1e-2"]
    given = [f"algorithm={algorithm}", f"model={model}", f"batches.data={json.dumps([str(data)])}", f"run_dir={run}"]
    config = load_config(recipe, [*given, *small, *settings])
    return Trainer(config, RunDir.create(config, recipe))


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [
    {"messages": SAID}, {"messages": json.dumps(SAID)}, {"prompt": "what is 2 + 3", "completion": "5"},
    {"prompt": SAID[:1], "completion": SAID[1:]}, {"instruction": "what is 2 + 3", "input": "", "output": "5"},
    {"conversations": [{"from": "human", "value": "what is 2 + 3"}, {"from": "gpt", "value": "5"}]},
    {"prompt": None, "completion": None, "messages": SAID},
])  # fmt: skip
def test_the_shapes_of_other_projects_are_one_chat(row):
    read = stored_row(row, "here")
    assert [{key: message[key] for key in ("role", "content")} for message in read.chats[0]] == SAID
    assert (read.kind, read.rewards) == ("answers", (1.0,))


def test_pairs_may_repeat_the_prompt_in_both_answers():
    apart = stored_row({"prompt": "what is 2 + 3", "chosen": "5", "rejected": "6"}, "here")
    other = {**SAID[1], "content": "6"}
    whole = stored_row({"chosen": SAID, "rejected": [SAID[0], other]}, "here")
    assert apart.chats == whole.chats == stored_row({"prompt": SAID[:1], "chosen": SAID, "rejected": [other]}, "").chats


def weights(row):
    return [[message.get("weight", 1) for message in chat if message["role"] == "assistant"] for chat in row.chats]


def test_answers_of_a_prompt_are_read_and_not_learned():
    asked, more = [*SAID, {"role": "user", "content": "no"}], [{"role": "assistant", "content": "6"}]
    assert weights(stored_row({"prompt": asked, "completion": more}, "")) == [[0, 1]]
    assert weights(stored_row({"prompt": asked, "completion": [*asked, *more]}, "")) == [[0, 1]]
    assert weights(stored_row({"prompt": asked, "completion": more, "label": False}, "")) == [[0, 1]]
    other = [{**more[0], "content": "7"}]
    assert weights(stored_row({"chosen": [*asked, *more], "rejected": [*asked, *other]}, "")) == [[0, 1], [0, 1]]


def test_all_columns_of_a_prompt_are_read_once():
    brief = {"role": "system", "content": "be brief"}
    said = [brief, *SAID]
    assert stored_row({"system": "be brief", "prompt": "what is 2 + 3", "completion": "5"}, "").chats == (said,)
    pair = stored_row({"system": "be brief", "prompt": "what is 2 + 3", "chosen": "5", "rejected": "6"}, "")
    assert pair.chats[0] == said
    rejected = [brief, SAID[0], {**SAID[1], "content": "6"}]
    assert stored_row({"prompt": "what is 2 + 3", "chosen": said, "rejected": rejected}, "").chats == pair.chats
    history = stored_row({"instruction": "b?", "output": "b", "history": [["a?", "a"]]}, "")
    assert [message["content"] for message in history.chats[0]] == ["a?", "a", "b?", "b"]
    with pytest.raises(UsageError):
        stored_row({"prompt": "what is 2 + 4", "chosen": said, "rejected": rejected}, "")


def test_the_margin_of_a_pair_is_the_difference_of_its_returns():
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    assert stored_row(pair, "").rewards == (1.0, 0.0)
    assert stored_row(pair | {"margin": "0.3"}, "").rewards == (0.3, 0.0)
    for margin in (0, -1, "much", float("nan")):
        with pytest.raises(UsageError, match="margin"):
            stored_row(pair | {"margin": margin}, "")


def test_nulls_of_parquet_are_not_there(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    calls = [{"function": {"name": "f", "arguments": arguments}} for arguments in ({"x": 1}, {"y": "2"})]
    rows = [{"messages": [SAID[0], {"role": "assistant", "content": "", "tool_calls": [call]}]} for call in calls]
    table = __import__("pyarrow").Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "rows.parquet")
    read = [*read_stored_rows(tmp_path / "rows.parquet", print)]
    assert [row.chats[0][1]["tool_calls"] for row in read] == [[call] for call in calls]


def test_a_folder_says_what_is_not_read_and_refuses_twins(tmp_path, caplog):
    def refuse(error):
        raise error

    for name in ("rows.jsonl", "test.jsonl"):
        rows_at(tmp_path / name, [{"messages": SAID}])
    (tmp_path / "rows.json").write_text("[]")
    assert len([*read_stored_rows(tmp_path, refuse)]) == 1
    assert "rows.json, test.jsonl" in caplog.text
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write((tmp_path / "rows.jsonl").read_text())
    with pytest.raises(UsageError, match=r"rows\.jsonl\.gz"):
        [*read_stored_rows(tmp_path, refuse)]


def test_json_is_text_unless_it_is_a_list_of_messages():
    row = {"prompt": "[{x}] what", "completion": '[{"name": "Bob"}]'}
    assert [message["content"] for message in stored_row(row, "").chats[0]] == [*row.values()]
    assert stored_row({"prompt": json.dumps(SAID[:1]), "completion": json.dumps(SAID[1:])}, "").chats[0] == SAID


def test_columns_of_texts_say_what_others_say_as_values():
    assert stored_row({"prompt": "a", "completion": "b", "label": "False"}, "").rewards == (0.0,)
    conversation = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    assert stored_row({"system": "be short", "conversations": conversation}, "").chats[0][0]["role"] == "system"


@pytest.mark.parametrize("row", [
    {}, {"text": "only a text"}, {"messages": []}, {"messages": "no JSON"}, {"messages": SAID[:1]}, {"messages": [3]},
    {"messages": [{"role": "ghost", "content": "5"}]}, {"prompt": "x", "chosen": "5", "rejected": "5"},
    {"prompt": "x", "completion": "5", "label": "perhaps"}, {"prompt": "x", "completion": []},
    {"messages": SAID, "tools": "{}"}, {"messages": SAID, "tools": [3]}, {"messages": SAID, "tools": [{}]},
    {"messages": SAID, "tools": [{"function": None}]}, {"instruction": "a", "input": 5, "output": "b"},
], ids=repr)  # fmt: skip
def test_a_row_of_no_known_shape_is_named(row):
    with pytest.raises(UsageError, match=r"^rows\.jsonl, row 3: "):
        stored_row(row, "rows.jsonl, row 3")


@pytest.mark.parametrize("name", ["images", "image"])
def test_pictures_of_a_row_are_not_left_out(name):
    with pytest.raises(UsageError, match=r"^rows\.parquet, row 3: "):
        stored_row({"messages": SAID, name: [{"bytes": b"x"}]}, "rows.parquet, row 3")
    with pytest.raises(UsageError, match="1 pictures for 0 places"):
        stored_row({"messages": SAID, name: [np.zeros((4, 4, 3), np.uint8)]}, "")
    with pytest.raises(UsageError, match=r"^row 1: .*cannot be read"):
        stored_row({"messages": SAID, name: "gone.png"}, "row 1")
    assert stored_row({"messages": SAID, name: []}, "").chats == (SAID,)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"messages": [SAID[0], SAID[1], SAID[1]]}, "answer after another"),
        ({"messages": [SAID[1]]}, "nothing that asks"),
        ({"messages": [SAID[0], {**SAID[1], "content": " "}]}, "empty answer"),
        ({"messages": [{**SAID[0], "content": [{"type": "image"}]}, SAID[1]]}, "text"),
        ({"messages": [SAID[0], {**SAID[1], "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]}, "JSON"),
        ({"messages": [SAID[0], {**SAID[1], "tool_calls": 3}]}, "list of calls"),
        ({"messages": [SAID[0], {**SAID[1], "tool_calls": ["x"]}]}, "tool call is an object"),
        ({"messages": [SAID[0], {**SAID[1], "tool_calls": [{"function": "x"}]}]}, "tool call is an object"),
        ({"messages": [SAID[0], {**SAID[1], "weight": "abc"}]}, "weight"),
        ({"messages": [SAID[0], {**SAID[1], "weight": -1}]}, "weight"),
        ({"messages": [SAID[0], {**SAID[1], "content": "5 " * 300}]}, "the model's context has"),
    ],
)
def test_a_row_that_cannot_be_learned_stops_the_run_before_it_begins(model, tmp_path, bad, why):
    file = rows_at(tmp_path / "rows.jsonl", [*questions(3), bad])
    with pytest.raises(UsageError, match=rf"row 4.*{why}|{why}.*row 4|{why}") as error:
        sft(model, file, tmp_path / "run")
    assert "row 4" in str(error.value) or "row:rows.jsonl, row 4" in str(error.value)


def test_an_empty_completion_is_no_row_for_a_model_without_chats_either(model, tmp_path):
    file = rows_at(tmp_path / "rows.jsonl", [{"prompt": "2 + 3", "completion": " "}])
    with pytest.raises(UsageError, match="row 1: its answer is empty"):
        sft(model, file, tmp_path / "run", "prompt.kind=step", "prompt.chat=false")


def test_rows_that_cannot_be_learned_may_be_dropped_and_are_counted(model, tmp_path, caplog):
    long = {"messages": [SAID[0], {**SAID[1], "content": "5 " * 300}]}
    empty, ghost = {"messages": [SAID[0], {**SAID[1], "content": ""}]}, {"messages": [{"role": "ghost"}]}
    file = rows_at(tmp_path / "rows.jsonl", [*questions(3), long, empty, ghost])
    with sft(model, file, tmp_path / "run", "batches.unusable=drop", "batches.held_out=0") as trainer:
        assert len(trainer.batches.groups) == 3
        trainer.fit()
        assert trainer.rows[-1]["unusable"] == 3
    assert {f"rows.jsonl, row {n}" in caplog.text for n in (4, 5, 6)} == {True}


def test_chats_that_a_tiny_model_cannot_read_are_refused_before_anything_is_played(tmp_path):
    talk = {"messages": [*SAID, *SAID]}
    file = rows_at(tmp_path / "rows.jsonl", [*questions(1), talk])
    chosen = [f"batches.data={json.dumps([str(file)])}", "algorithm=sft"]
    with pytest.raises(UsageError, match=r"row 2.*no chat template"):
        preflight(load_config(words.ID, chosen))
    preflight(load_config(words.ID, [*chosen, "prompt.kind=conversation"]))
    preflight(load_config(words.ID, [*chosen, "batches.unusable=drop"]))


def test_episodes_that_are_left_out_are_counted_by_reason(model, tmp_path, caplog):
    turn = Turn((5, 6), (), (), 1.0, "", "")
    episodes = [
        Trajectory(Task("a:b", 0), [turn], "terminated"),
        Trajectory(Task("a:b", 1), [], "failed"),
        Trajectory(Task("a:b", 2), [replace(turn, prompt_ids=())], "terminated"),
        Trajectory(Task("a:b", 3), [replace(turn, prompt_ids=())], "terminated"),
    ]
    storage.write(tmp_path / "episodes.jsonl", episodes)
    with sft(model, tmp_path / "episodes.jsonl", tmp_path / "run", "batches.held_out=0"):
        assert "1 episodes are left out, which failed" in caplog.text
        assert "2 episodes are left out, which have neither tokens nor messages" in caplog.text


def test_rows_of_which_none_is_held_out_are_said(model, tmp_path, caplog):
    file = rows_at(tmp_path / "rows.jsonl", questions(3))
    with sft(model, file, tmp_path / "run", "batches.held_out=0"):
        assert "held out" not in caplog.text
    with sft(model, file, tmp_path / "other", "batches.held_out=0.001"):
        assert "none of 3 rows is held out (batches.held_out=0.001)" in caplog.text


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_run_on_rows_is_named_by_its_algorithm(model, tmp_path, monkeypatch, algorithm):
    monkeypatch.chdir(tmp_path)
    config = load_config("sft", [f"algorithm={algorithm}", f"model={model}"])
    assert RunDir.create(config, "sft").path.name == f"{algorithm}-1"


def test_each_row_is_seen_once_in_an_epoch():
    epochs = Epochs(range(33), 0, 32)
    for number in range(0, 6, 2):
        assert sorted([*epochs.batch(number), *epochs.batch(number + 1)]) == [*range(33)]


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_preferences_need_their_columns(model, tmp_path, algorithm):
    with pytest.raises(UsageError, match=r"row 1: .*columns"):
        sft(model, rows_at(tmp_path / "rows.jsonl", questions(3)), tmp_path / "run", algorithm=algorithm)


def test_episodes_with_equal_returns_are_no_preferences(model, tmp_path):
    turn = Turn((5, 6), (7,), (0.0,), 1.0, "", "")
    file = tmp_path / "same.jsonl"
    storage.write(file, [Trajectory(Task("a:b", 0), [turn], "terminated", member=member) for member in range(2)])
    with pytest.raises(UsageError, match="no pair"):
        sft(model, file, tmp_path / "run", algorithm="dpo")


def test_labels_that_are_all_one_teach_nothing(model, tmp_path):
    rows = [{"prompt": f"what is {n}", "completion": "5", "label": True} for n in range(5)]
    with pytest.raises(UsageError, match="equal"):
        sft(model, rows_at(tmp_path / "rows.jsonl", rows), tmp_path / "run", algorithm="kto")


def test_a_pool_that_compares_nothing_says_what_to_do(model, tmp_path, caplog):
    played = [Trajectory(Task("a:b", 0), [Turn((5, 6), (7, n), (0.0, 0.0), 0.0, "", "")], "terminated") for n in (8, 9)]
    storage.write(tmp_path / "alike.jsonl", played)
    with pytest.raises(UsageError, match="no pair"):
        sft(model, tmp_path / "alike.jsonl", tmp_path / "run", algorithm="kto")
    storage.write(tmp_path / "once.jsonl", played[:1])
    with pytest.raises(UsageError, match="nothing to train on"):
        sft(model, tmp_path / "once.jsonl", tmp_path / "another run", algorithm="dpo")
    assert "1 episodes are left out, which are the only ones of their tasks" in caplog.text
    storage.write(tmp_path / "texts.jsonl", [replace(played[0], turns=[replace(played[0].turns[0], prompt_ids=())])])
    with pytest.raises(UsageError, match="rollenv export"):
        preflight(load_config("sft", ["algorithm=dpo", f"model={model}", f"batches.data={tmp_path / 'texts.jsonl'}"]))


# -- training ----------------------------------------------------------------------------------------------------------


def test_only_answers_are_learned_and_messages_of_weight_0_are_read(model, tmp_path):
    again = [{"role": "user", "content": "and"}, {"role": "assistant", "content": "up", "weight": 0}]
    last = [{"role": "user", "content": "so"}, {"role": "assistant", "content": "down", "train": True}]
    file = rows_at(tmp_path / "rows.jsonl", [{"messages": [*SAID, *again, *last]}])
    with sft(model, file, tmp_path / "run", "batches.held_out=0") as trainer:
        data = trainer.learner.compute_advantages(trainer.batches.groups, {})
        tokenizer = trainer.state.base_agent.tokenizer
        (sample,) = data.samples
        assert tokenizer.decode(sample.ids[sample.mask]) == "5<|im_end|>down<|im_end|>"
        whole = tokenizer.apply_chat_template([*SAID, *again, *last], tokenize=False).rstrip()
        assert tokenizer.decode(sample.ids) == whole
        assert data.drift == 0


def test_every_row_is_read_once_in_an_epoch_and_held_out_rows_never(model, tmp_path):
    file = rows_at(tmp_path / "rows.jsonl", questions(30))
    with sft(model, file, tmp_path / "run", "batches.epochs=2", "batches.held_out=0.3") as trainer:
        batches, rows = trainer.batches, len(trainer.batches.groups)
        assert rows + len(batches.held_out) == 30
        assert trainer.config.iterations == -(-2 * rows // 4)
        seen = [id(group) for _ in range(trainer.config.iterations) for group in batches.next({})]
        assert sorted(seen[:rows]) == sorted(map(id, batches.groups))
        assert sorted(seen[rows : 2 * rows]) == sorted(map(id, batches.groups))
        assert seen[:rows] != seen[rows : 2 * rows]


@pytest.mark.parametrize(
    "algorithm",
    ["sft", "dpo", *(pytest.param(name, marks=pytest.mark.integration) for name in ("ipo", "simpo", "kto"))],
)
def test_a_run_that_was_interrupted_goes_on_with_equal_numbers(model, tmp_path, algorithm):
    rows = questions(20)
    if algorithm == "kto":
        rows = [{"prompt": f"what is {n}", "completion": f"{n}", "label": n % 2 == 0} for n in range(20)]
    elif algorithm != "sft":
        rows = [{"prompt": f"what is {n}", "chosen": f"{n}", "rejected": f"{n + 1} 2"} for n in range(20)]
    file = rows_at(tmp_path / "rows.jsonl", rows)
    settings = ("iterations=7", "batches.held_out=0.2")
    with sft(model, file, tmp_path / "whole", *settings, algorithm=algorithm) as whole:
        whole.fit()
    trainer = sft(model, file, tmp_path / "cut", *settings, algorithm=algorithm)
    with trainer:
        trainer.watch = _interrupt_at(5)
        with pytest.raises(Terminated):
            trainer.fit()
    del trainer
    run, config = RunDir.resume(tmp_path / "cut")
    with Trainer(config, run) as resumed:
        resumed.fit()
    expected = tiny_runs.numbers(tmp_path / "whole")
    assert tiny_runs.numbers(tmp_path / "cut") == expected
    if algorithm == "sft":
        losses = [row["eval/loss"] for row in expected if "eval/loss" in row]
        assert losses[-1] < losses[0]
    else:
        assert {"pairs", "rewards/chosen"} <= expected[-1].keys()


def _interrupt_at(iteration):
    def watch(stage, done, total, numbers):
        if (stage, done) == ("training", iteration):
            raise Terminated

    return watch


def test_changed_rows_are_not_trained_on_by_a_resumed_run(model, tmp_path):
    file = rows_at(tmp_path / "rows.jsonl", questions(8))
    with sft(model, file, tmp_path / "run", "iterations=2") as trainer:
        trainer.fit()
    del trainer
    rows_at(file, questions(9))
    run, config = RunDir.resume(tmp_path / "run")
    with pytest.raises((UsageError, RunDirError), match="changed since"):
        run.extend(config, config.model_copy(update={"iterations": 4}))


# -- an expert, and stored episodes ------------------------------------------------------------------------------------

EXPERT = ["batches.kind=stored", "batches.episodes=20", "eval.episodes=4", "batches.held_out=0", "env.kwargs={}"]
EXPERT += ["eval.kwargs={}", f"env.id={words.ID}", "rollout.max_new_tokens=8", "iterations=2"]


@pytest.mark.parametrize("prompt", [
    ["prompt.kind=conversation"], ["prompt.template='{observation}>'", "prompt.chat=true"],
    ["prompt.template='{observation}>'", "prompt.chat=false"],
])  # fmt: skip
def test_an_experts_episodes_have_the_tokens_that_the_model_reads_in_play(model, tmp_path, prompt):
    """A model that says the expert's words is shown the same tokens by the trainer's player."""
    with sft(model, "oracle", tmp_path / "run", *EXPERT, *prompt, recipe="sokoban") as trainer:
        (tmp_path / "found.jsonl").write_bytes((tmp_path / "run" / "demonstrations.jsonl").read_bytes())
        agent = trainer.state.base_agent
        for trajectory in stored_episodes(tmp_path / "found.jsonl"):
            assert trajectory.success
            session = agent.start(None, 0)
            for turn in trajectory.turns:
                assert session.ask(turn.observation, {"suffix": turn.observation}) == turn.prompt_ids
                assert agent.decode(turn.response_ids) == turn.text
                assert turn.response_ids[-1] == agent.tokenizer.eos_token_id
                session.take(turn.observation, turn.prompt_ids, _said(turn))


def _said(turn):
    from rollenv.agents.engines.base import Response

    return Response(list(turn.response_ids), list(turn.logprobs))


def test_random_actions_of_a_noisy_expert_are_played_and_not_imitated(model, tmp_path):
    settings = (*EXPERT, "prompt.kind=conversation", "batches.noise=0.5")
    with sft(model, "oracle", tmp_path / "run", *settings, recipe="sokoban") as trainer:
        played = [*stored_episodes(tmp_path / "run" / "demonstrations.jsonl")]
        noisy = sum(len(t.record["random_turns"]) for t in played)
        learned = [turn for group in trainer.batches.groups for t in group for turn in t.turns]
        assert 0 < noisy < sum(len(t.turns) for t in played)
        assert len(learned) == sum(len(t.turns) for t in played) - noisy
        assert all(turn.text == turn.observation for turn in learned)


def test_stored_episodes_train_to_the_loss_of_the_run_they_are_from(model, tmp_path):
    settings = (*EXPERT, "prompt.kind=conversation")
    with sft(model, "oracle", tmp_path / "run", *settings, recipe="sokoban") as trainer:
        trainer.fit()
    file = tmp_path / "run" / "demonstrations.jsonl"
    storage.write(tmp_path / "episodes.parquet", stored_episodes(file))
    for number, data in enumerate((file, tmp_path / "episodes.parquet")):
        keep = [s for s in settings if not s.startswith("batches.episodes")]
        with sft(model, data, tmp_path / f"run {number}", *keep, recipe="sokoban") as again:
            again.fit()
        assert [row.get("loss") for row in again.rows] == [row.get("loss") for row in trainer.rows]
    with pytest.raises(UsageError, match="nothing to train on"):
        sft(model, file, tmp_path / "none", *keep, "batches.where='turns > 99'", recipe="sokoban")


def test_tokens_of_another_tokenizer_are_refused(model, tmp_path):
    turn = Turn((5, 6), (7, 8), (0.0, 0.0), 1.0, "quite another text", "")
    storage.write(tmp_path / "other.jsonl", [Trajectory(Task("test:Words-v0", 0), [turn], "terminated", success=True)])
    with pytest.raises(UsageError, match=r"another tokenizer.*export"):
        sft(model, tmp_path / "other.jsonl", tmp_path / "run")


def test_a_saved_model_goes_on_with_its_own_prompt(model, tmp_path):
    with sft(
        model, "oracle", tmp_path / "run", *EXPERT, "prompt.template='{observation}!'", recipe="sokoban"
    ) as trainer:
        trainer.fit()
    config = load_config(words.ID, [f"model={tmp_path / 'run'}"])
    assert (config.prompt.template, config.prompt.examples, config.rollout.max_new_tokens) == ("{observation}!", 0, 8)
    preflight(config)


def test_pairs_of_played_groups_are_learned(model, tmp_path):
    settings = [
        "algorithm=dpo", f"env.id={words.ID}", f"model={model}", "rollout.groups_per_batch=4", "rollout.group_size=4",
        "prompt.kind=conversation", "rollout.max_new_tokens=4", "threads=1", "eval.episodes=4", "iterations=2",
        "optimizer.lr=1e-2", "env.kwargs={}", "eval.kwargs={}",
    ]  # fmt: skip
    with tiny_runs.start(tmp_path / "run", settings) as trainer:
        trainer.fit()
        rows = [row for row in trainer.rows if "pairs" in row]
    assert rows[0]["pairs"] > 0
    assert rows[0]["margin"] == pytest.approx(0, abs=1e-6)  # the policy is the reference
