"""Archives: extract, list, make, convert, search."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from rollenv.envs.shell.checks import Holds, HoldsTree, Line, Missing, Number, Paths
from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.packing import gzipped
from rollenv.envs.shell.task import Family, ShellTask
from rollenv.envs.shell.trees import placed, tree, wanted
from rollenv.envs.shell.workspace import Workspace

FAMILY = Family("archives", "tar, gzip and zip archives: extract, list, make, convert, search")
#: Maximum size of an unpacked archive in bytes, and number of its members.
_MOST_BYTES, _MOST_MEMBERS = 16 << 20, 2000


def tarred(files: Mapping[str, str | bytes], packed: bool = False) -> bytes:
    """Return a tar archive of files, compressed or not."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            data = text.encode() if isinstance(text, str) else text
            info.size, info.mtime, info.mode = len(data), 1_700_000_000, 0o644
            archive.addfile(info, io.BytesIO(data))
    return gzipped(out.getvalue()) if packed else out.getvalue()


def zipped(files: Mapping[str, str]) -> bytes:
    """Return a zip archive of files, path to contents."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0)), text)
    return out.getvalue()


@dataclass(frozen=True)
class Archive:
    """Checks that a file is an archive of exactly these files; folders, a leading ``./`` and modes are ignored."""

    path: str
    kind: str
    """``tar``, ``tar.gz``, ``zip`` or ``gz`` (whose one member has no name)."""
    files: Mapping[str, bytes]

    def __call__(self, workspace: Workspace) -> str:
        data = workspace.read(self.path)
        if data is None:
            return f"{self.path} is not a readable file"
        try:
            found = _members(data, self.kind)
        except _ODD:
            return f"{self.path} is not a {self.kind} archive"
        return "" if found == dict(self.files) else f"{self.path} holds other files"


#: Errors that damaged or hostile archives raise.
_ODD = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,
    struct.error,
)


def _members(data: bytes, kind: str) -> dict[str, bytes]:
    if kind == "zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
            if len(members) > _MOST_MEMBERS or sum(one.file_size for one in members) > _MOST_BYTES:
                raise ValueError("the archive is too large")
            return {one.filename.removeprefix("./"): archive.read(one) for one in members}
    if kind != "tar":
        data = _unzipped(data)
    return {"": data} if kind == "gz" else _tar_members(data)


def _unzipped(data: bytes) -> bytes:
    """Return the contents of a gzip file of one or several members."""
    found = b""
    while True:
        machine = zlib.decompressobj(31)
        found += machine.decompress(data, _MOST_BYTES - len(found) + 1)
        if not machine.eof or len(found) > _MOST_BYTES:
            raise ValueError("the archive is cut short or too large")
        data = machine.unused_data.lstrip(b"\0")
        if not data:
            return found


def _tar_members(data: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for number, member in enumerate(archive):
            inner = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if number > _MOST_MEMBERS or not (inner or member.isdir()):
                raise ValueError("the archive has too many members, or odd ones")
            if inner:
                found[member.name.removeprefix("./")] = inner.read(_MOST_BYTES)
    return found


def _bytes(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


@FAMILY.template(1, 2)
def _extract(draw: TaskDraw, size: int) -> ShellTask:
    """Extract a tar archive here, or into a folder."""
    top, files = draw.topic(), tree(draw, size)
    inside = {f"{top}/{path}": text for path, text in files.items()} if size == 1 else files
    packed = draw.chance(0.5)
    name = f"{draw.word()}.tar{'.gz' if packed else ''}"
    into = "" if size == 1 else f" into a new folder {top}"
    command = f"tar xf {name}" if size == 1 else f"mkdir {top}; tar xf {name} -C {top}"
    return ShellTask(
        f"Extract the archive {name}{into or ' here'}.",
        {name: tarred(inside, packed)},
        (command,),
        (HoldsTree(top, wanted(files)),),
    )


@FAMILY.template(1, 1)
def _unpack_file(draw: TaskDraw, size: int) -> ShellTask:
    """Decompress one file."""
    name, text = f"{draw.word()}.txt", draw.text(draw.number(1, 5))
    return ShellTask(
        f"Decompress {name}.gz to {name}.",
        {f"{name}.gz": gzipped(text)},
        (f"gunzip {name}.gz",),
        (Holds(name, text.encode()),),
    )


@FAMILY.template(1, 2)
def _pack_file(draw: TaskDraw, size: int) -> ShellTask:
    """Compress one file."""
    name, text = f"{draw.word()}.txt", draw.text(3 * size)
    keep = size > 1
    return ShellTask(
        f"Compress {name} with gzip to {name}.gz" + (f", and keep {name}." if keep else "."),
        {name: text},
        (f"gzip {'-k ' if keep else ''}{name}",),
        (Archive(f"{name}.gz", "gz", {"": text.encode()}), *((Holds(name, text.encode()),) if keep else ())),
    )


@FAMILY.template(1, 3)
def _count_members(draw: TaskDraw, size: int) -> ShellTask:
    """Count the files in an archive."""
    files, packed = tree(draw, size), draw.chance(0.5)
    suffix = draw.pick(sorted(files)).rpartition(".")[2]
    count = sum(size == 1 or path.endswith(f".{suffix}") for path in files)
    name = f"data.tar{'.gz' if packed else ''}"
    which, test = ("", "") if size == 1 else (f" whose names end in .{suffix}", f" | grep '[.]{suffix}$'")
    return ShellTask(
        f"How many files{which} are in the archive {name}? Write the number to answer.txt.",
        {name: tarred(files, packed)},
        (f"tar tf {name}{test} | wc -l > answer.txt",),
        (Number("answer.txt", count),),
    )


@FAMILY.template(1, 4)
def _make_archive(draw: TaskDraw, size: int) -> ShellTask:
    """Pack a folder."""
    top, files, kind = draw.topic(), tree(draw, size), draw.pick(("tar", "tar.gz"))
    skipped = draw.pick(("log", "dat")) if size > 2 else ""
    kept = {f"{top}/{path}": text for path, text in files.items() if not (skipped and path.endswith(f".{skipped}"))}
    name = f"{draw.word()}.{kind}"
    but = f" except those whose names end in .{skipped}" if skipped else ""
    what = "with all files in it" if size == 1 else f"with all files below it{but}"
    flag = f" --exclude='*.{skipped}'" if skipped else ""
    return ShellTask(
        f"Pack the folder {top}, {what}, into the archive {name}{' (compressed with gzip)' if kind != 'tar' else ''}, "
        f"so that the paths in the archive begin with {top}/.",
        placed(top, files),
        (f"tar c{'z' if kind != 'tar' else ''}f {name}{flag} {top}",),
        (Archive(name, kind, _bytes(kept)),),
    )


@FAMILY.template(2, 4)
def _extract_one(draw: TaskDraw, size: int) -> ShellTask:
    """Extract one file of an archive, and nothing else."""
    files = tree(draw, size)
    chosen, other = draw.some(sorted(files), 2)
    return ShellTask(
        f"The archive data.tar.gz holds the file {chosen}. Write its contents to answer.txt. Do not extract any other "
        "file.",
        {"data.tar.gz": tarred(files, True)},
        (f"tar xzOf data.tar.gz {chosen} > answer.txt",),
        (Holds("answer.txt", files[chosen].encode()), Missing(other)),
    )


@FAMILY.template(2, 5)
def _largest_member(draw: TaskDraw, size: int) -> ShellTask:
    """Find the largest file in an archive."""
    files = tree(draw, size)
    lengths = draw.some(range(10, 5000), len(files))
    files = {path: (draw.token(8) * 700)[:length] for path, length in zip(files, lengths, strict=True)}
    chosen = max(files, key=lambda path: len(files[path]))
    archive = draw.chance(0.5)
    program = "import zipfile; print(max(zipfile.ZipFile('data.zip').infolist(), key=lambda i: i.file_size).filename)"
    command = "tar tvzf data.tar.gz | sort -k3,3n | tail -1 | sed 's/.* //'" if archive else f'python3 -c "{program}"'
    name = "data.tar.gz" if archive else "data.zip"
    return ShellTask(
        f"Which file in the archive {name} has the most bytes (when extracted)? Write its path in the archive to "
        "answer.txt.",
        {name: tarred(files, True) if archive else zipped(files)},
        (f"{command} > answer.txt",),
        (Paths("answer.txt", (chosen,)),),
    )


@FAMILY.template(3, 5)
def _nested(draw: TaskDraw, size: int) -> ShellTask:
    """Find a word in the innermost of nested archives."""
    word, inner = draw.token(), draw.word()
    files: dict[str, str | bytes] = {f"{inner}.txt": f"{word}\n"}
    name = f"{inner}.txt"
    steps = []
    for _ in range(size - 1):
        packed = draw.chance(0.6)
        data = tarred(files | dict(tree(draw, 1)), packed)
        steps.append(name)
        name = f"{draw.word()}-{draw.token(3)}.tar{'.gz' if packed else ''}"
        files = {name: data}
    commands = [f"mkdir -p .x; tar xf {name} -C .x"]
    commands += [f"tar xf .x/{step} -C .x" for step in reversed(steps[1:])]
    return ShellTask(
        f"The archive {name} holds another archive, and so on, {size - 1} archives in all. The innermost holds the "
        f"file {inner}.txt. Write its contents to answer.txt.",
        {name: files[name]},
        (*commands, f"cp .x/{inner}.txt answer.txt"),
        (Line("answer.txt", word),),
    )


@FAMILY.template(3, 5)
def _convert(draw: TaskDraw, size: int) -> ShellTask:
    """Convert a zip archive to a tar archive, or vice versa."""
    files, to_zip = tree(draw, size - 1), draw.chance(0.5)
    old, new = ("data.tar.gz", "data.zip") if to_zip else ("data.zip", "data.tar.gz")
    unpack = f"mkdir .x; tar xzf {old} -C .x" if to_zip else f"mkdir .x; python3 -m zipfile -e {old} .x"
    pack = f"cd .x && python3 -m zipfile -c ../{new} *" if to_zip else f"tar czf {new} -C .x ."
    return ShellTask(
        f"Make an archive {new} that holds the same files, under the same paths, as {old}.",
        {old: tarred(files, True) if to_zip else zipped(files)},
        (unpack, pack),
        (Archive(new, "zip" if to_zip else "tar.gz", _bytes(files)),),
    )


@FAMILY.template(3, 5)
def _damaged(draw: TaskDraw, size: int) -> ShellTask:
    """Find the compressed files that cannot be decompressed."""
    names = [f"{name}.gz" for name in draw.words(draw.files(size))]
    bad = set(draw.some(names, draw.number(1, len(names) // 2)))
    files: dict[str, bytes | str] = {}
    for name in names:
        data = gzipped(draw.text(draw.number(3, 9)))
        cut = data[: len(data) // 2] if draw.chance(0.5) else data[:-8] + bytes(byte ^ 255 for byte in data[-8:])
        files[f"backup/{name}"] = cut if name in bad else data
    return ShellTask(
        "Some of the .gz files in the folder backup are damaged: gzip cannot decompress them without an error. Write "
        "their names (without the folder) to answer.txt, one a line, in any order.",
        files,
        ("cd backup; for f in *.gz; do gzip -t $f 2>/dev/null || echo $f; done > ../answer.txt",),
        (Paths("answer.txt", tuple(sorted(bad))),),
    )


@FAMILY.template(3, 5)
def _changed(draw: TaskDraw, size: int) -> ShellTask:
    """Find the files that differ between a folder and its backup."""
    top, files = draw.topic(), tree(draw, size)
    differ = set(draw.some(sorted(files), draw.number(1, len(files) // 3)))
    now = {path: text + draw.sentence() + "\n" if path in differ else text for path, text in files.items()}
    backup = tarred({f"{top}/{path}": text for path, text in files.items()}, True)
    return ShellTask(
        f"The archive backup.tar.gz is a backup of the folder {top}, whose files have the same paths today. Write the "
        f"paths of those files whose contents differ from the backup, as in {top}/NAME, to answer.txt, one a line, in "
        "any order.",
        placed(top, now) | {"backup.tar.gz": backup},
        (
            f"mkdir .x; tar xzf backup.tar.gz -C .x; diff -rq .x/{top} {top} | sed 's/.* and //; s/ differ$//' > "
            "answer.txt",
        ),
        (Paths("answer.txt", tuple(sorted(f"{top}/{path}" for path in differ))),),
    )
