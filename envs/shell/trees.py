"""File trees: find, count, move, copy, rename, remove."""

from __future__ import annotations

from rollenv.envs.shell.checks import Folder, Holds, HoldsTree, Line, Missing, Number, Paths, unchanged
from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.task import Family, ShellTask

FAMILY = Family("trees", "files and folders: find, count, move, copy, rename, remove")
_SUFFIXES = ("txt", "md", "csv", "log", "dat", "cfg")


def tree(draw: TaskDraw, size: int, suffixes: tuple[str, ...] = _SUFFIXES) -> dict[str, str]:
    """Draw files of words in folders, path to contents, with different names. ``size``: 1 (no folders) to 5."""
    folders = [""]
    for topic in draw.topics(2 * (size - 1)):
        folders.append(f"{draw.pick(folders[-3:])}{topic}/")
    names = draw.words(draw.files(size))
    paths = [f"{draw.pick(folders)}{name}.{draw.pick(suffixes)}" for name in names]
    return {path: draw.text(draw.number(1, 3)) for path in paths}


def placed(top: str, files: dict[str, str]) -> dict[str, bytes | str]:
    """Put a folder before the paths of files."""
    return {f"{top}/{path}": text for path, text in files.items()}


def wanted(files: dict[str, str]) -> dict[str, bytes]:
    """Convert files to the format of checks."""
    return {path: text.encode() for path, text in files.items()}


@FAMILY.template(1, 2)
def _count_files(draw: TaskDraw, size: int) -> ShellTask:
    """Count the files below a folder."""
    top, files = draw.topic(), tree(draw, size)
    where = "in" if size == 1 else "below"
    depth = "" if size == 1 else ", at any depth (folders themselves do not count)"
    return ShellTask(
        f"How many files are {where} the folder {top}{depth}? Write the number to answer.txt.",
        placed(top, files),
        (f"find {top} -type f | wc -l > answer.txt" if size > 1 else f"ls {top} | wc -l > answer.txt",),
        (Number("answer.txt", len(files)),),
    )


@FAMILY.template(1, 1)
def _rename_file(draw: TaskDraw, size: int) -> ShellTask:
    """Rename one file."""
    old, new = draw.words(2)
    text = draw.text(2)
    return ShellTask(
        f"Rename the file {old}.txt to {new}.txt.",
        {f"{old}.txt": text},
        (f"mv {old}.txt {new}.txt",),
        (Holds(f"{new}.txt", text.encode()), Missing(f"{old}.txt")),
    )


@FAMILY.template(1, 1)
def _copy_file(draw: TaskDraw, size: int) -> ShellTask:
    """Copy one file."""
    old, new = draw.words(2)
    text = draw.text(2)
    return ShellTask(
        f"Copy the file {old}.txt to {new}.txt, and keep {old}.txt.",
        {f"{old}.txt": text},
        (f"cp {old}.txt {new}.txt",),
        (Holds(f"{new}.txt", text.encode()), Holds(f"{old}.txt", text.encode())),
    )


@FAMILY.template(1, 1)
def _remove_file(draw: TaskDraw, size: int) -> ShellTask:
    """Remove one file of several."""
    names = draw.words(draw.number(2, 5))
    files = {f"{name}.txt": draw.text(1) for name in names}
    gone = f"{names[0]}.txt"
    return ShellTask(
        f"Delete the file {gone}, and no other file.",
        dict(sorted(files.items())),
        (f"rm {gone}",),
        (Missing(gone), *unchanged(files, *list(files)[1:])),
    )


@FAMILY.template(1, 2)
def _make_folders(draw: TaskDraw, size: int) -> ShellTask:
    """Make a folder, or nested folders."""
    parts = draw.topics(draw.number(1, 2) if size == 1 else draw.number(3, 5))
    path = "/".join(parts)
    inside = f"{path}/{draw.word()}.txt"
    clause = "" if size == 1 else f" Then create an empty file {inside}."
    return ShellTask(
        f"Create the folder {path}{' (with its parent folders)' if len(parts) > 1 else ''}.{clause}",
        {"notes.txt": draw.text(1)},
        (f"mkdir -p {path}" + ("" if size == 1 else f" && touch {inside}"),),
        (Folder(path), *((Holds(inside, b"", loose=False),) if size > 1 else ())),
    )


