"""ALFWorld's official games: ``game.tw-pddl`` files, JSON with a problem in PDDL and a grammar of texts.

Read are the problem's facts and goal, and of the grammar the task's sentence and the two texts that differ between
versions (those of ``go to`` and of putting down). The rules are :mod:`.world`'s; nothing of a file is executed.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollenv.core.errors import MissingData, UsageError
from rollenv.plugins.worlds.alfworld.goals import Goal
from rollenv.plugins.worlds.alfworld.world import SPELLINGS, Receptacle, Room, Spelling, State, Thing

SPLITS = ("train", "valid_seen", "valid_unseen")
#: The folder of the games below ``$ALFWORLD_DATA``.
FOLDER = "json_2.1.1"
FILE = "game.tw-pddl"
HINT = "pip install alfworld && alfworld-download, and set ALFWORLD_DATA to its folder, or pass games=PATH"
_MANGLED = {"_bar_": "|", "_minus_": "-", "_plus_": "+", "_dot_": ".", "_comma_": ","}
_CAN = {
    "pickupable": "take", "heatable": "heat", "coolable": "cool", "cleanable": "clean", "sliceable": "slice",
    "toggleable": "use",
}  # fmt: skip
_MARKS = {"ishot": "hot", "iscool": "cool", "isclean": "clean", "issliced": "sliced", "istoggled": "used"}


def why_not() -> str | None:
    """Return why there are no official games, and what to do; None if ``$ALFWORLD_DATA`` has them."""
    root = os.environ.get("ALFWORLD_DATA", "")
    if root and Path(root).expanduser().is_dir():
        return None
    return f"the official games are not here: {HINT}"


def find_games(games: str, split: str) -> tuple[Path, ...]:
    """Return the solvable games of a split, sorted by their path below the folder, on every machine alike.

    Args:
        games: a game's file, or a folder with games; empty for ``$ALFWORLD_DATA/json_2.1.1/SPLIT``.

    Raises:
        MissingData: there are none.
    """
    given = os.path.expanduser(games or os.environ.get("ALFWORLD_DATA", ""))
    root = Path(given) if games else Path(given, FOLDER, split)
    if root.is_file():
        return (root,)
    found = _games_in(root) if given else ()
    if not found:
        raise MissingData(f"no solvable {FILE} is below {root if given else '$ALFWORLD_DATA'}; {HINT}")
    return found


@functools.lru_cache(maxsize=8)
def _games_in(root: Path) -> tuple[Path, ...]:
    files = sorted(root.rglob(FILE), key=lambda path: path.relative_to(root).as_posix())
    return tuple(path for path in files if _is_played(path.relative_to(root).as_posix()) and _is_solvable(path))


def _is_played(path: str) -> bool:
    """Return whether ALFWorld plays a game: it leaves out movable receptacles and slices."""
    return "movable" not in path and "Sliced" not in path


def _is_solvable(path: Path) -> bool:
    return re.search(rb'"solvable"\s*:\s*true', path.read_bytes()) is not None


@functools.lru_cache(maxsize=128)
def read_game(path: Path, spelling: str = "") -> Room:
    """Read a game; the members of a group share it.

    Args:
        spelling: how objects are put down, a key of :data:`SPELLINGS`; empty for the game's own.

    Raises:
        UsageError: the file is no game of one of the six types; the message says what is wrong with it.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return room_of(data, spelling)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON file: {error}") from error
    except UsageError as error:
        raise UsageError(f"{path} is no game of ALFWorld: {error}") from error


def room_of(data: Any, spelling: str = "") -> Room:
    """Return the room of a game's data: see :func:`read_game`."""
    if not isinstance(data, dict):
        raise UsageError(f"it holds a {type(data).__name__}, not an object with pddl_problem and grammar")
    for key in ("pddl_problem", "grammar"):
        if not isinstance(data.get(key), str):
            raise UsageError(f"it has no text {key!r}")
    examines_near = "location," not in str(data.get("pddl_domain"))
    return _Problem(data["pddl_problem"]).room(data["grammar"], spelling, examines_near)


