"""Tables in CSV, TSV and JSON: select, sort, filter, group, join, convert."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence

from rollenv.envs.shell.checks import HoldsJson, Lines, Number, Table
from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.task import Family, ShellTask
from rollenv.envs.shell.words import CITIES

FAMILY = Family("tables", "CSV, TSV and JSON tables: select, sort, filter, group, join, convert")
_FIELDS = ("id", "item", "city", "quantity", "price")
Rows = list[tuple[str, ...]]


def _orders(draw: TaskDraw, size: int) -> Rows:
    """Draw rows of orders: number, item, city, quantity, price."""
    items, cities = draw.words(4 + 2 * size), draw.some(CITIES, 3 + size)
    count = draw.records(size)
    ids = draw.some(range(1000, 9999), count)
    return [(str(n), draw.pick(items), draw.pick(cities), str(draw.number(1, 40)), draw.price()) for n in ids]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the text of a table."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


def _python(*lines: str) -> str:
    """Return a command that runs lines of Python."""
    body = "\n".join(lines)
    return f"python3 - <<'END'\n{body}\nEND"


_READ = "import csv; rows = list(csv.DictReader(open('orders.csv')))"
_WRITE = "w = csv.writer(open('answer.csv', 'w')); w.writerow({header!r}.split(','))"


@FAMILY.template(1, 1)
def _one_column(draw: TaskDraw, size: int) -> ShellTask:
    """Extract one column of a table without a header."""
    column = draw.number(1, 5)
    rows = [(*row, str(draw.number(1, 5))) for row in _orders(draw, size)]
    return ShellTask(
        f"Write column {column} of data.csv to answer.txt, one value a line, in the same order. data.csv has no "
        "header; the first column has number 1.",
        {"data.csv": "".join(",".join(row) + "\n" for row in rows)},
        (f"cut -d, -f{column} data.csv > answer.txt",),
        (Lines("answer.txt", tuple(row[column - 1] for row in rows)),),
    )


@FAMILY.template(1, 1)
def _sort_lines(draw: TaskDraw, size: int) -> ShellTask:
    """Sort lines by number or as text."""
    numbers = draw.chance(0.5)
    lines = [str(n) for n in draw.some(range(1, 2000), draw.records(1))] if numbers else draw.words(draw.records(1))
    ordered = sorted(lines, key=int) if numbers else sorted(lines)
    clause = (
        "numbers of list.txt, one a line, from the smallest to the largest"
        if numbers
        else ("lines of list.txt in alphabetical order")
    )
    return ShellTask(
        f"Write the {clause}, to answer.txt." if numbers else f"Write the {clause} to answer.txt.",
        {"list.txt": "".join(f"{line}\n" for line in lines)},
        (f"sort {'-n ' if numbers else ''}list.txt > answer.txt",),
        (Lines("answer.txt", tuple(ordered)),),
    )


@FAMILY.template(1, 2)
def _count_rows(draw: TaskDraw, size: int) -> ShellTask:
    """Count the rows with a value."""
    rows = _orders(draw, size)
    city = max(sorted({row[2] for row in rows}), key=lambda city: sum(row[2] == city for row in rows))
    city = city if size == 1 else draw.pick(rows)[2]
    return ShellTask(
        f"How many rows of orders.csv have the city {city}? Write the number to answer.txt.",
        {"orders.csv": _table(_FIELDS, rows)},
        (f"grep -c ,{city}, orders.csv > answer.txt",),
        (Number("answer.txt", sum(row[2] == city for row in rows)),),
    )


@FAMILY.template(2, 3)
def _sum_column(draw: TaskDraw, size: int) -> ShellTask:
    """Sum a column."""
    rows = _orders(draw, size)
    city = draw.pick(rows)[2] if size > 2 else ""
    total = sum(int(row[3]) for row in rows if city in ("", row[2]))
    test = f' && $3 == "{city}"' if city else ""
    where = f" of the rows with the city {city}" if city else ""
    return ShellTask(
        f"orders.csv is a table with a header. Add up the column quantity{where}, and write the sum to answer.txt.",
        {"orders.csv": _table(_FIELDS, rows)},
        (f"awk -F, 'NR > 1{test} {{ s += $4 }} END {{ print s }}' orders.csv > answer.txt",),
        (Number("answer.txt", total),),
    )


@FAMILY.template(2, 4)
def _filter_rows(draw: TaskDraw, size: int) -> ShellTask:
    """Select the rows with a text, and a number above or below a bound."""
    rows, border, more = _orders(draw, size), draw.number(8, 30), draw.chance(0.5)
    city = draw.pick(rows)[2] if size > 2 else ""
    kept = [row for row in rows if (int(row[3]) > border if more else int(row[3]) < border) and city in ("", row[2])]
    test = f"$4 {'>' if more else '<'} {border}" + (f' && $3 == "{city}"' if city else "")
    clause = f"is {'greater' if more else 'less'} than {border}" + (f" and whose city is {city}" if city else "")
    return ShellTask(
        f"orders.csv is a table with a header. Write the header and all rows whose quantity {clause} to answer.csv, "
        "unchanged and in the same order.",
        {"orders.csv": _table(_FIELDS, rows)},
        (f"awk -F, 'NR == 1 || ({test})' orders.csv > answer.csv",),
        (Table("answer.csv", (_FIELDS, *kept)),),
    )


@FAMILY.template(2, 4)
def _to_json(draw: TaskDraw, size: int) -> ShellTask:
    """Convert a table to JSON."""
    rows = _orders(draw, size)
    value = [
        {"id": int(n), "item": item, "city": city, "quantity": int(quantity), "price": float(price)}
        for n, item, city, quantity, price in rows
    ]
    return ShellTask(
        "Convert the table orders.csv to JSON in answer.json: a list with one object for each row, in the same "
        "order. Keys are the names of the columns. id and quantity are whole numbers, price is a number, item and "
        "city are strings.",
        {"orders.csv": _table(_FIELDS, rows)},
        (
            _python(
                "import json",
                _READ,
                "for row in rows: row.update(id=int(row['id']), quantity=int(row['quantity']), "
                "price=float(row['price']))",
                "json.dump(rows, open('answer.json', 'w'))",
            ),
        ),
        (HoldsJson("answer.json", json.dumps(value)),),
    )


@FAMILY.template(2, 4)
def _from_json(draw: TaskDraw, size: int) -> ShellTask:
    """Convert JSON to a table; keys may be missing."""
    rows, columns = _orders(draw, size), tuple(draw.some(_FIELDS, draw.number(2, 4)))
    named = [dict(zip(_FIELDS, row, strict=True)) for row in rows]
    lost = columns[-1]
    for row in draw.some(named, len(named) // 5 if size > 2 else 0):
        del row[lost]
    kept = [tuple(row.get(column, "") for column in columns) for row in named]
    missing = " Where an object lacks a key, the cell is empty." if size > 2 else ""
    return ShellTask(
        "orders.json holds a list of objects. Write them to answer.csv as a table with the columns "
        f"{', '.join(columns)}, in this order: first a header with these names, then a row for each object, in the "
        f"same order.{missing}",
        {"orders.json": json.dumps(named, indent=1)},
        (
            _python(
                "import csv, json",
                f"columns = {list(columns)!r}",
                "w = csv.writer(open('answer.csv', 'w')); w.writerow(columns)",
                "for row in json.load(open('orders.json')): w.writerow([row.get(c, '') for c in columns])",
            ),
        ),
        (Table("answer.csv", (columns, *kept)),),
    )


def _revenue(row: Sequence[str]) -> int:
    whole, cents = row[4].split(".")
    return int(row[3]) * (int(whole) * 100 + int(cents))


def _grouped(rows: Rows, key: int, value: Callable[[Sequence[str]], int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for row in rows:
        totals[row[key]] = totals.get(row[key], 0) + value(row)
    return totals


@FAMILY.template(3, 5)
def _group(draw: TaskDraw, size: int) -> ShellTask:
    """Sum the revenue of each city or item."""
    rows, key = _orders(draw, size), draw.number(1, 2)
    totals = _grouped(rows, key, _revenue)
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    answer = [(name, f"{totals[name] // 100}.{totals[name] % 100:02d}") for name in ranked]
    header = f"{_FIELDS[key]},revenue"
    return ShellTask(
        "orders.csv is a table with a header. The revenue of a row is quantity times price. Write a table answer.csv "
        f"with the header {header} and one row for each {_FIELDS[key]}: its name and the sum of the revenue of its "
        "rows, with two decimals. The highest revenue comes first; equal ones are in alphabetical order.",
        {"orders.csv": _table(_FIELDS, rows)},
        (
            _python(
                _READ,
                "totals = {}",
                f"for r in rows: totals[r['{_FIELDS[key]}']] = totals.get(r['{_FIELDS[key]}'], 0) + "
                "int(r['quantity']) * round(float(r['price']) * 100)",
                _WRITE.format(header=header),
                "for k in sorted(totals, key=lambda k: (-totals[k], k)): w.writerow([k, '%.2f' % (totals[k] / 100)])",
            ),
        ),
        (Table("answer.csv", (tuple(header.split(",")), *answer)),),
    )


@FAMILY.template(3, 5)
def _join(draw: TaskDraw, size: int) -> ShellTask:
    """Join two tables by a common column."""
    people = draw.people(draw.records(size) // 2)
    customers = list(zip(map(str, draw.some(range(100, 999), len(people))), people, strict=True))
    rows = [(row[0], draw.pick(customers)[0] if draw.chance(0.9) else "99", row[4]) for row in _orders(draw, size)]
    names = dict(customers)
    kept = [(number, names[customer], price) for number, customer, price in rows if customer in names]
    return ShellTask(
        "customers.csv has the columns customer and name, and orders.csv the columns id, customer and price; both "
        "have a header. Write a table answer.csv with the header id,name,price and one row for each order whose "
        "customer is in customers.csv: the order's id, the customer's name, and the price. Keep the order of "
        "orders.csv; leave out orders of unknown customers.",
        {
            "customers.csv": _table(("customer", "name"), customers),
            "orders.csv": _table(("id", "customer", "price"), rows),
        },
        (
            _python(
                _READ,
                "names = {r['customer']: r['name'] for r in csv.DictReader(open('customers.csv'))}",
                _WRITE.format(header="id,name,price"),
                "for r in rows:",
                "    if r['customer'] in names: w.writerow([r['id'], names[r['customer']], r['price']])",
            ),
        ),
        (Table("answer.csv", (("id", "name", "price"), *kept)),),
    )


@FAMILY.template(3, 5)
def _latest(draw: TaskDraw, size: int) -> ShellTask:
    """Find the latest reading of each sensor."""
    sensors = [f"s{n}" for n in draw.some(range(10, 99), 3 + 2 * size)]
    times = draw.moments(draw.records(size), hours=400)
    rows = draw.mixed([(f"{t:%Y-%m-%dT%H:%M:%SZ}", draw.pick(sensors), draw.price(10, 30)) for t in times])
    newest = {sensor: (when, value) for when, sensor, value in sorted(rows)}
    answer = [(sensor, *newest[sensor]) for sensor in sorted(newest)]
    return ShellTask(
        "readings.csv is a table with the columns time, sensor and value, with a header; its rows are in no order. "
        "Write a table answer.csv with the header sensor,time,value and one row for each sensor: its latest reading. "
        "Sensors are in alphabetical order.",
        {"readings.csv": _table(("time", "sensor", "value"), rows)},
        (
            _python(
                "import csv; rows = sorted(csv.reader(open('readings.csv')))[:-1]  # the header sorts last",
                "newest = {s: (t, v) for t, s, v in rows}",
                _WRITE.format(header="sensor,time,value"),
                "w.writerows((s, *newest[s]) for s in sorted(newest))",
            ),
        ),
        (Table("answer.csv", (("sensor", "time", "value"), *answer)),),
    )


@FAMILY.template(4, 5)
def _quoted(draw: TaskDraw, size: int) -> ShellTask:
    """Process a table whose cells contain commas, quotes and line ends."""

    def note() -> str:
        return draw.pick((", ", ' "so-called" ', "\n", " ")).join((draw.word(), draw.word(), draw.word()))

    rows = [(n, note(), city, quantity) for n, _, city, quantity, _ in _orders(draw, size)]
    city = draw.pick(rows)[2]
    total = sum(int(row[3]) for row in rows if row[2] == city)
    return ShellTask(
        "orders.csv is a table with the columns id, note, city and quantity, with a header. Cells are quoted where "
        "needed: notes may hold commas, quotes and line breaks. Add up the quantities of the rows whose city is "
        f"{city}, and write the sum to answer.txt.",
        {"orders.csv": _table(("id", "note", "city", "quantity"), rows)},
        (
            _python(
                _READ,
                f"print(sum(int(r['quantity']) for r in rows if r['city'] == '{city}'), file=open('answer.txt', 'w'))",
            ),
        ),
        (Number("answer.txt", total),),
    )


@FAMILY.template(4, 5)
def _pivot(draw: TaskDraw, size: int) -> ShellTask:
    """Make a pivot table of quantities by item and city."""
    rows = _orders(draw, size)
    items, cities = sorted({row[1] for row in rows}), sorted({row[2] for row in rows})
    cells = _grouped([(f"{row[1]},{row[2]}", *row) for row in rows], 0, lambda row: int(row[4]))
    answer = [(item, *(str(cells.get(f"{item},{city}", 0)) for city in cities)) for item in items]
    return ShellTask(
        "orders.csv is a table with a header. Write a table answer.csv with one row for each item and one column for "
        "each city: the header is the word item and then the cities in alphabetical order; the rows are in "
        "alphabetical order of the items; each cell is the sum of the quantities of that item in that city, 0 if "
        "there is none.",
        {"orders.csv": _table(_FIELDS, rows)},
        (
            _python(
                _READ,
                "items, cities = sorted({r['item'] for r in rows}), sorted({r['city'] for r in rows})",
                "w = csv.writer(open('answer.csv', 'w')); w.writerow(['item', *cities])",
                "for i in items: w.writerow([i, *(sum(int(r['quantity']) for r in rows if (r['item'], r['city']) == "
                "(i, c)) for c in cities)])",
            ),
        ),
        (Table("answer.csv", (("item", *cities), *answer)),),
    )
