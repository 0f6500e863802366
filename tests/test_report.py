"""The page of a run, in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollenv.agents.base import OracleAgent
from rollenv.report import render_report
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.manager import RolloutManager

HOSTILE = '</script><script>document.title="stolen"</script><img src=x onerror="document.title=1">&amp;\u2028'


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Iterator[Any]:
    """A Chromium page showing an oracle's episodes, one of which carries hostile text."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Debian's chromium is not installed")
    from playwright.sync_api import sync_playwright

    agent = OracleAgent()
    played = evaluate(
        agent, "game:Sokoban-v0-easy", {}, n=3, seed=0, manager=RolloutManager(agent, keep_views=True)
    ).trajectories
    episodes = [{"iteration": i, **t.to_dict()} for i, t in enumerate(played)]
    episodes[0]["turns"][0]["text"] = HOSTILE
    metrics = [
        {"iteration": i, "success": i / 10, "eval/success": i / 10, "eval/low": 0.0, "eval/high": 1.0}
        for i in range(10)
    ]
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render_report(f"A run {HOSTILE}", metrics=metrics, episodes=episodes, settings={"x": HOSTILE}))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.problems = []
        tab.on("pageerror", lambda error: tab.problems.append(str(error)))
        tab.on("request", lambda request: tab.problems.append(request.url) if request.url != file.as_uri() else None)
        tab.goto(file.as_uri())
        yield tab
        browser.close()


def test_it_shows_curves_and_settings_and_loads_nothing(page):
    assert page.locator("#curves svg polyline").count() >= 2
    assert "90.0 %" in page.inner_text("#summary")
    assert page.problems == []


def test_text_from_an_episode_stays_text(page):
    assert page.title() == f"A run {HOSTILE}"
    page.locator(".list button").last.click()
    page.get_by_text("▶").click()
    page.get_by_text("◀").click()
    assert HOSTILE.split("\u2028")[0] in page.inner_text("#episodes")
    assert page.locator("img").count() == 0


def test_an_episode_can_be_stepped_through_to_its_end(page):
    page.locator(".list button").first.click()
    first = page.inner_text("pre.view")
    assert "P" in first
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("pre.view") != first
    assert "Solved" in page.inner_text("#episodes")
    assert page.locator(".controls .dim").inner_text() == "end"


def test_view_writes_the_page_of_a_run(tmp_path: Path, rollenv_command):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"iteration": 0, "eval/success": 0.5}) + "\n")
    done = rollenv_command("view", "run")
    assert done.stdout.strip() == "run/report.html"
    assert "eval/success" in (tmp_path / "run" / "report.html").read_text()