class _Problem:
    """The facts of a PDDL problem by predicate, and its goal."""

    def __init__(self, text: str):
        sections = {part[0]: part[1:] for part in _parse(text) if isinstance(part, list) and part and _is_name(part[0])}
        for name in (":init", ":goal"):
            if name not in sections:
                raise UsageError(f"its problem has no {name}")
        self.facts: dict[str, list[list[str]]] = defaultdict(list)
        for number, fact in enumerate(sections[":init"], 1):
            if isinstance(fact, list) and fact and all(map(_is_name, fact)):
                self.facts[fact[0]].append(fact[1:])
            elif not (isinstance(fact, list) and fact and fact[0] == "="):
                raise UsageError(f"part {number} of its :init is no fact")
        self.goal = sections[":goal"]
        self.names = display_names({name for facts in self.facts.values() for fact in facts for name in fact})

    def pairs(self, predicate: str) -> list[tuple[str, str]]:
        """Return the facts of a predicate with two arguments, each once, sorted."""
        for fact in self.facts[predicate]:
            if len(fact) != 2:
                raise UsageError(f"({predicate} {' '.join(fact)}) has {len(fact)} arguments instead of 2")
        return sorted({(fact[0], fact[1]) for fact in self.facts[predicate]})

    def marked(self, predicate: str) -> set[str]:
        """Return what a predicate with one argument is true of."""
        return {name for fact in self.facts[predicate] for name in fact[:1]}

    def room(self, grammar: str, spelling: str, examines_near: bool) -> Room:
        kinds = dict(self.pairs("receptacletype"))
        receptacles = sorted(kinds)
        thing_kinds = dict(self.pairs("objecttype"))
        things = sorted(thing_kinds)
        standing = dict(self.pairs("receptacleatlocation"))
        agent = self.pairs("atlocation")
        if len(agent) != 1:
            raise UsageError(f"its agent is at {len(agent)} places instead of 1")
        lying = self.pairs("objectatlocation")
        places = sorted({*standing.values(), *(place for _, place in lying), agent[0][1]})
        at = {name: number for number, name in enumerate(places)}
        for lost in set(receptacles) - standing.keys():
            raise UsageError(f"its receptacle {lost} is at no place")
        r_of = {name: number for number, name in enumerate(receptacles)}
        o_of = {name: number for number, name in enumerate(things)}
        contents: list[set[int]] = [set() for _ in receptacles]
        for thing, receptacle in self.pairs("inreceptacle"):
            if thing not in o_of or receptacle not in r_of:
                raise UsageError(f"(inReceptacle {thing} {receptacle}) names what has no type")
            contents[r_of[receptacle]].add(o_of[thing])
        inside = defaultdict(list)
        for inner, outer in self.pairs("inreceptacleobject"):
            if inner in o_of:
                inside[outer].append(o_of[inner])
        can = {verb: self.marked(predicate) for predicate, verb in _CAN.items()}
        openable, vessels = self.marked("openable"), self.marked("isreceptacleobject")
        held = [thing for _, thing in self.pairs("holds") if thing in o_of]
        start = State(
            at[agent[0][1]],
            o_of[held[0]] if held else -1,
            contents,
            {r_of[name] for name in self.marked("opened") if name in r_of},
            {mark: {o_of[n] for n in self.marked(name) if n in o_of} for name, mark in _MARKS.items()},
            {(o_of[thing], at[place]) for thing, place in lying if thing in o_of},
        )
        task, own, arrives = read_grammar(grammar)
        return Room(
            [Receptacle(self.names[n], _kind(kinds[n]), at[standing[n]], n in openable) for n in receptacles],
            [
                Thing(
                    self.names[name],
                    _kind(thing_kinds[name]),
                    frozenset(verb for verb, known in can.items() if name in known),
                    name in vessels,
                    tuple(inside[name]),
                )
                for name in things
            ],
            start,
            read_goal(self.goal),
            task,
            fits=[(_kind(receptacle), _kind(thing)) for receptacle, thing in self.pairs("cancontain")],
            spelling=SPELLINGS[spelling] if spelling else own,
            places=[self.names[name] for name in places] if arrives else None,
            examines_near=examines_near,
        )


def _kind(name: str) -> str:
    return name.removesuffix("type")


# -- PDDL --------------------------------------------------------------------------------------------------------------


