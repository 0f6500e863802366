"""The page of runs, in a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from stored_runs import HOSTILE, Open, keep, page_of, trajectory

import rollenv
from rollenv.agents.base import OracleAgent
from rollenv.core.registry import ENV_REGISTRY
from rollenv.envs.game.sokoban import Sokoban
from rollenv.report import open_run, summary, write_report
from rollenv.report.episodes import EpisodeIndex, shared_start
from rollenv.report.plain import LONGEST, clip, dumps, plain
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.folders import SWEEP
from rollenv.rollout.records.storage import JsonlWriter, write
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers.run_dir import RunDir, read_rows

Stored = list[dict[str, Any]]


class CrashingSokoban(Sokoban):
    """Raises in some of its episodes."""

    def _step(self, action: str) -> Any:
        if self.np_random_seed % 3 == 0 and self.turn == 2:
            raise RuntimeError("the floor gave way")
        return super()._step(action)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A noisy oracle's episodes: solved, truncated, and crashed ones."""
    folder: Path = tmp_path_factory.mktemp("runs") / "crashing"
    folder.mkdir()
    rollenv.register("report:Crash-v0", CrashingSokoban, dim_room=(6, 6), num_boxes=2, max_turns=8)
    agent = OracleAgent(0.4)
    # In a thread, because Playwright has an event loop in this one.
    with (
        JsonlWriter(folder / "episodes.jsonl") as out,
        RolloutManager(agent, keep_views=True) as manager,
        ThreadPoolExecutor(1) as thread,
    ):
        how = {"n": 9, "k": 2, "manager": manager, "watch": out.write}
        result = thread.submit(evaluate, agent, "report:Crash-v0", **how).result()
    about = {"env": "report:Crash-v0", "agent": "noisy:0.4", "n": 9, "k": 2, "seed": 0}
    (folder / "eval.json").write_text(json.dumps(about))
    (folder / "result.json").write_text(json.dumps(about | result.to_dict()))
    write_report([folder], folder / "report.html")
    yield folder
    del ENV_REGISTRY["report:Crash-v0"]


@pytest.fixture(scope="module")
def stored(evaluation: Path) -> Stored:
    return [json.loads(line) for line in (evaluation / "episodes.jsonl").read_text().splitlines()]


def rows(tab: Any) -> int:
    return int(tab.evaluate("state.rows.length"))


def test_episodes_are_filtered_and_sorted(show: Open, evaluation: Path, stored: Stored):
    tab = show(evaluation / "report.html")
    unsolved = [e for e in stored if not e["success"]]
    crashed = [e for e in stored if e["status"] == "failed"]
    assert len(crashed) == 6
    assert {e["failure"] for e in crashed} == {"raised"}
    tab.get_by_role("button", name="not solved").click()
    assert rows(tab) == len(unsolved)
    tab.get_by_role("button", name="error: raised").click()
    assert rows(tab) == len(crashed)
    assert "error: raised" in tab.locator(".list .item").first.inner_text()
    assert "the floor gave way" in tab.inner_text(".fail")
    assert tab.locator(".board svg").count() == 1, "the turns before the crash are there"
    tab = show(evaluation / "report.html")
    tab.get_by_placeholder("seed").fill("seed 4")
    assert rows(tab) == sum(e["task"]["seed"] == 4 for e in stored)
    tab.get_by_placeholder("seed").fill("report:crash")
    assert rows(tab) == len(stored)
    tab.get_by_label("Turns, from").fill("3")
    tab.get_by_label("Turns, to").fill("7")
    lengths = [len(e["turns"]) for e in stored if 3 <= len(e["turns"]) <= 7]
    assert rows(tab) == len(lengths)
    tab.get_by_label("Sort by").select_option("Most turns")
    assert tab.evaluate("state.rows.map(row => columns.turns[row])") == sorted(lengths, reverse=True)
    tab.get_by_label("Turns, from").fill("")
    tab.get_by_label("Turns, to").fill("")
    tab.get_by_label("Reward, from").fill("0.9")
    assert rows(tab) == sum(sum(t["reward"] for t in e["turns"]) >= 0.9 for e in stored)
    tab.get_by_label("Reward, to").fill("-50")
    assert rows(tab) == 0
    assert "No episode passes" in tab.inner_text(".list")


