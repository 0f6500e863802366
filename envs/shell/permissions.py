"""Permissions: read, set, find, repair."""

from __future__ import annotations

from rollenv.envs.shell.checks import Line, Modes, Number, Paths
from rollenv.envs.shell.draw import TaskDraw, listed
from rollenv.envs.shell.task import Family, ShellTask
from rollenv.envs.shell.trees import placed, tree

FAMILY = Family("permissions", "permissions of files and folders: read, set, find, repair")
_FILE_MODES = (0o600, 0o640, 0o644, 0o664, 0o660, 0o400, 0o440, 0o444, 0o700, 0o750, 0o755, 0o604)
_OPEN_MODES = (0o666, 0o662, 0o646, 0o606, 0o777, 0o622)


def _setup(modes: dict[str, int]) -> str:
    return "\n".join(f"chmod {mode:o} {path}" for path, mode in modes.items())


def _folders(files: dict[str, bytes | str]) -> list[str]:
    """Return all folders above files."""
    return sorted({path.rsplit("/", n)[0] for path in files for n in range(1, path.count("/") + 1)})


@FAMILY.template(1, 2)
def _set_mode(draw: TaskDraw, size: int) -> ShellTask:
    """Set the permissions of files."""
    names = draw.words(size if size == 1 else draw.number(3, 5))
    before = {f"{name}.txt": draw.pick(_FILE_MODES) for name in names}
    after = {path: draw.pick([mode for mode in _FILE_MODES if mode != old]) for path, old in before.items()}
    clause = listed([f"{path} to {mode:o}" for path, mode in after.items()])
    return ShellTask(
        f"Set the permissions of {clause}{' (octal)' if size > 1 else ''}.",
        {path: draw.text(1) for path in before},
        ("; ".join(f"chmod {mode:o} {path}" for path, mode in after.items()),),
        (Modes(after),),
        _setup(before),
    )


@FAMILY.template(1, 1)
def _read_mode(draw: TaskDraw, size: int) -> ShellTask:
    """Find the permissions of a file."""
    name, mode = f"{draw.word()}.txt", draw.pick((*_FILE_MODES, *_OPEN_MODES))
    return ShellTask(
        f"What are the permissions of {name}, as an octal number with three digits? Write it to answer.txt.",
        {name: draw.text(1)},
        (f"stat -c %a {name} > answer.txt",),
        (Number("answer.txt", int(f"{mode:o}")),),
        _setup({name: mode}),
    )


@FAMILY.template(1, 2)
def _make_executable(draw: TaskDraw, size: int) -> ShellTask:
    """Make a script executable for its owner."""
    names = [f"{name}.sh" for name in draw.words(1 if size == 1 else 4)]
    before = {name: draw.pick((0o600, 0o640, 0o644)) for name in names}
    chosen = names if size == 1 else names[:2]
    after = {name: mode | 0o100 if name in chosen else mode for name, mode in before.items()}
    return ShellTask(
        f"Add execute permission for the owner of {listed(chosen)}. Change no other permission.",
        {name: f"#!/bin/bash\necho {draw.word()}\n" for name in sorted(names)},
        (f"chmod u+x {' '.join(chosen)}",),
        (Modes(after),),
        _setup(before),
    )


@FAMILY.template(2, 5)
def _set_tree(draw: TaskDraw, size: int) -> ShellTask:
    """Set one mode for all files, and another for all folders."""
    top = draw.topic()
    files = placed(top, tree(draw, size))
    file_mode, folder_mode = draw.pick((0o600, 0o640, 0o644, 0o660)), draw.pick((0o700, 0o750, 0o755, 0o770, 0o711))
    before = {path: draw.pick(_FILE_MODES) for path in files} | {
        path: draw.pick((0o755, 0o777)) for path in _folders(files)
    }
    return ShellTask(
        f"Set the permissions of all files below the folder {top}, at any depth, to {file_mode:o}, and those of {top} "
        f"itself and of all folders below it to {folder_mode:o}.",
        files,
        (
            f"find {top} -type f -exec chmod {file_mode:o} {{}} +; find {top} -type d -exec chmod {folder_mode:o} "
            "{} +",
        ),
        (Modes(dict.fromkeys(files, file_mode) | dict.fromkeys(_folders(files), folder_mode)),),
        _setup(before),
    )


@FAMILY.template(2, 5)
def _find_writable(draw: TaskDraw, size: int) -> ShellTask:
    """Find world-writable files."""
    top = draw.topic()
    files = placed(top, tree(draw, size))
    modes = {path: draw.pick(_OPEN_MODES if draw.chance(0.3) else _FILE_MODES) for path in files}
    modes[draw.pick(sorted(files))] = 0o666
    found = tuple(sorted(path for path, mode in modes.items() if mode & 0o002))
    return ShellTask(
        f"Find all files below the folder {top}, at any depth, that others (neither owner nor group) have permission "
        f"to write. Write their paths, as in {top}/NAME or {top}/FOLDER/NAME, to answer.txt, one a line, in any order.",
        files,
        (f"find {top} -type f -perm -o+w > answer.txt",),
        (Paths("answer.txt", found),),
        _setup(modes),
    )


