"""Requests about a spreadsheet; what counts are the values that its cells show."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollenv.core import UsageError
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Draw, Fact, Goal, Path, Template
from rollenv.envs.tools.problem import Call
from rollenv.envs.tools.sheet.backend import REGIONS, Sheet, SheetWithPython, make_sheet, plain
from rollenv.envs.tools.sheet.formulas import Evaluation

_DESCRIBE: list[Call] = [("describe", {})]
#: Columns of numbers by name.
_NUMBERS = {"units": "C", "price": "D"}
_FREE = "GHJK"


class _Row(NamedTuple):
    """A row of the table."""

    number: int
    item: str
    region: str
    units: float
    price: float


def _rows(draw: Draw) -> list[_Row]:
    cells = draw.state["cells"]
    return [_Row(int(n), *(cells[letter][n] for letter in "ABCD")) for n in cells["A"] if n != "1"]


def _columns(*letters: str) -> list[Path]:
    return [("cells", letter) for letter in letters]


def _target(draw: Draw) -> str:
    return f"{draw.rng.choice(_FREE)}{draw.rng.randint(2, 30)}"


def _number(value: float) -> str:
    return str(plain(round(value, 2)))


def _correct(draw: Draw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    name, value = draw.rng.choice(
        (("units", float(draw.rng.randint(1000, 1999))), ("price", draw.rng.randint(100, 999) + 0.5))
    )
    ask = draw.say("Correct the {name} of the {item}", "The {name} of the {item} is wrong", name=name, item=row.item)
    fact = Fact(
        ("what", "value", "number", name), f"It has to be {_number(value)}.", f"{ask}.", "What is the right value?"
    )
    act = [("set_cell", {"cell": f"{_NUMBERS[name]}{row.number}", "content": plain(value)})]
    look = [[*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})]]
    return Goal(
        f"{ask}: it has to be {_number(value)}.", look, act, blocks=["set_cell"], fact=fact, reads=_columns("A")
    )


def _add(draw: Draw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    more = draw.rng.randint(5, 80)
    ask = draw.say(
        "Add {more} to the units of the {item}.",
        "The {item} has {more} units more than the table says.",
        more=more,
        item=row.item,
    )
    look = [
        [*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})],
        [("read_range", {"range": f"C{row.number}"})],
    ]
    act = [("set_cell", {"cell": f"C{row.number}", "content": int(row.units) + more})]
    return Goal(ask, look, act, blocks=["set_cell"], reads=[*_columns("A"), ("cells", "C", str(row.number))])


def _whole(draw: Draw, breaks: bool) -> Goal | None:
    function, word = draw.rng.choice((("SUM", "sum"), ("MAX", "highest"), ("MIN", "lowest")))
    name, target, last = draw.rng.choice(("units", "price")), _target(draw), len(_rows(draw)) + 1
    ask = draw.say(
        "Write the {word} of all {name} values",
        "We need the {word} of the column {name}; write it",
        word=word,
        name=name,
    )
    letter = _NUMBERS[name]
    fact = Fact(("where", "cell", "which"), f"Into {target}.", f"{ask} into the cell meant for it.", "Into which cell?")
    act = [("set_cell", {"cell": target, "content": f"={function}({letter}2:{letter}{last})"})]
    return Goal(
        f"{ask} into the cell {target}.",
        [_DESCRIBE],
        act,
        blocks=["set_cell", "fill_down"],
        fact=fact,
        reads=_columns(letter),
    )


def _of_region(draw: Draw, breaks: bool) -> Goal | None:
    region, target, last = draw.rng.choice(REGIONS), _target(draw), len(_rows(draw)) + 1
    ask = draw.say(
        "Write into {target} how many units the region {region} has in all.",
        "Into the cell {target}: the sum of the units of the region {region}.",
        target=target,
        region=region,
    )
    act = [("set_cell", {"cell": target, "content": f'=SUMIF(B2:B{last}, "{region}", C2:C{last})'})]
    return Goal(ask, [_DESCRIBE], act, blocks=["set_cell", "fill_down"], reads=_columns("B", "C"))


def _amounts(draw: Draw, breaks: bool) -> Goal | None:
    last = len(_rows(draw)) + 1
    ask = draw.say(
        "Fill column E with units times price for every row, under the header amount.",
        "The table needs a column E with the header amount: in each row the units multiplied by the price.",
    )
    act: list[Call] = [
        ("set_cell", {"cell": "E1", "content": "amount"}),
        ("set_cell", {"cell": "E2", "content": "=C2*D2"}),
        ("fill_down", {"cell": "E2", "last_row": last}),
    ]
    return Goal(ask, [_DESCRIBE], act, blocks=["set_cell"], reads=_columns("A", "C", "D"))


def _sort(draw: Draw, breaks: bool) -> Goal | None:
    name, descending = draw.rng.choice(("units", "price", "item")), draw.rng.random() < 0.5
    order = (
        ("from Z to A" if descending else "from A to Z")
        if name == "item"
        else "the highest first"
        if descending
        else "the lowest first"
    )
    ask = draw.say(
        "Sort the table by {name}, {order}.", "Put the rows in order by {name}, {order}.", name=name, order=order
    )
    column = {"item": "A", **_NUMBERS}[name]
    act = [("sort_table", {"column": column, "descending": descending})]
    return Goal(ask, [_DESCRIBE], act, reads=_columns(*"ABCD"))


def _clear(draw: Draw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    ask = draw.say(
        "Empty the row of the {item}, from A to D.",
        "The {item} is no longer sold; empty its row, A to D.",
        item=row.item,
    )
    look = [[*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})]]
    act = [("clear_range", {"range": f"A{row.number}:D{row.number}"})]
    return Goal(ask, look, act, blocks=["clear_range", "set_cell"], reads=_columns(*"ABCD"))


def _append(draw: Draw, breaks: bool) -> Goal | None:
    last = len(_rows(draw)) + 2
    item = words.name(draw.rng).lower() + " " + draw.rng.choice(words.THINGS)
    values = (item, draw.rng.choice(REGIONS), draw.rng.randint(10, 99), draw.rng.randint(10, 99) + 0.25)
    told = ", ".join(map(str, values))
    ask = draw.say("Add a row below the last one: {told}.", "The table needs a new last row: {told}.", told=told)
    act: list[Call] = [
        ("set_cell", {"cell": f"{letter}{last}", "content": v}) for letter, v in zip("ABCD", values, strict=True)
    ]
    return Goal(ask, [_DESCRIBE], act, blocks=["set_cell"], reads=_columns(*"ABCD"))


def _average(draw: Draw, breaks: bool) -> Goal | None:
    name, last = draw.rng.choice(("units", "price")), len(_rows(draw)) + 1
    letter = _NUMBERS[name]
    means = {each: f"{sum(getattr(row, each) for row in _rows(draw)) / (last - 1):.2f}" for each in _NUMBERS}
    value, rivals = means[name], list(means.values())
    ask = draw.say(
        "What is the average {name}, to two decimals?",
        "Tell me the average of the column {name}, to two decimals.",
        name=name,
    )
    look = [_DESCRIBE, [("calculate", {"formula": f"=AVERAGE({letter}2:{letter}{last})"})]]
    done, reads = f"The average is {value}.", _columns(letter)
    return Goal(ask, look, done=done, answers=[value], reads=reads, rivals=lambda _: rivals)


def _revenue(draw: Draw, breaks: bool) -> Goal | None:
    row = draw.rng.choice(_rows(draw))
    ask = draw.say(
        "What are all units of the {item} worth, at its price?",
        "How much is the stock of the {item} worth: units times price?",
        item=row.item,
    )
    look = [
        [*_DESCRIBE, ("find_rows", {"column": "A", "text": row.item})],
        [("calculate", {"formula": f"=C{row.number}*D{row.number}"})],
    ]
    worth, rivals = _worth(row), [_worth(each) for each in _rows(draw)]
    reads = [*_columns("A"), *(("cells", letter, str(row.number)) for letter in "CD")]
    done = f"It is worth {worth}."
    return Goal(ask, look, done=done, answers=[worth], reads=reads, rivals=lambda _: rivals)


def _worth(row: _Row) -> str:
    return f"{row.units * row.price:.2f}"


def _which(draw: Draw, breaks: bool) -> Goal | None:
    rows, name = _rows(draw), draw.rng.choice(("units", "price"))
    function, word = draw.rng.choice((("MAX", "highest"), ("MIN", "lowest")))
    found = (max if function == "MAX" else min)(rows, key=lambda row: getattr(row, name))
    ask = draw.say(
        "Which item has the {word} {name}?", "Tell me the item with the {word} {name}.", word=word, name=name
    )
    letter, value = _NUMBERS[name], _number(getattr(found, name))
    look = [
        _DESCRIBE,
        [("calculate", {"formula": f"={function}({letter}2:{letter}{len(rows) + 1})"})],
        [("find_rows", {"column": letter, "text": value})],
        [("read_range", {"range": f"A{found.number}:D{found.number}"})],
    ]
    done, items, reads = f"It is the {found.item}.", [row.item for row in rows], _columns("A", letter)
    return Goal(ask, look, done=done, answers=[found.item], reads=reads, rivals=lambda _: items)


class SheetEnv(GeneratedToolEnv):
    """A spreadsheet: values are corrected, added up, sorted, filled in and asked for.

    Args:
        python: whether there is a function ``run_python``, whose programs find the values in ``cells``. They run in a
            sandbox; one that asks for the time or for chance makes the episode another one when it is repeated.
        settings: of :class:`~rollenv.envs.tools.generated.generate.GeneratedToolEnv`.
    """

    intro = "You look after a spreadsheet: a table in columns A to D with a header in row 1; other columns are free."
    templates = tuple(
        map(
            Template, (_correct, _add, _whole, _of_region, _amounts, _sort, _clear, _append, _average, _revenue, _which)
        )
    )

    def __init__(self, *, python: bool = False, **settings: Any):
        super().__init__(**settings)
        self.kind = SheetWithPython if python else Sheet
        if self.missing == "functions":
            raise UsageError("missing='functions': one function writes nearly everything here")

    def world(self, rng: random.Random) -> Sheet:
        return make_sheet(rng, self.size, self.kind)

    def seen(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values that the cells show, so that every formula with the right value is right."""
        return Evaluation(state["cells"]).all()
