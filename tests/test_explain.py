"""What happened in a run, in sentences: which facts they name, and that every link leads to what it names."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from stored_runs import HOSTILE, keep, trajectory, updated

from rollenv.core.errors import RollenvError
from rollenv.report.explain import explain, markdown
from rollenv.report.story import Story, Told, read_story
from rollenv.trainers.alarms import alarms


def told(*, reward: float = 1.0, part: int = 0, iteration: int = -1, number: int = 1, **changes: Any) -> Told:
    status = changes.pop("status", "solved" if reward else "wrong")
    return Told(part, iteration, changes.pop("task", "a seed 1"), status, changes.pop("failure", ""), reward,
                changes.pop("replays", 0), changes.pop("cut", 0), number=number, **changes)  # fmt: skip


def trained(*rows: dict[str, Any], episodes: tuple[Told, ...] = (), **changes: Any) -> Story:
    lines = [(n, {"iteration": n - 1, **row}) for n, row in enumerate(rows, 1)]
    return Story(
        "run",
        "training",
        "report.html",
        "",
        {"iterations": len(rows) - 1},
        metrics=lines,
        episodes=[*episodes],
        **changes,
    )


def updates(**episode: Any) -> Story:
    return trained({}, episodes=(told(part=1, iteration=3, **episode),))


ROW, UPDATE, GAP = "metrics.jsonl#L{}", "report.html#it=3&of=update&ep=1", "&colour=difference"


def played(*episodes: Told, **changes: Any) -> Story:
    return Story("run", "evaluation", "report.html", result={"n": 1}, episodes=[*episodes], **changes)


def evaluated(*shares: float) -> tuple[dict[str, float], ...]:
    return tuple({"eval/success": s, "eval/low": max(0, s - 0.1), "eval/high": min(1, s + 0.1)} for s in shares)


@pytest.mark.parametrize(
    ("story", "says", "link"),
    [
        (trained(*evaluated(0.2, 0.9)), "Success on unseen tasks rose from 20 % to 90 %", ROW.format(2)),
        (trained(*evaluated(0.5, 0.55)), "overlap, so this may be chance", ROW.format(1)),
        (trained(*evaluated(0.2, 0.9, 0.4, 0.5)), "fell most from iteration 1 to 2: -50.0 points", ROW.format(3)),
        (trained(*({"reward": r} for r in (1, 2, 0.5, 0.5))), "It fell most around iteration 2", ROW.format(3)),
        (trained({}, {"taught_groups": 0}), "0 % of the groups taught", ROW.format(2)),
        (
            trained({}, {"taught_groups": 0.9, "too_hard": 0.4, "too_easy": 0.1}),
            "90 % of the groups taught; all failed in 40 %, all succeeded in 10 %, and such groups taught, too",
            ROW.format(2),
        ),
        (played(told(status="wrong")), "the environment may never say", "run"),
        (trained({}, {"dropped/repetition": 3}), "3 episodes were not trained on for repetition", ROW.format(2)),
        (trained({}, {"failed": 2}, {"failed": 5}), "7 episodes failed in training; most in", ROW.format(3)),
        (trained({}, {"logprob_drift": 0.3}), "differ by 0.3 nats a token", ROW.format(2)),
        (trained({}, {"staleness/mean": 0.5, "staleness/max": 2}), "were 2 updates old", ROW.format(2)),
        (trained({}, alarms=[(2, "drift: bad")]), "drift: bad", ROW.format(2)),
        (trained({}), "No alarm was raised", "run"),
        (trained({}, {"trained_samples": 0}), "1 iteration gave no learning signal", ROW.format(2)),
        (trained(), "It has no iteration yet", "run"),
        (trained({}, episodes=(told(iteration=0, replays=1),)), "needed a replay", "report.html#it=0&ep=1"),
        (updates(why=("",), gaps=(0.5, 5), widest=(0.2, 2, 7)), "5 stored tokens", f"{UPDATE}&turn=2&token=7{GAP}"),
        (updates(why=("no advantage",)), "all members had reward 1", UPDATE),
        (updates(why=("",), stale=2), "weights up to 2 updates older", UPDATE),
        (updates(why=("",), stale=2), "no stored token was trained on with the weights that sampled it", "run"),
        (updates(why=("dropped: truncated",)), "did not teach: dropped: truncated", UPDATE),
        (trained({}, damaged=2), "2 lines of its files could not be read", "run"),
        (played(told(), told(reward=0.0, number=2)), "1 of 2 episodes were solved: 50 %", "report.html#ep=1"),
        (played(told(), told(status="error", number=2)), "1 of 1 episodes were solved: 100 %", "report.html#ep=1"),
        (played(told(status="error", failure="hung")), "1 stored episode failed: hung", "report.html#ep=1"),
        (played(told(), told(reward=math.nan, number=2)), "The mean reward is 1, from 1 to 1", "report.html#ep=1"),
        (played(told(reward=math.nan)), "had a reward that is no finite number", "report.html#ep=1"),
        (trained({"failed": 0}), "No limit ended an episode in training, and none failed", ROW.format(1)),
        (played(told(cut=3)), "had an answer that was cut", "report.html#ep=1&turn=3"),
        (played(told(), told(reward=0.0, number=2), told(task="b seed 2", number=3)),
         "solved in every episode: 1; in none: 0", "report.html#ep=3"),
        (played(told(), again=2), "2 episodes came up again", "run"),
        (played(told()), "Nothing was cut, failed, replayed or played again", "run"),
        (played(), "No episode has been stored", "run"),
    ],
)  # fmt: skip
def test_a_fact_becomes_a_sentence_with_its_source(story: Story, says: str, link: str):
    said = explain(story)
    found = [each for each in said if says in each.text]
    assert found, [each.text for each in said]
    assert link in [address for _, address in found[0].links]
    assert all(each.links for each in said), "no sentence without a source"


def test_nothing_is_said_of_what_was_not_trained_on_or_does_not_differ():
    idle = [each.text for each in explain(updates(why=("no advantage",)))]
    assert not [text for text in idle if text.startswith("Stored tokens were sampled")]
    alone = [each.text for each in explain(updates(why=("",)))]
    assert "1 of 1 stored groups taught" in alone


def test_a_run_that_was_stopped_is_told_from_a_finished_one():
    done, stopped = trained({}, {}), trained({}, {})
    stopped.settings["iterations"] = 9
    assert explain(done)[0].text == "All 1 iteration ran"
    assert "1 of 9 iterations ran: it was stopped" in explain(stopped)[0].text


def read(path: Path) -> Story:
    return read_story(path, alarms)


def addresses(text: str) -> list[str]:
    return re.findall(r"(?<!\\)\]\(([^)]*)\)", text)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = keep(tmp_path / "läuft [b](x)", trajectory(1), trajectory(2, success=False), iteration=0)
    rows = [
        {"iteration": i, "reward": 0.5, "reward_std": 0.0, "taught_groups": i / 4, "truncated": 0.25}
        for i in range(1, 5)
    ]
    rows = [{"iteration": 0, "eval/success": 0.5, "eval/low": 0.1, "eval/high": 0.9}, *rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 5, "rew')
    (run / "config.json").write_text(json.dumps({"iterations": 9, "env": {"id": HOSTILE}, "model": {"path": "tiny"}}))
    (run / "updates.jsonl").write_text(
        "".join(updated(i, seed=i, member=m, version=0, steps=0) for i in (1, 2) for m in (0, 1))
    )
    return run


def test_every_link_leads_to_a_row_or_an_episode(run: Path):
    story = read(run)
    text = markdown(story, explain(story))
    assert len(text.splitlines()) < 60
    assert "constant\\_reward" in text
    assert "1 line of its files could not be read" in text
    assert "0.4 nats" in text, "engine and trainer, from the tokens of the update"
    assert "<script>" not in text.replace("\\<", "")
    assert "\u202e" not in text
    lines = (run / "metrics.jsonl").read_text().splitlines()
    episodes = {(told.part, told.iteration, told.number) for told in story.episodes}
    for address in addresses(text):
        file, _, place = address.partition("#")
        assert file == "report.html" or (run / file).is_file()
        if place.startswith("L"):
            json.loads(lines[int(place[1:]) - 1])
        elif place:
            at = dict(part.split("=") for part in place.split("&"))
            assert (int("of" in at), int(at.get("it", -1)), int(at["ep"])) in episodes


def test_the_page_and_the_sentences_number_episodes_alike(show: Any, run: Path):
    from rollenv.report import write_report

    again = keep(run, trajectory(1, success=False, status="truncated"), iteration=0)
    with (again / "episodes.jsonl").open("a") as file:  # its own reward counts, also 0
        file.write(json.dumps(trajectory(7).to_dict() | {"reward": 0.0, "iteration": 0}) + "\n")
    story = read(again)
    assert story.again == 1
    tab = show(write_report([again], again / "report.html"))
    found = tab.evaluate("addresses.map((address, row) => [address, columns.reward[row], status(row)])")
    assert [
        [f"it={t.iteration}{'&of=update' * t.part}&ep={t.number}", t.reward, t.status] for t in story.episodes
    ] == found


def test_a_moved_run_is_explained_alike(run: Path, tmp_path: Path):
    before = [str(each) for each in explain(read(run))]
    shutil.move(run, tmp_path / "elsewhere")
    assert [str(each) for each in explain(read(tmp_path / "elsewhere"))] == before


@pytest.mark.parametrize("files", [{}, {"sweep.json": "{}"}, {"report.html": ""}])
def test_what_is_no_run_is_refused(files: dict[str, str], tmp_path: Path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RollenvError):
        read(tmp_path)
    with pytest.raises(RollenvError):
        read(tmp_path / "nowhere")


ODD = [5, None, "x", {"turns": 3, "version": "y"}, {"turns": [7, {"why": 5, "logprobs": "z"}], "group": []}]


@pytest.mark.parametrize("file", ["metrics.jsonl", "eval.json"])
def test_a_folder_of_runs_names_them(file: str, tmp_path: Path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    with pytest.raises(RollenvError, match=r"several runs.*one, .*other"):
        read_story(tmp_path, alarms)


def test_odd_data_is_explained_as_far_as_it_goes(tmp_path: Path):
    run = keep(tmp_path / "run")
    (run / "config.json").write_text('{"iterations": "many", "model": 5, "env": [1]}')
    (run / "metrics.jsonl").write_text(
        f'{{"iteration": 2, "reward": 1{"0" * 400}}}\n'
        '{"iteration": "x", "reward": NaN}\n{"reward": 1e999, "eval/success": "y"}\n[]\n{}\n'
    )
    lines = [json.dumps(json.loads(updated(member=n)) | {"update": update}) for n, update in enumerate(ODD)]
    (run / "updates.jsonl").write_text("\n".join([*lines, '{"task": {}, "turns": [null, {"reward": "x"}]}', "\x00"]))
    story = read(run)
    assert len(story.episodes) == len(ODD) + 1
    assert "could not be read" in markdown(story, explain(story))


def test_the_command_prints_markdown_and_json(run: Path, tmp_path: Path, rollenv_command: Any):
    said = rollenv_command("explain", str(run))
    assert said.returncode == 0
    assert "- 4 of 9 iterations ran" in said.stdout
    facts = json.loads(rollenv_command("explain", str(run), "--json").stdout)
    assert facts["kind"] == "training"
    assert {"topic", "text", "links"} == facts["sentences"][0].keys()
    record = keep(tmp_path / "played", trajectory(3, success=False)) / "episodes.jsonl"
    assert "0 of 1 episodes were solved" in rollenv_command("explain", str(record)).stdout
    wrong = rollenv_command("explain", str(tmp_path / "nowhere"))
    assert wrong.returncode == 2
    assert "nowhere" in wrong.stderr