@FAMILY.template(3, 5)
def _close_writable(draw: TaskDraw, size: int) -> ShellTask:
    """Remove a permission wherever it is set, and change nothing else."""
    top = draw.topic()
    files = placed(top, tree(draw, size))
    before = {path: draw.pick(_OPEN_MODES if draw.chance(0.4) else _FILE_MODES) for path in files}
    before[draw.pick(sorted(files))] = 0o666
    bits, who = draw.pick(((0o002, "o-w"), (0o022, "go-w"), (0o007, "o-rwx")))
    clause = {
        "o-w": "write permission from others",
        "go-w": "write permission from the group and from others",
        "o-rwx": "all permissions (read, write and execute) from others",
    }[who]
    return ShellTask(
        f"Take away {clause} on all files below the folder {top}, at any depth. All other permissions stay as they are"
        ", and so do those of the folders.",
        files,
        (f"find {top} -type f -exec chmod {who} {{}} +",),
        (Modes({path: mode & ~bits for path, mode in before.items()} | dict.fromkeys(_folders(files), 493)),),
        _setup(before | dict.fromkeys(_folders(files), 493)),
    )


@FAMILY.template(3, 5)
def _scripts(draw: TaskDraw, size: int) -> ShellTask:
    """Make files with a shebang executable, and nothing else."""
    top = draw.topic()
    files: dict[str, bytes | str] = {}
    for path, text in placed(top, tree(draw, size, ("sh", "py", "txt"))).items():
        files[path] = f"#!/bin/{draw.pick(('sh', 'bash'))}\n{text!s}" if draw.chance(0.5) else text
    files[f"{top}/{draw.token(5)}"] = "#!/usr/bin/env python3\nprint(1)\n"
    before = {path: draw.pick((0o644, 0o755)) for path in files}
    after = {path: 0o755 if str(text).startswith("#!") else 0o644 for path, text in files.items()}
    command = (
        f'find {top} -type f | while read -r f; do if [ "$(head -c 2 "$f")" = \'#!\' ]; then chmod 755 "$f"; '
        'else chmod 644 "$f"; fi; done'
    )
    return ShellTask(
        f"Below the folder {top}, at any depth, set the permissions of every file whose contents begin with the two "
        "characters #! to 755, and those of every other file to 644, whatever their names are.",
        files,
        (command,),
        (Modes(after),),
        _setup(before),
    )


@FAMILY.template(3, 5)
def _from_list(draw: TaskDraw, size: int) -> ShellTask:
    """Restore permissions from a list."""
    top = draw.topic()
    files = placed(top, tree(draw, size))
    modes = {path: draw.pick((*_FILE_MODES, *_OPEN_MODES)) for path in files}
    wanted = "".join(f"{mode:04o} {path}\n" for path, mode in draw.mixed(list(modes.items())))
    return ShellTask(
        "Each line of modes.txt is an octal number, a space, and the path of a file. Set the permissions of each "
        "file to its number.",
        files | {"modes.txt": wanted},
        ('while read -r mode path; do chmod "$mode" "$path"; done < modes.txt',),
        (Modes(modes),),
        _setup(dict.fromkeys(files, 420)),
    )


@FAMILY.template(4, 5)
def _shared_folders(draw: TaskDraw, size: int) -> ShellTask:
    """Set the set-group-id and sticky bits of folders with a name."""
    top = draw.topic()
    files = placed(top, tree(draw, size))
    special = [f"{top}/{'/'.join(draw.topics(n))}/shared" for n in range(1, size)]
    files |= {f"{path}/{draw.word()}.txt": draw.text(1) for path in special}
    mode = draw.pick((0o2770, 0o2775, 0o1777))
    modes = {path: mode if path.endswith("/shared") else 0o755 for path in _folders(files)}
    return ShellTask(
        f"Set the permissions of every folder named shared below the folder {top}, at any depth, to {mode:o} (octal). "
        "Leave all other folders, and all files, as they are.",
        files,
        (f"find {top} -type d -name shared -exec chmod {mode:o} {{}} +",),
        (Modes(modes | dict.fromkeys(files, 420)),),
        _setup(dict.fromkeys(_folders(files), 493) | dict.fromkeys(files, 420)),
    )


@FAMILY.template(2, 4)
def _count_mode(draw: TaskDraw, size: int) -> ShellTask:
    """Count the files with exactly these permissions."""
    top = draw.topic()
    files = placed(top, tree(draw, size))
    some = draw.some(_FILE_MODES, 3)
    modes = {path: draw.pick(some) for path in files}
    mode = max(some, key=lambda one: sum(one == other for other in modes.values()))
    return ShellTask(
        f"How many files below the folder {top}, at any depth, have exactly the permissions {mode:o}? Write the "
        "number to answer.txt.",
        files,
        (f"find {top} -type f -perm {mode:o} | wc -l > answer.txt",),
        (Number("answer.txt", sum(one == mode for one in modes.values())),),
        _setup(modes),
    )


@FAMILY.template(2, 3)
def _symbolic(draw: TaskDraw, size: int) -> ShellTask:
    """Write the permissions of a file as letters."""
    name, mode = f"{draw.word()}.{draw.word()}", draw.pick((*_FILE_MODES, *_OPEN_MODES))
    letters = "".join("rwx"[n % 3] if mode >> (8 - n) & 1 else "-" for n in range(9))
    return ShellTask(
        f"Write the permissions of {name} to answer.txt as nine characters, as in rw-r--r-- (without the type of "
        "file).",
        {name: draw.text(1)},
        (f"stat -c %A {name} | cut -c2-10 > answer.txt",),
        (Line("answer.txt", letters),),
        _setup({name: mode}),
    )