def test_the_map_has_a_cell_for_every_episode_and_leads_to_it(show: Open, evaluation: Path, stored: Stored):
    tab = show(evaluation / "report.html")
    canvas = tab.locator(".mapbox canvas")
    canvas.scroll_into_view_if_needed()
    seen = set()
    box = canvas.bounding_box()
    for y in range(26, int(box["height"]), 8):
        for x in range(60, min(int(box["width"]), 420), 8):
            canvas.click(position={"x": x, "y": y})
            seen.add(tab.evaluate("state.current"))
        if len(seen) == len(stored):
            break
    assert len(seen) == len(stored)
    canvas.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert tab.evaluate("state.current") in range(len(stored))


def test_an_episode_is_played_by_keyboard_slider_and_buttons(show: Open, evaluation: Path, stored: Stored):
    tab = show(evaluation / "report.html")
    tab.evaluate("select(columns.status.indexOf(0))")
    episode = stored[tab.evaluate("state.current")]
    tab.wait_for_selector(".controls")
    where = tab.locator(".controls span.dim")
    board = tab.locator(".board svg")
    first = board.inner_html()
    tab.locator(".list").focus()
    tab.keyboard.press("ArrowRight")
    assert where.inner_text() == f"turn 2 of {len(episode['turns'])}"
    assert episode["turns"][1]["observation"] in tab.inner_text(".said")
    tab.keyboard.press("End")
    assert where.inner_text().startswith("end")
    assert board.inner_html() != first
    tab.keyboard.press("Home")
    assert board.inner_html() == first
    tab.get_by_label("Speed").select_option("5")
    tab.locator(".list").focus()
    tab.keyboard.press(" ")
    expect(where).to_have_text(re.compile("^end"), timeout=20_000)
    tab.get_by_label("Turn", exact=True).fill("1")
    assert where.inner_text().startswith("turn 2")
    tab.get_by_label("Previous turn").click()
    assert where.inner_text().startswith("turn 1")
    before = tab.evaluate("state.current")
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("state.current") != before


def test_the_tabs_show_prompt_reply_tokens_and_tool_calls(show: Open, tmp_path: Path):
    raw = '<think>hm</think>go\n<tool_call>{"name": "look", "arguments": {"far": true}}</tool_call>'
    turn = Turn(
        (), (3, 4, 5), (-0.5, -math.inf, 0.0), 1.0, "go", "a room", raw=raw,
        messages=({"role": "system", "content": "be brief"}, {"role": "user", "content": "a room"}),
    )  # fmt: skip
    later = Turn((1,) * 9, (3,), (-0.5,), 1.0, "stop", "a wall", finish="length")
    played = Trajectory(Task("game:GuessTheNumber-v0-easy", 1), [turn, later], "truncated", final_observation="out")
    tab = show(page_of(keep(tmp_path / "run", played)))
    panel = tab.locator("[role=tabpanel]")
    tab.wait_for_selector("[role=tabpanel]")
    assert raw in panel.inner_text()
    tab.get_by_role("tab", name="Prompt").click()
    assert "be brief" in panel.inner_text()
    assert "<think>" not in panel.inner_text(), "the prompt is what came before the reply"
    tab.get_by_role("tab", name="Tokens").click()
    assert "0.607 (log-probability -0.5000)" in panel.locator(".about").inner_text()
    panel.locator(".tokens span").nth(1).click()
    assert "-Infinity" in panel.locator(".about").inner_text()
    tab.get_by_role("tab", name="Conversation").click()
    assert "look(far=true)" in panel.locator(".msg.call").inner_text()
    tab.get_by_label("Next turn").click()
    tab.get_by_role("tab", name="Prompt").click()
    assert "9 tokens" in panel.inner_text() or "a wall" in panel.inner_text()
    tab.get_by_role("tab", name="Reply").click()
    assert "ended at a limit" in panel.inner_text()