def _parse(text: str) -> list[Any]:
    """Parse the outer expression of a problem, in lower case as planners read it."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text).lower()):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) > 1:
            stack[-2].append(stack.pop())
        else:
            raise UsageError("its problem closes a bracket that was not opened")
    if len(stack) > 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], list):
        raise UsageError("its problem is not one complete (define ...)")
    return stack[0][0]


def _is_name(part: Any) -> bool:
    return isinstance(part, str)


def _atoms(expression: Any) -> Iterator[list[str]]:
    """Yield the facts within a goal. Only ``and``, ``exists`` and ``not (= x y)`` are allowed around them."""
    pending = [expression]
    while pending:
        part = pending.pop()
        if not isinstance(part, list) or not part:
            raise UsageError("its goal has a name or nothing in place of a condition")
        if part[0] == "and":
            pending += part[1:]
        elif part[0] == "exists" and len(part) == 3:
            pending.append(part[2])
        elif part[0] == "not" and len(part) == 2 and isinstance(part[1], list) and part[1][:1] == ["="]:
            yield ["different"]
        elif all(map(_is_name, part)) and part[0] not in ("or", "not", "forall", "imply", "when"):
            yield part
        else:
            raise UsageError(f"its goal has {part[0]!r}, which no task of ALFWorld has")


def read_goal(expressions: Sequence[Any]) -> Goal:
    """Return the goal of a problem, which must be of one of the six types."""
    found = defaultdict(set)
    for expression in expressions:
        for predicate, *arguments in _atoms(expression):
            found[predicate].add(_kind(arguments[-1]) if arguments else "")
    kinds, receptacles = found["objecttype"], found["receptacletype"]
    if found["istoggled"]:
        lamps = {kind for kind in kinds if "lamp" in kind}
        if len(lamps) == 1 and len(kinds) == 2 and found["holds"]:
            return Goal(min(kinds - lamps), lamp=min(lamps))
    elif len(kinds) == len(receptacles) == 1 and found["inreceptacle"]:
        states = [mark for name, mark in _MARKS.items() if found[name]] + ["two"] * bool(found["different"])
        if len(states) <= 1 and states != ["sliced"]:
            return Goal(min(kinds), min(receptacles), *states)
    raise UsageError(f"its goal is none of the six types: {sorted(map(str, found))}")


# -- names and texts ---------------------------------------------------------------------------------------------------


def mangle(name: str) -> str:
    """Return ALFRED's id of an object as a name of PDDL, in lower case."""
    for mangled, sign in _MANGLED.items():
        name = name.replace(sign, mangled)
    return name.lower()


def display_names(ids: set[str]) -> dict[str, str]:
    """Return the name that each id has in the texts: its kind and a number, of which the first id has the highest."""
    kinds = {}
    for each in ids:
        kind, bar, _ = each.partition("_bar_")
        kinds[each] = kind + "basin" * ("basin" in each) if bar else ""
    left = Counter(kinds.values())
    names = {}
    for each in sorted(ids):
        kind = kinds[each]
        names[each] = f"{kind} {left[kind]}" if kind else each
        left[kind] -= 1
    return names


_RULE = r'"{}"\s*:\s*\[\s*\{{\s*"rhs"\s*:\s*"((?:[^"\\]|\\.)*)"'


def read_grammar(grammar: str) -> tuple[str, Spelling, bool]:
    """Return a grammar's task, how it spells putting down, and whether arrivals name a place (as in old games)."""
    texts = {}
    for name in ("task", "GotoLocation.feedback", "PutObject.feedback"):
        match = re.search(_RULE.format(re.escape(name)), grammar)
        if match is None:
            raise UsageError(f"its grammar has no rule {name!r} with one text")
        texts[name] = match[1]
    task = texts["task"].partition("Your task is to:")[2].strip().removesuffix(".")
    if not task or task == "UNKNOWN GOAL":
        raise UsageError("its grammar names no task")
    template = re.search(r'action\s+PutObject\s*\{\s*template\s*::\s*"([^"]*)"', grammar)
    answer = texts["PutObject.feedback"].replace("{o.name}", "{o}").replace("{r.name}", "{r}")
    for spelling in SPELLINGS.values():
        command = f"{spelling.verb} {{o}}{spelling.between}{{r}}"
        if template is not None and template[1] == command and answer == spelling.answer:
            return task, spelling, "{lend.name}" in texts["GotoLocation.feedback"]
    shown = template[1] if template else "nothing"
    raise UsageError(f"its grammar puts down with {shown!r} and {answer!r}, which is neither spelling of ALFWorld")
