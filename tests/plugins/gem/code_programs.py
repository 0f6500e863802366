"""Programs for tests of standard input and output: right ones, wrong ones, and the ways in which either is written."""

from __future__ import annotations

import itertools

#: For each task: tests, and the body of a program that prints the answer to the line(s) in ``a`` (numbers) or ``s``.
TASKS = (
    ({"inputs": ["1 2\n", "-5 9\n"], "outputs": ["3\n", "4\n"]}, "sum(a)"),
    ({"inputs": ["4 7\n", "7 4\n"], "outputs": ["7\n", "7\n"]}, "max(a)"),
    ({"inputs": ["12 18\n", "7 3\n"], "outputs": ["6", "1"]}, "math.gcd(*a)"),
    ({"inputs": ["1 2 3\n", "5 5 5\n"], "outputs": ["1 2 3\n", "5 5 5\n"]}, "' '.join(map(str, sorted(a)))"),
    ({"inputs": [["3 1", ""], ["2 2"]], "outputs": [["1 3"], ["2 2"]]}, "' '.join(map(str, sorted(a)))"),
    ({"inputs": ["16 9\n", "81 1\n"], "outputs": ["4 3", "9 1"]}, "' '.join(str(math.isqrt(x)) for x in a)"),
    ({"inputs": ["1 1 2\n", "3 3 3\n"], "outputs": ["2", "1"]}, "len(collections.Counter(a))"),
    ({"inputs": ["2 3\n", "2 10\n"], "outputs": ["8", "1024"]}, "pow(*a)"),
    ({"inputs": ["1 2 3 4\n", "9\n"], "outputs": ["1 3 6 10", "9"]}, "' '.join(map(str, itertools.accumulate(a)))"),
    ({"inputs": ["9 2\n", "7 7\n"], "outputs": ["4 1", "1 0"]}, "' '.join(map(str, divmod(*a)))"),
    ({"inputs": ["5 3 8\n", "2 1 0\n"], "outputs": ["3\n", "0\n"]}, "min(a)"),
)
_READ = "a = list(map(int, input().split()))\n"
_IMPORTS = "import math, collections, itertools, sys\n"

#: Ways to write a program, given what it prints.
FORMS = {
    "plain": _IMPORTS + _READ + "print({})",
    "stdin": _IMPORTS + "a = [int(x) for x in sys.stdin.read().split()]\nprint({})",
    "function": _IMPORTS + "def main():\n    " + _READ + "    print({})\nmain()",
    "guard": _IMPORTS + "if __name__ == '__main__':\n    " + _READ + "    print({})",
    "imports forgotten": _READ + "print({})",
    "written": _IMPORTS + _READ + "sys.stdout.write(str({}))",
    "spaces around": _IMPORTS + _READ + "print(' ', {}, '\\n\\n')",
    "talks to stderr": _IMPORTS + _READ + "print('hm', file=sys.stderr)\nprint({})",
    "prompts": _IMPORTS + _READ.replace("input()", "input('numbers: ')") + "print({})",
    "prints twice": _IMPORTS + _READ + "print({0})\nprint({0})",
    "prints nothing": _IMPORTS + _READ + "x = {}",
    "wrong": _IMPORTS + _READ + "print(str({}) + '1')",
    "knows one test": _IMPORTS + _READ + "print({}) if a[0] > 3 else print('no')",
    "crashes": _IMPORTS + _READ + "print({})\nraise SystemError",
    "crashes first": _IMPORTS + _READ + "1 / 0\nprint({})",
    "does not parse": _IMPORTS + _READ + "print({}",
    "reads too much": _IMPORTS + _READ + "input()\ninput()\nprint({})",
    "leaves with 1": _IMPORTS + _READ + "print({})\nraise SystemExit(1)",
    "leaves with 0": _IMPORTS + _READ + "print({})\nraise SystemExit(0)",
    "says the function": _IMPORTS + "def solve(a):\n    return {}",
    "long": "# " + "x" * 4000 + "\n" + _IMPORTS + _READ + "print({})",
    "types forgotten": _IMPORTS + "def f(a: List[int]) -> Any:\n    return {}\n" + _READ + "print(f(a))",
    "undefined": _READ + "print({}, undefined_name)",
    "asserts": _IMPORTS + _READ + "assert a\nprint({})",
    "recursion": _IMPORTS
    + "sys.setrecursionlimit(5000)\ndef f(n):\n    return n and f(n - 1)\nf(3000)\n"
    + _READ
    + "print({})",
    "exec": _IMPORTS + _READ + 'exec("print({})")',
    "file": _IMPORTS + _READ + "open('x', 'w').write('1')\nprint({})",
}
FENCES = ("```python\n{}\n```", "Here it is:\n```\n{}\n```\nDone.", "```py\n{}```")

CASES = [
    [tests, FENCES[number % len(FENCES)].replace("{}", form.format(value))]
    for number, ((tests, value), form) in enumerate(itertools.product(TASKS, FORMS.values()))
]
_TESTS, _GOOD = TASKS[0][0], FORMS["plain"].format(TASKS[0][1])
_MANY = {
    "inputs": [f"{i} {'1 ' * i}\n" for i in range(20)],
    "outputs": [str(2 * i if i > 7 else -1) for i in range(20)],
}
CASES += [
    [_TESTS, action]
    for action in (
        "",
        "no block",
        _GOOD,
        f"```python\n{_GOOD}",
        f"```\n```\n```python\n{_GOOD}\n```",
        f"```python\nprint(1)\n```\nno:\n```python\n{_GOOD}\n```",
        f"```python\n{_GOOD}\n```\nor\n```python\nprint(1)\n```",
        "```cpp\nint main() {}\n```",
        "```python\n```",
        "```python\n...\n```",
        f"<answer>{_GOOD}</answer>",
        f"`{_GOOD}`",
    )
] + [[_MANY, "```python\nprint(sum(map(int, input().split())))\n```"], [_MANY, "```python\nprint(-1)\n```"]]

#: Where the two differ: the action, and what GEM pays for it. Here all pass.
DIFFERENT = {
    "forbidden words": (f"```python\nimport sys\n{_GOOD}\nsys.exit(0)\n```", 0.0),
    "a block of other text at the end": (f"```python\n{_GOOD}\n```\nIt prints\n```text\n3\n```", 0.0),
    "a space after the language": (f"```python \n{_GOOD}\n```", -0.1),
}
