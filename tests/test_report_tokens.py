"""The tokens of a run on its page, in a real browser, and the addresses that lead to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from stored_runs import HOSTILE, Open, keep, page_of, trajectory, updated

from rollenv.rollout.types import Task, Trajectory, Turn


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = keep(tmp_path / "läuft", trajectory(1), trajectory(2), iteration=0)
    (run / "metrics.jsonl").write_text('{"iteration": 0, "eval/success": 1.0}\n{"iteration": 1}\n{"iteration": 2}\n')
    lines = [updated(i, member=member, seed=i) for i in (1, 2) for member in range(20)]
    (run / "updates.jsonl").write_text("".join(lines))
    return run


def facts(tab: Any) -> dict[str, str]:
    return {row.locator("th").inner_text(): row.locator("td").inner_text() for row in tab.locator(".about tr").all()}


def test_every_number_of_a_token_is_shown_and_why_it_was_not_trained_on(show: Open, run: Path):
    tab = show(page_of(run))
    assert tab.evaluate("state.rows.length") == 2, "evaluations come first"
    tab.get_by_label("Episodes", exact=True).first.select_option("of updates")
    assert tab.evaluate("state.rows.length") == 40
    tab.get_by_role("tab", name="Tokens").click()
    shown = facts(tab)
    assert shown["Engine"] == "0.905 (log-probability -0.1000)"
    assert shown["Trainer"].startswith("0.607 (log-probability -0.5000), after 1 step ")
    assert shown["Difference"] == "-0.4 nats"
    assert (shown["Advantage"], shown["Trained"], shown["Entropy"]) == ("-0.75", "yes", "0.25")
    assert shown["Staleness"] == "3: sampled by version 0, trained from version 3"
    tab.locator(".tokens span").nth(1).click()
    assert facts(tab)["Trained"] == "no: cut by the loss"
    assert facts(tab)["Trainer"] == "not computed"
    tab.get_by_label("Next turn").click()
    assert facts(tab)["Trained"] == "no: no advantage"


def test_an_address_opens_a_token_and_follows_what_is_looked_at(show: Open, run: Path):
    page = page_of(run)
    address = "#it=2&of=update&ep=3&turn=1&token=2&colour=advantage"
    tab = show(page)
    tab.evaluate(f"location.hash = {json.dumps(address)}")
    expect(tab.locator(".about")).to_contain_text("2 of 2")
    assert tab.evaluate("[columns.iteration[state.current], columns.member[state.current], state.part]") == [2, 2, 1]
    assert tab.evaluate("location.hash") == address
    for ep in (20, 1):
        tab.evaluate(f"location.hash = '#it=1&of=update&ep={ep}'")
        expect(tab.locator(".list [aria-selected=true]")).to_contain_text(f"episode {ep}, update 1")
        expect(tab.locator(".list [aria-selected=true]")).to_be_in_viewport()
    tab.evaluate(f"location.hash = {json.dumps(address)}")
    expect(tab.locator(".about")).to_contain_text("2 of 2")
    tab.locator(".tokens").focus()
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate("location.hash") == address.replace("token=2", "token=1")
    tab.keyboard.press("c")
    assert tab.evaluate("location.hash").endswith("colour=mask")
    tab.get_by_role("tab", name="Reply").click()
    assert tab.evaluate("location.hash") == "#it=2&of=update&ep=3&turn=1"
    tab.locator(".list").focus()
    tab.keyboard.press("End")
    assert tab.evaluate("location.hash") == "#it=2&of=update&ep=3&turn=end"
    for wrong in ("#it=99&ep=1", "#it=2&ep=%00&turn=-1", "#token=1"):
        tab.evaluate(f"location.hash = {json.dumps(wrong)}")
        expect(tab.get_by_role("status").filter(has_text=wrong)).to_be_visible()
    tab.evaluate("location.hash = '#it=2&of=update&ep=3&turn=77&token=900'")
    expect(tab.get_by_role("status").filter(has_text="#")).to_have_count(0)
    assert tab.locator(".controls").count() >= 1


def test_colours_have_a_legend_a_key_and_names_for_a_screen_reader(show: Open, run: Path):
    tab = show(page_of(run))
    tab.evaluate("location.hash = 'it=1&of=update&ep=1&turn=1&token=1&colour=engine'")
    tokens = tab.locator(".tokens span")
    expect(tokens).to_have_count(2)
    picker = tab.get_by_label("What the colour shows (key C)")
    seen = {}
    tab.locator(".tokens").focus()
    for _ in range(7):
        name = picker.evaluate("box => box.value")
        legend = tab.locator(".ramp").get_attribute("aria-label") if name != "mask" else "not trained"
        seen[name] = (tokens.first.evaluate("span => span.style.backgroundColor"), legend)
        tab.keyboard.press("c")
    assert len(seen) == 7
    assert picker.evaluate("box => box.value") == "engine", "the key goes round"
    assert seen["advantage"][1] == "Colours from -0.75 to 0.75"
    assert "217, 95, 2" in seen["advantage"][0]
    assert "33, 113, 181" in seen["entropy"][0]
    tab.keyboard.press("c")
    tab.keyboard.press("c")
    assert "below" in tokens.first.get_attribute("class"), "a negative number is underlined, too"
    label = tokens.first.get_attribute("aria-label")
    assert all(part in label for part in ("token 1", "Engine 0.905", "Advantage -0.75", "Trained yes"))
    box = tab.get_by_role("listbox", name="Tokens of the reply")
    assert box.get_attribute("aria-activedescendant") == tokens.first.get_attribute("id")
    assert tokens.first.get_attribute("aria-selected") == "true"


def test_a_run_without_the_numbers_of_updates_says_how_to_get_them(show: Open, tmp_path: Path):
    tab = show(page_of(keep(tmp_path / "run", trajectory())))
    tab.get_by_role("tab", name="Tokens").click()
    assert "report.tokens=GROUPS" in tab.inner_text("[role=tabpanel]")
    assert tab.get_by_label("Episodes", exact=True).locator("option").count() == 0
    assert tab.locator("[aria-label^='What the colour'] option").count() == 1


def test_a_turn_of_thirty_thousand_tokens_is_shown_in_pages(show: Open, tmp_path: Path):
    n = 30_000
    turn = Turn((1,), tuple(range(n)), (-0.5,) * n, 0.0, "", "")
    page = page_of(keep(tmp_path / "run", Trajectory(Task("game:Sokoban-v0-easy", 1), [turn], "terminated")))
    tab = show(page)
    tab.evaluate("location.hash = 'ep=1&turn=1&token=29999'")
    expect(tab.locator(".about")).to_contain_text("29999 of 30000")
    assert tab.locator(".tokens span").count() == 2000
    tab.get_by_role("button", name="Earlier tokens").click()
    expect(tab.locator(".about")).to_contain_text("26001 of 30000")
    tab.locator(".tokens").focus()
    tab.keyboard.press("Home")
    expect(tab.locator(".about")).to_contain_text("1 of 30000")


def test_tokens_are_text_whatever_they_are(show: Open, tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    words = [HOSTILE, "שלום", "\u00e2", "\u0120\u00e2\u013f", "<|end|>", "</script>", "\n"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, HOSTILE))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    run = tmp_path / "run"
    (run / "checkpoints" / "step-000001").mkdir(parents=True)
    tokenizer.save(str(run / "checkpoints" / "step-000001" / "tokenizer.json"))
    turn = Turn((), tuple(range(len(words))), (-1.0,) * len(words), 0.0, "", "")
    keep(run, Trajectory(Task("game:Sokoban-v0-easy", 1), [turn], "terminated"), iteration=0)
    (run / "metrics.jsonl").write_text('{"iteration": 0}\n')
    tab = show(page_of(run))
    tab.get_by_role("tab", name="Tokens").click()
    shown = tab.locator(".tokens span").all_inner_texts()
    assert tab.locator(".tokens img, .tokens script").count() == 0
    assert shown[2] == "<0xE2>", "a byte that is no text"
    assert shown[3] == "<0x20><0xE2><0x9D>"
    assert shown[4] == "<|end|>"
    assert shown[5] == "</script>"
    assert "\u202e" not in shown[0]
    assert tab.locator(".tokens bdi").count() == len(words), "right-to-left text does not move its neighbours"


def test_damaged_numbers_leave_a_page(show: Open, tmp_path: Path):
    run = keep(tmp_path / "run", iteration=0)
    (run / "metrics.jsonl").write_text('{"iteration": 1}\n')
    odd: list[Any] = [5, None, {"turns": 3}, {"turns": [7, {"why": HOSTILE, "logprobs": ["x", {}], "advantages": "y"}]}]
    lines = [json.dumps(json.loads(updated(member=n)) | {"update": update}) for n, update in enumerate(odd)]
    (run / "updates.jsonl").write_text("\n".join([*lines, '{"iteration": 1, "task": {"seed"']))
    tab = show(page_of(run))
    assert tab.evaluate("total") == 4
    assert "1 damaged line" in tab.inner_text("main")
    for n in range(4):
        for turn in (1, 2):
            tab.evaluate(f"location.hash = 'it=1&of=update&ep={n + 1}&turn={turn}&token=1'")
            expect(tab.locator(".about")).to_contain_text("1 of 2")


def test_seats_and_groups_of_one_update_are_apart(show: Open, tmp_path: Path):
    run = keep(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"iteration": 1}\n')
    rows = [json.loads(updated(group=group)) | {"seat": seat} for group in (0, 1) for seat in (0, 1)]
    (run / "updates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tab = show(page_of(run))
    assert tab.evaluate("total") == 4
    other = page_of(run, keep(tmp_path / "other", trajectory()))
    tab = show(other)
    tab.evaluate("location.hash = 'run=1&it=1&of=update&ep=4&turn=1&token=2'")
    expect(tab.locator(".about")).to_contain_text("2 of 2")
    tab.evaluate("location.hash = 'run=2&ep=1&turn=2'")
    expect(tab.locator(".player h3")).to_contain_text("other")
