"""Texts and puzzles: decode, extract, compare, count, verify."""

from __future__ import annotations

import base64
import codecs
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable

from rollenv.envs.shell.checks import Holds, Line, Lines, Number, Paths
from rollenv.envs.shell.draw import TaskDraw, listed
from rollenv.envs.shell.logs import RANKED
from rollenv.envs.shell.task import Family, ShellTask

FAMILY = Family("text", "texts and puzzles: decode, extract, compare, count, verify")


@FAMILY.template(1, 1)
def _reverse(draw: TaskDraw, size: int) -> ShellTask:
    """Reverse the order of lines."""
    text = draw.text(draw.number(2, 6))
    return ShellTask(
        "Write the lines of text.txt in reverse order (the last line first) to answer.txt.",
        {"text.txt": text},
        ("tac text.txt > answer.txt",),
        (Lines("answer.txt", tuple(text.splitlines()[::-1])),),
    )


@FAMILY.template(1, 2)
def _unique(draw: TaskDraw, size: int) -> ShellTask:
    """List or count the distinct lines."""
    words = draw.words(draw.number(3, 8) * size)
    lines, count = [*words, *draw.some(words, len(words) // 2)], draw.chance(0.5)
    lines = draw.mixed(lines)
    clause = (
        "How many different lines does list.txt have? Write the number"
        if count
        else ("Write the different lines of list.txt, each once and in alphabetical order,")
    )
    return ShellTask(
        f"{clause} to answer.txt.",
        {"list.txt": "".join(f"{line}\n" for line in lines)},
        (f"sort -u list.txt {'| wc -l ' if count else ''}> answer.txt",),
        (Number("answer.txt", len(words)) if count else Lines("answer.txt", tuple(sorted(words))),),
    )


@FAMILY.template(1, 2)
def _replace(draw: TaskDraw, size: int) -> ShellTask:
    """Replace a word everywhere in a file, or in several."""
    old, new, *others = draw.words(8)
    names = [f"{name}.txt" for name in draw.topics(size if size == 1 else 3)]
    texts = {
        name: "".join(" ".join(draw.some([old, *others], 4)) + "\n" for _ in range(draw.number(2, 5))) + f"{old}\n"
        for name in names
    }
    return ShellTask(
        f"Replace the word {old} with {new} everywhere in {listed(names)}.",
        texts,
        (f"sed -i 's/{old}/{new}/g' {' '.join(names)}",),
        tuple(Holds(name, text.replace(old, new).encode()) for name, text in texts.items()),
    )


@FAMILY.template(1, 2)
def _change_case(draw: TaskDraw, size: int) -> ShellTask:
    """Convert a text to upper or lower case."""
    text, upper = draw.text(2 * size), draw.chance(0.5)
    text = text if upper else text.upper()
    command = "tr a-z A-Z" if upper else "tr A-Z a-z"
    return ShellTask(
        f"Write text.txt with all letters in {'upper' if upper else 'lower'} case to answer.txt.",
        {"text.txt": text},
        (f"{command} < text.txt > answer.txt",),
        (Holds("answer.txt", (text.upper() if upper else text.lower()).encode()),),
    )


_UNHEX = "python3 -c 'import sys; sys.stdout.write(bytes.fromhex(sys.stdin.read()).decode())'"
_CODES: dict[str, tuple[Callable[[str], str], str]] = {
    "base64": (lambda t: base64.encodebytes(t.encode()).decode(), "base64 -d"),
    "hexadecimal (two digits for each byte)": (lambda t: t.encode().hex() + "\n", _UNHEX),
    "rot13": (lambda t: codecs.encode(t, "rot13"), "tr a-zA-Z n-za-mN-ZA-M"),
    "base32": (lambda t: base64.b32encode(t.encode()).decode() + "\n", "base32 -d"),
}


@FAMILY.template(1, 5)
def _decode(draw: TaskDraw, size: int) -> ShellTask:
    """Decode a text that was encoded once or several times."""
    text, names = draw.text(draw.number(1, 2 + size)), [draw.pick(list(_CODES)) for _ in range((size + 1) // 2)]
    if size == 1:
        names = ["base64"]
    coded = text
    for name in names:
        coded = _CODES[name][0](coded)
    commands = [_CODES[name][1] for name in reversed(names)]
    clause = (
        f"encoded with {names[0]}"
        if len(names) == 1
        else f"encoded several times: first with {', then with '.join(names)}"
    )
    return ShellTask(
        f"The text in secret.txt was {clause}. Write the original text to answer.txt.",
        {"secret.txt": coded},
        (f"{' | '.join([f'{commands[0]} < secret.txt', *commands[1:]])} > answer.txt",),
        (Holds("answer.txt", text.encode()),),
    )


@FAMILY.template(2, 4)
def _shifted(draw: TaskDraw, size: int) -> ShellTask:
    """Decipher a Caesar cipher with an unknown shift."""
    shift, key = draw.number(1, 25), draw.word()
    text = draw.text(1 + size) + f"{draw.word()} {key} is the key\n"
    coded = text.translate({97 + n: 97 + (n + shift) % 26 for n in range(26)})
    program = (
        "t = open('secret.txt').read()\n"
        "for n in range(26):\n"
        "    d = t.translate({97 + i: 97 + (i - n) % 26 for i in range(26)})\n"
        "    if ' is the key' in d: open('answer.txt', 'w').write(d)"
    )
    return ShellTask(
        "In secret.txt, every letter was moved forward in the alphabet by the same unknown number of places (z is "
        "followed by a). The last line of the original text ends with: is the key. Write the whole original text to "
        "answer.txt.",
        {"secret.txt": coded},
        (f'python3 -c "{program}"',),
        (Holds("answer.txt", text.encode()),),
    )


@FAMILY.template(2, 5)
def _addresses(draw: TaskDraw, size: int) -> ShellTask:
    """Extract the addresses in a text, each once."""
    people = [person.lower().replace(" ", ".") for person in draw.people(2 + 2 * size)]
    mails = [f"{person}@{draw.word()}.{draw.pick(('org', 'com', 'net'))}" for person in people]
    lines = [
        f"{draw.sentence()} <{draw.pick(mails)}> {draw.sentence()}, @{draw.word()}"
        for _ in range(draw.records(size) // 2)
    ]
    lines += [f"{draw.word()}: {mail}; {draw.word()}" for mail in mails[:2]]
    text = "".join(f"{line}\n" for line in draw.mixed(lines))
    found = sorted(mail for mail in set(mails) if mail in text)
    return ShellTask(
        "Write all e-mail addresses in text.txt (such as ada.kim@example.org) to answer.txt, each once, one a line, "
        "in the order of LC_ALL=C sort.",
        {"text.txt": text},
        ("grep -Eo '[a-z.]+@[a-z]+[.][a-z]+' text.txt | LC_ALL=C sort -u > answer.txt",),
        (Lines("answer.txt", tuple(found)),),
    )


@FAMILY.template(2, 5)
def _frequent_words(draw: TaskDraw, size: int) -> ShellTask:
    """Find the most frequent words."""
    words, most = draw.words(6 + 4 * size), draw.number(2, 3 + size)
    words += words[:3] * 3
    lines = [" ".join(draw.pick(words) for _ in range(7)) for _ in range(draw.records(size))]
    lines = [line.capitalize() + draw.pick((".", "!", "", "?")) for line in lines]
    counts = Counter(word.strip(".!?").lower() for line in lines for word in line.split())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    command = f"grep -Eo '[A-Za-z]+' text.txt | tr A-Z a-z | {RANKED}"
    return ShellTask(
        f"Find the {most} most frequent words of text.txt. Upper and lower case are the same, and punctuation does "
        "not count. Write them to answer.txt, one a line: the word in lower case, a space, how often it occurs. The "
        "most frequent comes first; equally frequent ones are in alphabetical order.",
        {"text.txt": "".join(f"{line}\n" for line in lines)},
        (f"{command} | head -{most} > answer.txt",),
        (Lines("answer.txt", tuple(f"{word} {counts[word]}" for word in ranked)),),
    )


@FAMILY.template(2, 5)
def _differences(draw: TaskDraw, size: int) -> ShellTask:
    """Find the lines of one list that are not in the other."""
    lines = [f"{name} {draw.token(4)}" for name in draw.words(draw.records(size))]
    cut = max(2, len(lines) // 5)
    a, b = draw.mixed(lines[cut:]), draw.mixed(lines[:-cut])
    return ShellTask(
        "Write the lines that are in a.txt but not in b.txt to answer.txt, in the order of LC_ALL=C sort.",
        {"a.txt": "".join(f"{line}\n" for line in a), "b.txt": "".join(f"{line}\n" for line in b)},
        ("grep -vxFf b.txt a.txt | LC_ALL=C sort > answer.txt",),
        (Lines("answer.txt", tuple(sorted(lines[-cut:]))),),
    )


@FAMILY.template(2, 5)
def _checksums(draw: TaskDraw, size: int) -> ShellTask:
    """Find the files that do not match their checksum."""
    files = {f"{name}.dat": draw.text(3) for name in draw.words(draw.files(size))}
    kind = draw.pick(("sha256", "md5", "sha1"))
    sums = "".join(
        f"{hashlib.new(kind, t.encode(), usedforsecurity=False).hexdigest()}  {n}\n" for n, t in files.items()
    )
    bad = draw.some(list(files), draw.number(1, len(files) // 2))
    changed = {name: files[name].replace("a", "e", 1) if "a" in files[name] else f"{files[name]}." for name in bad}
    now = files | changed
    return ShellTask(
        f"sums.txt holds the {kind.upper()} checksums of the .dat files, in the format of {kind}sum. Some files were "
        "changed since. Write the names of the files that no longer have their checksum to answer.txt, one a line, "
        "in any order.",
        {**now, "sums.txt": sums},
        (f"{kind}sum -c sums.txt 2>/dev/null | sed -n 's/: FAILED$//p' > answer.txt",),
        (Paths("answer.txt", tuple(sorted(bad))),),
    )


@FAMILY.template(2, 5)
def _follow(draw: TaskDraw, size: int) -> ShellTask:
    """Follow a chain of files, each of which names the next."""
    names, last = [f"{name}.txt" for name in draw.words(8 * size)], draw.token()
    chain = names[: 3 * size]
    links = {name: f"next: {after}\n" for name, after in itertools.pairwise(chain)} | {chain[-1]: f"end: {last}\n"}
    files = {f"notes/{name}": links.get(name, f"next: {draw.pick(names)}\n") for name in names}
    command = f"f={chain[0]}; while n=$(sed -n 's/^next: //p' notes/$f); [ -n \"$n\" ]; do f=$n; done"
    return ShellTask(
        "Each file in the folder notes holds either the line 'next: NAME', where NAME is another file in notes, or "
        f"the line 'end: WORD'. Start with notes/{chain[0]}, go from file to file until the end, and write the WORD "
        "found there to answer.txt.",
        dict(sorted(files.items())),
        (f"{command}; sed -n 's/^end: //p' notes/$f > answer.txt",),
        (Line("answer.txt", last),),
    )


@FAMILY.template(3, 5)
def _anagrams(draw: TaskDraw, size: int) -> ShellTask:
    """Find the words of a list that are anagrams of a word."""
    word = draw.pick([one for one in draw.words(60) if len(one) > 5])
    right = list(dict.fromkeys("".join(draw.mixed(word)) for _ in range(2 + size)))
    wrong = ["".join(draw.mixed(word[:-1] + draw.pick("aeioubcdq"))) for _ in range(5 * size)] + draw.words(20 * size)
    lines = draw.mixed(list(dict.fromkeys(right + [one for one in wrong if sorted(one) != sorted(word)])))
    program = f"print(*sorted(w for w in open('list.txt').read().split() if sorted(w) == sorted('{word}')), sep='\\n')"
    return ShellTask(
        f"Write all lines of list.txt that consist of exactly the letters of the word {word}, each as often as in it "
        "and in any order, to answer.txt, in alphabetical order.",
        {"list.txt": "".join(f"{line}\n" for line in lines)},
        (f'python3 -c "{program}" > answer.txt',),
        (Lines("answer.txt", tuple(sorted(line for line in lines if sorted(line) == sorted(word)))),),
    )


@FAMILY.template(3, 5)
def _initials(draw: TaskDraw, size: int) -> ShellTask:
    """Extract a message of one letter per line of a text."""
    message = "".join(draw.words(size - 1))
    position = draw.number(1, 3)
    lines = []
    for letter in message:
        words = draw.some([one for one in draw.words(40) if len(one) > 3], 5)
        words[position - 1] = letter + words[position - 1][1:]
        lines.append(" ".join(words))
    which = {1: "first", 2: "second", 3: "third"}[position]
    return ShellTask(
        f"Take the first letter of the {which} word of each line of text.txt, from the first line to the last, and "
        "write these letters as one word without spaces to answer.txt.",
        {"text.txt": "".join(f"{line}\n" for line in lines)},
        (f"cut -d' ' -f{position} text.txt | cut -c1 | tr -d '\\n' > answer.txt",),
        (Line("answer.txt", message),),
    )


@FAMILY.template(1, 1)
def _count_word(draw: TaskDraw, size: int) -> ShellTask:
    """Count the lines with a word."""
    word, *others = draw.words(9)
    hits, misses = draw.number(2, 12), draw.number(2, 6)
    lines = [" ".join(draw.mixed([word, *draw.some(others, 3)])) for _ in range(hits)]
    lines = draw.mixed([*lines, *(" ".join(draw.some(others, 4)) for _ in range(misses))])
    return ShellTask(
        f"How many lines of text.txt contain the word {word}? Write the number to answer.txt.",
        {"text.txt": "".join(f"{line}\n" for line in lines)},
        (f"grep -c {word} text.txt > answer.txt",),
        (Number("answer.txt", hits),),
    )
