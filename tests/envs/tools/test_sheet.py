"""Formulas and functions of the generated spreadsheet."""

from __future__ import annotations

import time

import pytest

import rollenv
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.generated.formulas import FormulaError, SheetValues, shifted
from rollenv.envs.tools.generated.sheet import Sheet

CELLS = {
    "A": {"1": "item", "2": "pen", "3": "cup", "4": "pen"},
    "B": {"1": "units", "2": 4.0, "3": 10.0, "4": 6.0},
    "C": {"1": "twice", "2": "=B2*2", "3": "=B3*2"},
}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("=SUM(B2:B4)", 20),
        ("=AVERAGE(B2:B4)", 6.666667),
        ("=MIN(B2:B4)", 4),
        ("=max(b2:b4)", 10),
        ("=COUNT(A1:C4)", 5),
        ('=SUMIF(A2:A4, "pen", B2:B4)', 10),
        ('=COUNTIF(A2:A4, "PEN")', 2),
        ("=ROUND(B2/3, 1)", 1.3),
        ("=-(B2+1)*2", -10),
        ("=C2+C3", 28),
        ("=$B$2+Z9", 4),
        ("=SUM(B2:B3, B4, 1)", 21),
        ("3*4", 12),
    ],
)
def test_formulas(formula, value):
    assert SheetValues(CELLS).formula(formula) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    "formula",
    [
        "=1/0",
        "=A2+1",
        "=FOO(1)",
        "=__import__('os')",
        "=B2:B4",
        "=(",
        "=9**9**9",
        "=SUM(",
        "=B2.real",
        "=[1]",
        "=1e300*1e300",
        "=-" + "-" * 250 + "1",
        "=AVERAGE(Z1:Z9)",
        "=SUM(A1:Z9999)",
        "=True+1",
        "=1 if 1 else 2",
        "=" + "1+" * 200 + "1",
    ],
)
def test_what_is_no_formula_is_an_error(formula):
    with pytest.raises(FormulaError):
        SheetValues(CELLS).formula(formula)


def test_references_move_with_the_row():
    assert shifted('=C2*D$2+SUM(A1:A3)&"B2"', 3) == '=C5*D$2+SUM(A4:A6)&"B2"'


def test_a_circle_and_a_long_chain_end():
    circle = SheetValues({"A": {"1": "=A2", "2": "=A1"}, "B": {"1": 3.0}})
    assert circle.shown("A", 1) is None
    assert circle.shown("B", 1) == 3
    down = SheetValues({"A": {"1": 1.0, **{str(n): f"=A{n - 1}+1" for n in range(2, 1001)}}}).all()
    assert down["A"]["1000"] == 1000
    up = {"A": {"1000": 1.0, **{str(n): f"=((((A{n + 1}+1))))" for n in range(1, 1000)}}}
    assert SheetValues(up).all()["A"]["1"] is None


def test_a_sheet_full_of_sums_is_evaluated_in_bounded_time():
    cells = {chr(n): {str(row): "=SUM(A1:Y999)" for row in range(1, 1001)} for n in range(ord("B"), ord("Z"))}
    began = time.process_time()
    SheetValues(cells).all()
    assert time.process_time() - began < 20


def test_functions_of_a_sheet():
    sheet = Sheet({"cells": {letter: dict(rows) for letter, rows in CELLS.items()}})
    assert sheet.call("read_range", {"range": "A2:C3"}).text == '[["pen", 4, 8], ["cup", 10, 20]]'
    assert sheet.call("find_rows", {"column": "A", "text": "Pen"}).text == "[2, 4]"
    sheet.call("fill_down", {"cell": "C2", "last_row": 4})
    assert sheet.call("read_range", {"range": "C2:C4"}).text == "[[8], [20], [12]]"
    sheet.call("sort_table", {"column": "B", "descending": True})
    assert sheet.call("read_range", {"range": "A2:C4"}).text == '[["cup", 10, 20], ["pen", 6, 12], ["pen", 4, 8]]'
    sheet.call("clear_range", {"range": "A3:C3"})
    assert sheet.call("read_range", {"range": "A3:C3"}).text == '[["", "", ""]]'
    assert sheet.call("set_cell", {"cell": "D2", "content": "=B2 +"}).failed
    assert sheet.call("set_cell", {"cell": "D2", "content": "12.5"}).text == "D2 is 12.5"


def test_every_way_to_the_right_value_is_right():
    env = rollenv.make("tools:Sheet-v0-easy")
    tried = 0
    for seed in range(60):
        env.reset(seed)
        (goal,) = env.current.goals
        if len(goal.act) != 1 or "=" not in str(goal.act[0][1].get("content")):
            continue
        cell, formula = goal.act[0][1]["cell"], goal.act[0][1]["content"]
        value = SheetValues(env.current.backend.cells).formula(formula)
        for content, right in ((value, True), (f"{formula}+1", False)):
            env.reset(seed)
            env.step(write_calls([("set_cell", {"cell": cell, "content": content})], env.calls))
            assert env.step("Done.")[4]["success"] is right
            tried += 1
    assert tried > 8


@pytest.mark.slow
def test_programs_read_the_values_and_reach_nothing_else():
    env = rollenv.make("tools:Sheet-v0-python", goals=1)
    env.reset(1)
    backend = env.unwrapped.current.backend
    before = backend.digest()

    def run(code):
        return env.step(write_calls([("run_python", {"code": code})]))[0]

    cells = backend.cells
    total = sum(value for row, value in cells["C"].items() if row != "1")
    assert f"\n{total:g}\n" in run("print(sum(v for k, v in cells.items() if k[0] == 'C' and k != 'C1'))")
    assert "ZeroDivisionError" in run("1 / 0")
    assert "error" in run("cells['A1'] = 1; open('/etc/shadow').read()")
    assert "nothing was printed" in run("x = 1")
    assert "NameError" in run("print(x)")
    assert "error" in run("import socket; socket.create_connection(('127.0.0.1', 22))")
    assert backend.digest() == before
    with pytest.raises(rollenv.UsageError, match="'pyton'"):
        rollenv.make("tools:Sheet-v0", pyton=True)