def test_prompts_are_shown_as_the_model_read_them(show: Open, tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<s>": 0, "one": 1, "two": 2, "three": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<s>"))
    tokenizer.add_special_tokens(["<s>"])
    run = tmp_path / "run"
    (run / "checkpoints" / "step-000001").mkdir(parents=True)
    tokenizer.save(str(run / "checkpoints" / "step-000001" / "tokenizer.json"))
    (run / "metrics.jsonl").write_text('{"iteration": 0, "eval/success": 0.5}\n')
    turns = [Turn(p, (3, 0), (-1.0, -0.1), 0.0, "three", "?") for p in ((0, 1), (0, 1, 3, 0, 2))]
    keep(run, Trajectory(Task("game:GuessTheNumber-v0-easy", 1), turns, "terminated"), iteration=0)
    tab = show(page_of(run))
    tab.get_by_role("tab", name="Prompt").click()
    panel = tab.locator("[role=tabpanel]")
    assert panel.locator("pre").inner_text() == "<s> one"
    tab.get_by_label("Next turn").click()
    assert panel.locator("pre").inner_text() == "<s> one three <s> two"
    tab.get_by_role("tab", name="Reply").click()
    assert "three <s>" in panel.inner_text()
    tab.get_by_role("tab", name="Tokens").click()
    assert "<s>" in panel.locator(".tokens").inner_text()


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def training(tmp_path: Path) -> Path:
    run = tmp_path / "early"
    run.mkdir()
    with (run / "metrics.jsonl").open("w") as out:
        for i in range(41):
            row = {"iteration": i, "success": i / 40, "loss": math.sin(i) if i != 7 else 1e9, "kl": math.inf}
            row |= {"grad_norm": math.nan if i % 2 else 1.0, "my/own": i, "time/collect": 30.0}
            row |= {"eval/success": i / 40, "eval/low": 0.0, "eval/high": 1.0} if i % 10 == 0 else {}
            out.write(json.dumps(row) + "\n")
    (run / "about.json").write_text('{"recipe": "sokoban"}')
    (run / "config.json").write_text(json.dumps({"env": {"id": "game:Sokoban-v0-easy"}, "model": {"path": "tiny"}}))
    for iteration in (0, 10, 20, 30, 40):
        keep(run, *(trajectory(s, success=s * 10 < iteration) for s in range(4)), iteration=iteration)
    return run


def test_a_training_run_shows_before_after_and_settings_and_a_row_for_each_task(show: Open, training: Path):
    tab = show(page_of(training))
    shown = tab.locator(".tile").all()
    tiles = {t.locator(".label").inner_text().split("\n")[0]: t.locator(".value").inner_text() for t in shown}
    assert tiles["Success before RL"].startswith("0.0 %")
    assert tiles["RL added"] == "+100.0 points"
    assert tiles["Success after RL"].startswith("100.0 %")
    assert tiles["Time"] == "20 min"
    assert (tiles["Model"], tiles["Recipe"], tiles["Environment"]) == ("tiny", "sokoban", "game:Sokoban-v0-easy")
    assert rows(tab) == 20
    tab.get_by_label("Iteration", exact=True).select_option("last")
    assert rows(tab) == 4
    tab.get_by_label("Iteration", exact=True).select_option("all")
    tab.get_by_placeholder("seed").fill("seed 2")
    assert tab.evaluate("state.rows.map(row => columns.iteration[row])") == [0, 10, 20, 30, 40]
    assert tab.evaluate("state.rows.map(status)") == ["wrong", "wrong", "wrong", "solved", "solved"]


def test_curves_are_smoothed_clipped_and_leave_out_what_is_not_finite(show: Open, training: Path):
    tab = show(page_of(training))
    assert tab.locator(".chart").count() >= 4
    assert "No finite numbers" in tab.locator(".chart", has_text="KL").inner_text()
    assert "NaN" not in tab.locator("svg").first.inner_html()
    loss = tab.locator(".chart", has_text="Loss")
    assert "1 point beyond the scale" in loss.inner_text()
    ticks = [t.text_content() for t in loss.locator("svg text").all()]
    assert {"-1", "0", "1", "10", "20", "30", "40"} <= set(ticks)
    assert loss.locator("polyline").count() == 1
    tab.get_by_label("Smoothing").fill("0.8")
    assert loss.locator("polyline").count() == 2, "raw and smoothed"
    tab.get_by_label("Clip outliers").uncheck()
    assert "beyond the scale" not in loss.inner_text()
    loss.locator(".help").hover()
    assert "held out" in tab.inner_text("#tip")
    tab.get_by_text("More metrics").click()
    expect(tab.locator(".chart", has_text="my/own")).to_have_count(1)


