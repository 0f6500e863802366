"""Scripts to write, which are run on inputs that the agent did not see."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable

from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.running import Script
from rollenv.envs.shell.task import Family, ShellTask

FAMILY = Family("scripting", "write or repair a script that is then tried on hidden inputs")


def _written(path: str, program: str) -> str:
    """Return a command that writes a program to a file."""
    return f"cat > {path} <<'END'\n{program.rstrip()}\nEND"


def _numbers(draw: TaskDraw, count: int, least: int = -50, most: int = 99) -> list[int]:
    """Draw whole numbers."""
    return [draw.number(least, most) for _ in range(count)]


@FAMILY.template(1, 1)
def _say(draw: TaskDraw, size: int) -> ShellTask:
    """Print a line."""
    name, text = draw.label(), draw.sentence()
    return ShellTask(
        f"Write a script {name}.sh such that 'bash {name}.sh' prints this line: {text}",
        {},
        (f"echo 'echo {text}' > {name}.sh",),
        (Script(f"bash {name}.sh", text),),
    )


@FAMILY.template(1, 1)
def _one_filter(draw: TaskDraw, size: int) -> ShellTask:
    """Print a fact about standard input, with one program."""
    name, text = draw.label(), draw.text(draw.number(3, 9))
    lines = text.splitlines()
    clause, command, answer = draw.pick(
        (
            ("how many lines it reads from standard input", "wc -l", str(len(lines))),
            ("the lines of standard input, sorted alphabetically", "sort", "\n".join(sorted(lines))),
            ("the lines of standard input in reverse order", "tac", "\n".join(lines[::-1])),
            ("the first line of standard input", "head -n 1", lines[0]),
            ("the last line of standard input", "tail -n 1", lines[-1]),
            ("standard input in upper case", "tr a-z A-Z", text.upper()),
        )
    )
    return ShellTask(
        f"Write a script {name}.sh such that 'bash {name}.sh' prints {clause}.",
        {},
        (f"echo '{command}' > {name}.sh",),
        (Script(f"bash {name}.sh", answer, text),),
    )


@FAMILY.template(2, 4)
def _arithmetic(draw: TaskDraw, size: int) -> ShellTask:
    """Compute a function of numbers that are arguments."""
    name = draw.label()
    kinds: tuple[tuple[str, str, Callable[[list[int]], int]], ...] = (
        ("their sum", 's=0; for n in "$@"; do s=$((s + n)); done; echo $s', sum),
        ("the largest of them", "printf '%s\\n' \"$@\" | sort -n | tail -1", max),
        ("the smallest of them", "printf '%s\\n' \"$@\" | sort -n | head -1", min),
        ("how many of them are negative", "printf '%s\\n' \"$@\" | grep -c ^-", lambda all_: sum(n < 0 for n in all_)),
        (
            "the sum of their squares",
            's=0; for n in "$@"; do s=$((s + n * n)); done; echo $s',
            lambda all_: sum(n * n for n in all_),
        ),
        (
            "how many of them are even",
            'c=0; for n in "$@"; do [ $((n % 2)) -eq 0 ] && c=$((c + 1)); done; echo $c',
            lambda all_: sum(n % 2 == 0 for n in all_),
        ),
    )
    clause, program, answer = draw.pick(kinds)
    tries = [_numbers(draw, draw.number(2, 2 + 2 * size)) for _ in range(3)]
    return ShellTask(
        f"Write a script {name}.sh. 'bash {name}.sh N...' gets one or more whole numbers as arguments and prints "
        f"{clause}.",
        {},
        (_written(f"{name}.sh", program),),
        tuple(Script(f"bash {name}.sh {' '.join(map(str, one))}", str(answer(one))) for one in tries),
    )


def _roman(number: int) -> str:
    found = ""
    values = (100, 90, 50, 40, 10, 9, 5, 4, 1)
    for value, letters in zip(values, ("C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"), strict=True):
        found += letters * (number // value)
        number %= value
    return found


_ROMAN = """import sys
n, out = int(sys.argv[1]), ""
pairs = [(100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
for value, letters in pairs:
    out += letters * (n // value)
    n %= value
print(out)
"""
_BASE = "import sys\nn, out = int(sys.argv[1]), ''\nwhile n: n, out = n // BASE, str(n % BASE) + out\nprint(out or 0)\n"
_FACTORS = """import sys
n, d, out = int(sys.argv[1]), 2, []
while n > 1:
    while n % d == 0:
        n //= d
        out.append(d)
    d += 1
print(*out)
"""


def _in_base(number: int, base: int) -> str:
    return (_in_base(number // base, base) if number >= base else "") + str(number % base)


def _factors(number: int) -> str:
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            number //= divisor
            found.append(str(divisor))
        divisor += 1
    return " ".join(found)


@FAMILY.template(3, 5)
def _convert_number(draw: TaskDraw, size: int) -> ShellTask:
    """Convert a number to another notation."""
    name, base = draw.label(), draw.number(3, 9)
    clause, program, answer = draw.pick(
        (
            ("(from 1 to 399) and prints it as a Roman numeral, as in XIV", _ROMAN, _roman),
            (
                f"(at least 1) and prints it in base {base}",
                _BASE.replace("BASE", str(base)),
                lambda n: _in_base(n, base),
            ),
            (
                "(at least 2) and prints its prime factors in ascending order on one line, as in 2 2 3 for 12",
                _FACTORS,
                _factors,
            ),
        )
    )
    return ShellTask(
        f"Write a Python program {name}.py. 'python3 {name}.py N' gets a whole number N {clause}.",
        {},
        (_written(f"{name}.py", program),),
        tuple(Script(f"python3 {name}.py {n}", answer(n)) for n in _numbers(draw, 2 + size, 2, 399)),
    )


@FAMILY.template(2, 5)
def _count_words(draw: TaskDraw, size: int) -> ShellTask:
    """Count the words in files that are arguments."""
    name, words, several = draw.label(), draw.words(8), size > 3
    texts = ["".join(" ".join(draw.pick(words) for _ in range(6)) + "\n" for _ in range(2 * size)) for _ in range(3)]
    files = {f"{topic}.txt": text for topic, text in zip(draw.topics(3), texts, strict=True)}
    chosen = list(files)[: size - 2 if several else 1]
    counts = Counter(word for one in chosen for word in files[one].split())
    ranked = sorted(counts, key=lambda word: (-counts[word] if several else 0, word))
    first, rest = "most frequent word first, and equally frequent ones in alphabetical order", "LC_ALL=C sort"
    clause, sort = (
        (f"the {first}", f"{rest} -k2,2nr -k1,1") if several else ("in alphabetical order of the words", rest)
    )
    paths = [f'"$D/{one}"' for one in chosen]
    return ShellTask(
        f"Write a script {name}.sh. 'bash {name}.sh {'FILE...' if several else 'FILE'}' reads "
        f"{'text files' if several else 'a text file'} of words in lower case with spaces between, and prints one line "
        "for each different word: the word, a space, how often it occurs"
        f"{' in all of the files together' if several else ''}; {clause}.",
        {},
        (_written(f"{name}.sh", f"cat \"$@\" | tr ' ' '\\n' | sort | uniq -c | awk '{{ print $2, $1 }}' | {sort}"),),
        (
            Script(
                f"bash {name}.sh {' '.join(paths)}",
                "\n".join(f"{w} {counts[w]}" for w in ranked),
                files=files,
            ),
        ),
    )


@FAMILY.template(2, 4)
def _validate(draw: TaskDraw, size: int) -> ShellTask:
    """Report by the exit status whether an argument has a format."""
    name, prefix, digits = draw.label(), draw.word()[:3].upper(), draw.number(3, 6)

    def code(count: int) -> str:
        return "".join(str(draw.number(0, 9)) for _ in range(count))

    good = [f"{prefix}-{code(digits)}" for _ in range(2)]
    bad = [f"{prefix}-{code(digits + 1)}", f"{prefix}{code(digits)}", f"{prefix.lower()}-{code(digits)}"]
    bad += [f"x{prefix}-{code(digits)}", f"{prefix}-{code(digits - 1)}a", ""]
    program = f'[[ "$1" =~ ^{prefix}-[0-9]{{{digits}}}$ ]] && echo valid && exit 0\necho invalid; exit 1'
    tries = [*((one, "valid", 0) for one in good), *((one, "invalid", 1) for one in draw.some(bad, 2 + size // 2))]
    return ShellTask(
        f"Write a script {name}.sh. 'bash {name}.sh CODE' prints valid and ends with exit status 0 if CODE is "
        f"{prefix} in upper case, a hyphen and exactly {digits} digits, and nothing else. Otherwise it prints invalid "
        "and ends with exit status 1.",
        {},
        (_written(f"{name}.sh", program),),
        tuple(Script(f"bash {name}.sh {shlex.quote(one)}", output, exit_code=ends) for one, output, ends in tries),
    )


@FAMILY.template(3, 5)
def _total_table(draw: TaskDraw, size: int) -> ShellTask:
    """Sum a table on standard input by group."""
    name, key, value = draw.label(), draw.pick(("city", "team", "item")), draw.pick(("points", "amount", "hours"))
    groups = draw.topics(3 + size)

    def rows() -> list[tuple[str, int]]:
        return [(draw.pick(groups), draw.number(1, 90)) for _ in range(6 * size)]

    def answer(table: list[tuple[str, int]]) -> str:
        totals: Counter[str] = Counter()
        for group, number in table:
            totals[group] += number
        return "\n".join(f"{group}: {totals[group]}" for group in sorted(totals))

    tries = [rows() for _ in range(2)]
    texts = [f"{key},{value}\n" + "".join(f"{group},{number}\n" for group, number in one) for one in tries]
    return ShellTask(
        f"Write a script {name}.sh. 'bash {name}.sh' reads a CSV table with the header {key},{value} from standard "
        f"input, and prints a line for each different {key}: its name, a colon, a space, and the sum of its {value}; "
        "in alphabetical order.",
        {},
        (
            _written(
                f"{name}.sh",
                "awk -F, 'NR > 1 { s[$1] += $2 } END { for (k in s) print k \": \" s[k] }' | LC_ALL=C sort",
            ),
        ),
        tuple(Script(f"bash {name}.sh", answer(one), text) for one, text in zip(tries, texts, strict=True)),
    )


@FAMILY.template(3, 5)
def _rename_tool(draw: TaskDraw, size: int) -> ShellTask:
    """Write a tool that renames the files of the current folder."""
    name, old, new = draw.label(), *draw.some(("txt", "md", "csv", "log", "dat"), 2)
    names = draw.words(2 + size)
    files = {f"{one}.{draw.pick((old, 'cfg'))}": f"{one}\n" for one in names} | {f"my {names[0]}.{old}": "space\n"}
    after = sorted(one.removesuffix(f".{old}") + f".{new}" if one.endswith(f".{old}") else one for one in files)
    return ShellTask(
        f"Write a script {name}.sh. 'bash {name}.sh OLD NEW', run in any folder, renames every file of that folder "
        "whose name ends in .OLD so that it ends in .NEW instead; OLD and NEW are suffixes without the dot, and file "
        "names may hold spaces. It prints nothing.",
        {},
        (_written(f"{name}.sh", 'for f in *."$1"; do mv "$f" "${f%."$1"}.$2"; done'),),
        (Script(f'cd "$D"; bash "$APP/{name}.sh" {old} {new}; ls', "\n".join(after), files=files),),
    )


_MEAN = """total=0
count=0
while read -r n; do
    echo "$n"
    total=$((total + n))
    count=$((count + 1))
done < "$1"
echo $((total / count))
"""
_LARGEST = """best=
while read -r n; do
    if [ -z "$best" ] || [ "$n" -gt "$best" ]; then
        best=$n
    fi
done < "$1"
echo "$best"
"""
_ABOVE = """count=0
while read -r n; do
    if [ "$n" -gt 50 ]; then
        count=$((count + 1))
    fi
done < "$1"
echo "$count"
"""
#: The output of a script in words, the script, a part of it with its faulty replacement, and the output in Python.
_BUGS: tuple[tuple[str, str, tuple[str, str], Callable[[list[int]], str]], ...] = (
    (
        "the numbers in FILE, one a line, and their mean, rounded down to a whole number, at the end",
        _MEAN,
        ("total=$((total + n))", "total=$n"),
        lambda all_: "\n".join(map(str, [*all_, sum(all_) // len(all_)])),
    ),
    ("the largest number in FILE, which has one number a line", _LARGEST, ("-gt", "-lt"), lambda all_: str(max(all_))),
    (
        "how many of the numbers in FILE, one a line, are greater than 50",
        _ABOVE,
        ('done < "$1"', 'done < "$2"'),
        lambda all_: str(sum(n > 50 for n in all_)),
    ),
    (
        "the numbers in FILE, one a line, from the smallest to the largest, each of them once",
        'sort -n "$1" | uniq\n',
        ('sort -n "$1" | uniq', 'sort "$1" | uniq -d'),
        lambda all_: "\n".join(map(str, sorted(set(all_)))),
    ),
)


@FAMILY.template(2, 5)
def _repair(draw: TaskDraw, size: int) -> ShellTask:
    """Fix a script with a bug."""
    name = draw.label()
    clause, right, (good, bad), answer = draw.pick(_BUGS)
    tries = [_numbers(draw, 3 + 2 * size, 1, 99) for _ in range(3)]
    tries = [[*one, draw.number(100, 999), 7, 7] for one in tries]
    checks = (
        Script(f'bash {name}.sh "$D/data.txt"', answer(one), files={"data.txt": "".join(f"{n}\n" for n in one)})
        for one in tries
    )
    return ShellTask(
        f"The script {name}.sh has a fault. 'bash {name}.sh FILE' should print {clause}. Repair it.",
        {f"{name}.sh": right.replace(good, bad)},
        (_written(f"{name}.sh", right),),
        tuple(checks),
    )