@FAMILY.template(2, 5)
def _largest_file(draw: TaskDraw, size: int) -> ShellTask:
    """Find the file with the most bytes."""
    top, files = draw.topic(), tree(draw, size)
    lengths = draw.some(range(20, 4000), len(files))
    files = {
        path: ("x" * 59 + "\n") * (length // 60) + "y" * (length % 60)
        for path, length in zip(files, lengths, strict=True)
    }
    least = size > 2 and draw.chance(0.5)
    chosen = (min if least else max)(files, key=lambda path: len(files[path]))
    flag = "" if least else "r"
    return ShellTask(
        f"Find the {'smallest' if least else 'largest'} file (by size in bytes) below the folder {top}, at any depth. "
        f"Write its path, as in {top}/NAME or {top}/FOLDER/NAME, to answer.txt.",
        placed(top, files),
        (f"find {top} -type f -printf '%s %p\\n' | sort -{flag}n | head -1 | cut -d' ' -f2 > answer.txt",),
        (Paths("answer.txt", (f"{top}/{chosen}",)),),
    )


@FAMILY.template(2, 5)
def _total_size(draw: TaskDraw, size: int) -> ShellTask:
    """Sum the sizes of files with a suffix."""
    top, suffix, files = draw.topic(), draw.pick(_SUFFIXES), tree(draw, size)
    files[f"{draw.token(6)}.{suffix}"] = draw.text(2)
    total = sum(len(text) for path, text in files.items() if path.endswith(f".{suffix}"))
    command = (
        f"find {top} -type f -name '*.{suffix}' -printf '%s\\n' | awk '{{ s += $1 }} END {{ print s }}' > answer.txt"
    )
    return ShellTask(
        f"Add up the sizes in bytes of all files below the folder {top}, at any depth, whose names end in .{suffix}. "
        "Count the bytes of their contents, not disk blocks. Write the total to answer.txt.",
        placed(top, files),
        (command,),
        (Number("answer.txt", total),),
    )


@FAMILY.template(2, 5)
def _change_suffix(draw: TaskDraw, size: int) -> ShellTask:
    """Rename all files with a suffix to another one."""
    top, files = draw.topic(), tree(draw, size, ("txt", "md", "csv"))
    old, new = draw.pick(("txt", "md", "csv")), draw.pick(("text", "old", "bak"))
    files[f"{draw.token(6)}.{old}"] = draw.text(1)
    after = {f"{path.removesuffix(old)}{new}" if path.endswith(f".{old}") else path: t for path, t in files.items()}
    command = f'find {top} -name \'*.{old}\' -type f | while read -r f; do mv "$f" "${{f%.{old}}}.{new}"; done'
    return ShellTask(
        f"Below the folder {top}, at any depth, rename every file whose name ends in .{old} so that it ends in .{new} "
        f"instead (a.{old} becomes a.{new} in the same folder). Leave all other files as they are.",
        placed(top, files),
        (command,),
        (HoldsTree(top, wanted(after)),),
    )


@FAMILY.template(2, 5)
def _gather(draw: TaskDraw, size: int) -> ShellTask:
    """Move all files with a suffix into one folder."""
    top, files, suffix = draw.topic(), tree(draw, size, ("log", "txt", "md")), draw.pick(("log", "txt", "md"))
    files[f"{draw.token(6)}.{suffix}"] = draw.text(1)
    moved = {path for path in files if path.endswith(f".{suffix}")}
    after = {f"{suffix}/{path.rpartition('/')[2]}" if path in moved else path: text for path, text in files.items()}
    return ShellTask(
        f"Move every file below the folder {top}, at any depth, whose name ends in .{suffix} directly into a new "
        f"folder {top}/{suffix}, keeping the file names (they are all different). Other files stay where they are.",
        placed(top, files),
        (f"mkdir {top}/{suffix}", f"find {top} -name '*.{suffix}' -type f -exec mv -n {{}} {top}/{suffix}/ \\;"),
        (HoldsTree(top, wanted(after)),),
    )


@FAMILY.template(2, 5)
def _remove_empty(draw: TaskDraw, size: int) -> ShellTask:
    """Remove empty files and then empty folders."""
    top, files = draw.topic(), tree(draw, size)
    empty = set(draw.some(sorted(files), max(2, len(files) // 3)))
    files = {path: "" if path in empty else text for path, text in files.items()}
    kept = {path: text for path, text in files.items() if text}
    folders = {path.rsplit("/", n)[0] for path in kept for n in range(1, path.count("/") + 1)}
    return ShellTask(
        f"Below the folder {top}, at any depth, delete all files of size 0. Then delete all folders below {top} that "
        "hold no files at any depth. Leave everything else as it is.",
        placed(top, files),
        (f"find {top} -type f -empty -delete", f"find {top} -mindepth 1 -type d -empty -delete"),
        (HoldsTree(top, wanted(kept), frozenset(folders)),),
    )


@FAMILY.template(3, 5)
def _remove_copies(draw: TaskDraw, size: int) -> ShellTask:
    """Remove copies: keep the file with the path that sorts first."""
    top, files = draw.topic(), tree(draw, size)
    contents = [draw.text(2) for _ in range(max(2, len(files) // 2))]
    files = {path: draw.pick(contents) for path in files}
    kept = {text: path for path, text in sorted(files.items(), reverse=True)}
    script = (
        f'find {top} -type f | LC_ALL=C sort | while read -r f; do h=$(sha256sum < "$f"); '
        'if [[ "$seen" == *"$h"* ]]; then rm "$f"; else seen="$seen $h"; fi; done'
    )
    return ShellTask(
        f"Some files below the folder {top} (at any depth) have exactly the same contents. Of each set of equal files "
        f"keep only the one whose path, as in {top}/FOLDER/NAME, comes first in byte order (LC_ALL=C sort), and "
        "delete the others. Files without a copy stay.",
        placed(top, files),
        (script,),
        (HoldsTree(top, {path: text.encode() for text, path in kept.items()}),),
    )


@FAMILY.template(3, 5)
def _remove_old(draw: TaskDraw, size: int) -> ShellTask:
    """Remove files that were last changed before a day."""
    top, files = draw.topic(), tree(draw, size)
    border = draw.moment().replace(hour=0, minute=0, second=0)
    days = {path: draw.number(-40, 40) for path in files}
    days[min(days)], days[max(days)] = -1, 1
    setup = "\n".join(f"touch -d @{int(border.timestamp()) + 86400 * day + 43200} {top}/{p}" for p, day in days.items())
    kept = {path: text for path, text in files.items() if days[path] >= 0}
    return ShellTask(
        f"Delete all files below the folder {top}, at any depth, that were last modified before {border:%Y-%m-%d} "
        "00:00 UTC. Keep the other files.",
        placed(top, files),
        (f"find {top} -type f ! -newermt '{border:%Y-%m-%d} 00:00:00 UTC' -delete",),
        (HoldsTree(top, wanted(kept)),),
        setup,
    )


@FAMILY.template(3, 5)
def _broken_links(draw: TaskDraw, size: int) -> ShellTask:
    """List symbolic links that lead nowhere."""
    top, files = draw.topic(), tree(draw, size)
    names = [f"{name}.lnk" for name in draw.words(len(files))]
    broken = set(draw.some(names, draw.number(2, len(names) - 2)))
    targets = {name: draw.token(8) if name in broken else draw.pick(list(files)) for name in names}
    setup = "\n".join(f"ln -s {target} {top}/{name}" for name, target in targets.items())
    return ShellTask(
        f"The folder {top} holds symbolic links, some of which lead to files that do not exist. Write the names of "
        "these broken links (without the folder) to answer.txt, one a line, in any order.",
        placed(top, files),
        (f"cd {top}; for f in *; do [ -L $f ] && [ ! -e $f ] && echo $f; done > ../answer.txt",),
        (Paths("answer.txt", tuple(sorted(broken))),),
        setup,
    )


@FAMILY.template(4, 5)
def _deepest(draw: TaskDraw, size: int) -> ShellTask:
    """Find the file that holds a word, among files with one name."""
    top, name, mark = draw.topic(), f"{draw.word()}.conf", draw.token()
    folders = ["/".join(draw.topics(draw.number(1, 5))) for _ in range(10 * size)]
    files = {f"{top}/{folder}/{name}": f"id = {draw.token()}\nowner = {draw.person()}\n" for folder in folders}
    right = draw.pick(sorted(files))
    owner = draw.person()
    files[right] = f"id = {mark}\nowner = {owner}\n"
    return ShellTask(
        f"Many folders below {top} hold a file {name}. In exactly one of these files, the value of id is {mark}. "
        "Write the owner in that file (the text after 'owner = ') to answer.txt.",
        dict(sorted(files.items())),
        (f"grep -A1 -rh 'id = {mark}' {top} | sed -n 's/^owner = //p' > answer.txt",),
        (Line("answer.txt", owner),),
    )