def test_a_run_keeps_every_episode_of_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollenv.trainers.run_dir.MOST_PROMPT_IDS", 5)
    run = RunDir(tmp_path)
    played = [trajectory(0), trajectory(1, success=False), trajectory(2)]
    run.keep_episodes(0, played)
    run.keep_episodes(5, played)
    kept = read_rows(run.episodes_file)
    found = [(e["iteration"], e["task"]["seed"], e["success"]) for e in kept[:3]]
    assert found == [(0, 0, True), (0, 1, False), (0, 2, True)]
    prompts = [[len(turn["prompt_ids"]) for turn in e["turns"]] for e in kept[:3]]
    assert prompts == [[0, 0], [2, 2], [0, 0]], "the prompts of what went wrong are kept first"
    assert [turn["text"] for turn in kept[0]["turns"]] == ["up0", "up1"]
    assert [e["reward"] for e in kept[:3]] == [1.0] * 3
    run.metrics_file.write_text('{"iteration": 0}\n{"iteration": 5}\n{"itera')
    run.cut_back(0)
    assert [e["iteration"] for e in read_rows(run.episodes_file)] == [0, 0, 0]
    assert read_rows(run.metrics_file) == [{"iteration": 0}]


def test_text_from_an_episode_stays_text(show: Open, tmp_path: Path):
    more = {"view": HOSTILE, "raw": HOSTILE + "!", "messages": ({"role": HOSTILE, "content": HOSTILE},)}
    turn = Turn((), (1,), (-1.0,), 1.0, HOSTILE, HOSTILE, **more)
    ended = {"status": "failed", "error": HOSTILE, "failure": HOSTILE, "final_observation": HOSTILE}
    played = Trajectory(Task("game:Sokoban-v0-easy", 1, {HOSTILE: HOSTILE}), [turn], **ended)
    run = keep(tmp_path / "run<b>&amp;", played)
    (run / "metrics.jsonl").write_text(json.dumps({"iteration": 0, HOSTILE: 1.0, "eval/success": 0.5}) + "\n")
    (run / "config.json").write_text(json.dumps({"env": {"id": HOSTILE}, "x": HOSTILE}))
    tab = show(page_of(run))
    tab.get_by_text("More metrics").click()
    for name in ("Prompt", "Tokens", "Conversation", "Reply"):
        tab.get_by_role("tab", name=name).click()
        assert tab.locator("img").count() == 0
    shown = tab.inner_text("[role=tabpanel]")
    assert HOSTILE.split("\u2028")[0] in shown
    assert "␛[31m" in shown
    assert "\u202e" not in shown
    assert tab.title().startswith("run<b>&amp;: </script>")
    assert tab.locator("script").count() == 3, "data, one shard, the page's own"


NOT_STARTED = trajectory(turns=0, status="failed", success=False, error="it did not start")
DAMAGED = '\x00\nnull\n{"task": 5}\n{"task": {}, "turns": [null, 5, {}, {"reward": "x", "logprobs": 3}]}\n{"task": {"se'


@pytest.mark.parametrize(
    ("files", "played", "count"),
    [
        ({"eval.json": "{}"}, [], 0),
        ({"metrics.jsonl": '{"iteration": 0}\n{"iteration": NaN, "loss": NaN}\n[]\n'}, [], 0),
        ({}, [NOT_STARTED], 1),
        ({}, [trajectory()], 1),
        (
            {
                "eval.json": "[1",
                "result.json": '{"success": "x", "pass_at": {"1": 2}, "remarks": [5, ["red", 7]], '
                '"tables": [3, {"rows": [1, 2]}, {"rows": [["a"], [5]]}]}',
            },
            [trajectory(), DAMAGED],
            2,
        ),
    ],
    ids=["empty", "only_metrics", "nothing_played", "one", "damaged"],
)
def test_runs_with_little_in_them_have_a_page(show: Open, tmp_path: Path, files: Any, played: Any, count: int):
    run = keep(tmp_path / "run", *played[:1])
    for name, text in files.items():
        (run / name).write_text(text)
    with (run / "episodes.jsonl").open("a") as out:
        out.writelines(played[1:])
    tab = show(page_of(run))
    assert tab.evaluate("total") == count
    tab.wait_for_timeout(100)
    assert not count or tab.locator(".controls").count() == 1
    assert count < 2 or "4 damaged lines" in tab.inner_text("main")


def test_huge_texts_and_numbers_are_cut_to_size(show: Open, tmp_path: Path):
    turn = Turn((), (), (), math.nan, "x" * 3_000_000, "é\ud800 🙂" * 100_000, view="y" * 100_000)
    played = Trajectory(Task("game:Sokoban-v0-easy", 2**80, {"n": 2**70}), [turn], "terminated")
    played.turns += [Turn((), (), (), math.inf, "", "")]
    page = page_of(keep(tmp_path / "run", played))
    assert page.stat().st_size < 500_000
    tab = show(page)
    assert "characters are left out here" in tab.inner_text("[role=tabpanel]")
    assert str(2**80) in tab.inner_text(".player")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_sideways(show: Open, training: Path, scheme: str):
    tab = show(page_of(training), 390, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == (scheme == "dark")


def test_ten_thousand_episodes_are_an_index_and_shards_that_are_loaded_when_looked_at(show: Open, tmp_path: Path):
    turn = {"text": "up " * 40, "observation": "You moved. " * 10, "reward": 0.0}
    turn |= {"response_ids": [1] * 20, "view": "# P\n_ X"}
    run = tmp_path / "run"
    run.mkdir()
    with (run / "episodes.jsonl").open("w") as out:
        for number in range(10_000):
            task = {"env_id": "game:Sokoban-v0-easy", "seed": number // 4}
            episode = {"task": task, "member": number % 4, "status": "terminated", "success": number % 3 == 0}
            out.write(json.dumps(episode | {"turns": [turn] * 8, "reward": number / 1e4}) + "\n")
    page = page_of(run)
    assert page.stat().st_size < 1_500_000
    shards = list((run / "report_files").iterdir())
    assert len(shards) > 10
    assert max(shard.stat().st_size for shard in shards) < 1_000_000
    tab = show(page)
    tab.wait_for_selector(".board svg")
    assert len(tab.loaded) == 2, "the page and one shard"
    assert tab.locator(".list .item").count() < 40, "the list holds what is in sight"
    tab.get_by_role("button", name="not solved").click()
    assert rows(tab) == 6666
    tab.evaluate("select(9998)")
    expect(tab.locator(".player h3")).to_contain_text("seed 2499")
    assert len(tab.loaded) == 3
    keep(run)
    (run / "episodes.jsonl").write_text(json.dumps({"task": {"seed": 1}, "turns": []}) + "\n")
    page_of(run)
    assert not (run / "report_files").exists(), "a page that became small leaves nothing behind"


def test_an_episode_that_was_played_again_counts_once(tmp_path: Path):
    lost = trajectory(1, success=False, status="failed", error="gone", failure="lost")
    run = open_run(keep(tmp_path / "run", lost, trajectory(2), trajectory(1), trajectory(1, member=1)))
    shelf = EpisodeIndex(lambda _: None)
    shelf.add_run(run)
    columns = shelf.finish()["columns"]
    assert len(columns["run"]) == 3
    assert columns["status"] == [0, 0, 0]
    assert columns["at"] == [1, 2, 3]


def test_plain_data_is_json_that_cannot_end_a_script():
    odd = {"a": [math.nan, -math.inf, 2**60, True, None, "</script>&\u2028", b"?"], 5: {"deep": (1.5,)}}
    text = dumps(plain(odd))
    assert "<" not in text
    assert "\u2028" not in text
    back = json.loads(text)
    assert back["a"][:5] == ["NaN", "-Infinity", str(2**60), True, None]
    assert back["5"] == {"deep": [1.5]}
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    dumps(plain(nested))
    assert len(clip("x" * 10**6)) < LONGEST + 100
    for a, b, n in (("", "", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("abc", "abcdef", 3), ("x", "y", 0)):
        assert shared_start(a, b) == shared_start(b, a) == n


def test_a_game_names_who_plays_and_who_moves(show: Open, tmp_path: Path):
    game = trajectory(turns=3)
    game.record["seats"] = ["random", HOSTILE]
    game.turns[1].player = 1
    run = keep(tmp_path / "run", game)
    (run / "eval.json").write_text(json.dumps({"members": ["random against <b>"]}))
    tab = show(page_of(run))
    assert "random against <b>" in tab.inner_text(".player h3")
    assert "to random (seat 0)" in tab.inner_text(".said")
    tab.get_by_label("Next turn").click()
    assert "javascript:alert(1)" in tab.inner_text(".said")
    tab.get_by_role("searchbox").fill("against <b>")
    assert rows(tab) == 1
    tab.get_by_role("searchbox").fill("oracle")
    assert rows(tab) == 0


# -- several runs, the command -----------------------------------------------------------------------------------------


def test_two_runs_are_compared_by_curve_and_task(show: Open, tmp_path: Path, training: Path):
    other = tmp_path / "other" / "early"
    shutil.copytree(training, other)
    (other / "episodes.jsonl").unlink()
    keep(other, trajectory(0), trajectory(1, success=False), trajectory(9), iteration=40)
    tab = show(page_of(training, other))
    assert tab.inner_text("h1") == "early (1) against early (2)"
    assert tab.locator(".chart", has_text="Success").locator("polyline").count() >= 4
    pairs = tab.locator("section", has_text="Task by task").first
    assert "2 tasks that more than one run played" in pairs.inner_text()
    assert "early (1) better 1" in pairs.inner_text()
    assert "-100 %" in pairs.inner_text()
    pairs.get_by_role("button", name="wrong").click()
    expect(tab.locator(".player h3")).to_contain_text("early (2): seed 1")
    tab.get_by_label("Run", exact=True).select_option("early (2)")
    assert rows(tab) == 3


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e308, 10**400])
def test_rewards_that_are_no_numbers_have_a_page(tmp_path: Path, reward: float):
    run = keep(tmp_path / "run")
    (run / "episodes.jsonl").write_text(json.dumps({"task": {}, "turns": [{"reward": reward}, {"reward": reward}]}))
    assert page_of(run).is_file()


def test_success_of_an_unfinished_evaluation_is_of_what_did_not_fail(tmp_path: Path):
    keep(tmp_path / "eval", trajectory())
    run = open_run(tmp_path / "eval")
    shown = {label: value for label, value, _ in summary.tiles(run, [3, 1, 0, 4, 0, 0, 0])}
    assert shown["Success"].startswith("75.0 %")


@pytest.mark.smoke
def test_view_writes_pages_of_training_evaluation_and_several(tmp_path: Path, rollenv_command: Any):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"iteration": 0, "eval/success": 0.5}) + "\n")
    keep(tmp_path / "eval", trajectory())
    assert rollenv_command("view", "run").stdout.strip() == "run/report.html"
    assert "eval/success" in (tmp_path / "run" / "report.html").read_text()
    assert rollenv_command("view", "eval", "-o", "x.html").stdout.strip() == "x.html"
    assert rollenv_command("view", "run", "eval").stdout.strip() == "compare.html"
    wrong = rollenv_command("view", "run", "nowhere")
    assert wrong.returncode == 2
    assert "nowhere" in wrong.stderr
    assert "no folder" in rollenv_command("view", "--serve", "nowhere").stderr


def test_pictures_are_shown_as_the_model_saw_them(show: Open, tmp_path: Path):
    out = tmp_path / "seen"
    kwargs = {"images": "only", "tile": 14}
    with ThreadPoolExecutor() as threads:
        played = threads.submit(evaluate, OracleAgent(), "game:Sokoban-v0-easy", kwargs, n=2).result().trajectories
    out.mkdir()
    write(out / "episodes.jsonl", played)
    tab = show(write_report([out], out / "report.html"))
    images = tab.locator(".pictures img")
    for turn, seen in enumerate([*(turn.images for turn in played[0].turns), played[0].final_images]):
        assert images.count() == len(seen) == 1
        assert images.get_attribute("src") == seen[0].url
        assert images.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [seen[0].width, seen[0].height]
        if turn < len(played[0].turns):
            tab.get_by_label("Next turn").click()
    tab.get_by_role("tab", name="Conversation").click()
    assert tab.locator("[role=tabpanel] img").count() == len(played[0].turns) + 1, "one for each observation"
    (gone,) = played[0].turns[0].images
    (out / "pictures" / f"{gone.sha256}.png").unlink()
    tab = show(write_report([out], out / "report.html"))
    assert gone.sha256 in tab.inner_text(".pictures"), "the page says which file is missing"


def test_curves_of_seeds_may_differ_in_the_last_digit_and_are_not_smoothed(show: Open, tmp_path: Path):
    for seed in range(2):
        run = keep(tmp_path / f"seed-{seed}")
        (run / "config.json").write_text("{}")
        rows = [{"time/warm_up": 1.0, "success": 0.5}, *({"iteration": i, "success": i / 40} for i in range(40))]
        rows[1:] = [{**row, "loss": math.nextafter(0.1, seed)} for row in rows[1:]]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = [{"setting": "a", "seed": seed, "folder": f"seed-{seed}"} for seed in range(2)]
    (tmp_path / SWEEP).write_text(json.dumps({"recipe": "r", "overrides": [], "runs": runs}))
    tab = show(write_report([tmp_path], tmp_path / "report.html"))
    assert tab.evaluate("look.smooth") == 0
    assert tab.locator(".chart polyline").count() >= 3
