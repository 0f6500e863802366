"""Builds images from Dockerfiles without Docker. Each instruction is a layer, cached by its inputs."""

from __future__ import annotations

import hashlib
import os
import platform
import posixpath
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollenv.sandbox import image_copy
from rollenv.sandbox.dockerfile import Instruction, expand, parse, split
from rollenv.sandbox.errors import InvalidArgument, SandboxError
from rollenv.sandbox.images import Image
from rollenv.sandbox.layers import made, store
from rollenv.sandbox.machine import LIMITS, PATH, Machine
from rollenv.sandbox.offline import Offline, system_python, with_files
from rollenv.sandbox.types import CommandResult, Limits

#: Images that the host's system can replace, with the program that must exist.
KNOWN = (
    (re.compile(r"(ubuntu|debian|buildpack-deps)(:[\w.-]+)?"), "bash"),
    (re.compile(r"python:(?P<python>3(\.\d+)?)(\.\d+)?(-[\w.-]+)?"), "python3"),
    (re.compile(r"gcc(:[\w.-]+)?"), "gcc"),
    (re.compile(r"ghcr\.io/laude-institute/t-bench/(ubuntu|python)[\w.-]*(:[\w.-]+)?"), "bash"),
)
#: Optional parts of an image's name: the registry of Docker's own images, and a digest.
_AROUND = re.compile(
    r"^((index\.)?docker\.io/|public\.ecr\.aws/docker/|mirror\.gcr\.io/)?(library/)?|@sha256:[0-9a-f]+$"
)
#: Images that have a user ``ubuntu`` with the number 1000: Ubuntu since 23.04.
_WITH_USER = re.compile(
    r"ubuntu(?!:((1\d|2[0-2])\.|trusty|xenial|bionic|focal|jammy))(:.*)?|buildpack-deps:(noble|2[3-9]\.).*"
    r"|ghcr\.io/laude-institute/t-bench/ubuntu-2[4-9].*"
)
_UV = re.compile(r"(ghcr\.io/astral-sh|(docker\.io/)?astral)/uv([:@][\w.:@-]+)?$")
#: Names in a context that are never copied: solutions in some task folders.
HIDDEN = (".oracle",)
#: Ignored instructions about running a container.
_NOTED = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK"})
#: Supported flags by instruction; RUN's mounts are checked separately.
_FLAGS = {
    "FROM": {"platform"}, "RUN": {"mount", "network"}, "COPY": {"from", "chown", "chmod", "link"},
    "ADD": {"chown", "chmod", "link"},
}  # fmt: skip
_SHOWN = 1500
#: Part of the cache key of layers; raise it when the effect of an instruction changes.
_VERSION = "2"
#: Temporary path of a heredoc with a #! line, which is excluded from layers.
_SCRIPT = "/run/rollenv/script"

Base = Callable[[str], Image | None]


class BuildError(SandboxError):
    """An image could not be built from a Dockerfile on this machine."""


@dataclass
class _Stage:
    """A stage of a build: the image so far and its variables."""

    image: Image
    key: str
    args: dict[str, str] = field(default_factory=dict)
    triggers: list[Instruction] = field(default_factory=list)
    """ONBUILD instructions, for images based on this one."""


def build(
    context: str | os.PathLike[str],
    dockerfile: str = "Dockerfile",
    *,
    base: Base | None = None,
    args: Mapping[str, str] | None = None,
    offline: Offline | None = None,
    hidden: Sequence[str] = HIDDEN,
    ignored: Sequence[str] = (),
    limits: Limits = LIMITS,
    timeout: float = 600.0,
) -> Image:
    """Build the image of a Dockerfile.

    FROM accepts images of ``base``, images that the host's system can replace (:data:`KNOWN`), ``scratch`` and earlier
    stages. RUN has no network: see :class:`Offline` for what works without one.

    Args:
        context: folder that files are copied from.
        base: returns the image for a name, or None.
        hidden: names in the context to exclude.
        ignored: patterns in addition to those of ``.dockerignore``.
        timeout: timeout of each RUN in seconds.

    Raises:
        BuildError: the image cannot be built; the text names the line.
    """
    folder = Path(context)
    try:
        text = (folder / dockerfile).read_text(encoding="utf-8", errors="replace")
        instructions = parse(text)
    except (OSError, InvalidArgument) as error:
        raise BuildError(f"{folder / dockerfile}: {error}") from error
    offline = offline or Offline()
    offline.prepare(with_files(text, [folder]))
    files = image_copy.BuildContext(folder, dockerfile, hidden, ignored)
    builder = _Builder(files, dockerfile, base, dict(args or {}), offline, limits, timeout)
    return builder.run(instructions)


class _Builder:
    def __init__(
        self,
        context: image_copy.BuildContext,
        name: str,
        base: Base | None,
        args: dict[str, str],
        offline: Offline,
        limits: Limits,
        timeout: float,
    ):
        self.context, self.folder, self.name = context, context.folder, name
        self.base, self.args, self.offline = base, args, offline
        self.limits, self.timeout = limits, timeout
        self.stages: list[_Stage] = []
        self.named: dict[str, _Stage] = {}
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        parts = {"OS": "linux", "ARCH": machine, "VARIANT": "", "PLATFORM": f"linux/{machine}"}
        self.globals: dict[str, str] = {
            f"{whose}{part}": value for whose in ("TARGET", "BUILD") for part, value in parts.items()
        }

    def run(self, instructions: list[Instruction]) -> Image:
        stage: _Stage | None = None
        for step in instructions:
            try:
                unknown = {name for name, _ in step.flags} - _FLAGS.get(step.name, set())
                if unknown and step.name not in (*_NOTED, "ONBUILD"):
                    raise InvalidArgument(f"--{min(unknown)} is not supported here")
                if step.name == "FROM":
                    stage = self._from(step)
                elif stage is None:
                    if step.name != "ARG":
                        raise BuildError(f"{self._where(step)}: comes before FROM")
                    self.globals |= self._arguments(step, self.globals)
                else:
                    self._do(stage, step)
            except BuildError:
                raise
            except (InvalidArgument, SandboxError, OSError, ValueError, tarfile.TarError) as error:
                raise BuildError(f"{self._where(step)}: {error}") from error
        if stage is None:
            raise BuildError(f"{self.folder / self.name}: there is no FROM")
        return stage.image

    def _where(self, step: Instruction) -> str:
        return f"{self.folder / self.name}:{step.line}: {step.name} {step.text[:120]}"

    def _arguments(self, step: Instruction, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of ARG; one without a value here, before FROM or from outside stays unset."""
        values = {}
        for word in split(step.text, step.escape):
            name, has, value = word.partition("=")
            if name in self.args:
                values[name] = self.args[name]
            elif has:
                values[name] = expand(value, {**variables, **values}, step.escape)
            elif name in self.globals:
                values[name] = self.globals[name]
        return values

    def _from(self, step: Instruction) -> _Stage:
        words = [expand(word, self.globals, step.escape) for word in step.text.split()]
        if len(words) != 1 and (len(words) != 3 or words[1].upper() != "AS"):
            raise InvalidArgument("FROM takes an image, or an image AS a name")
        name, alias = words[0], words[-1].lower() if len(words) == 3 else ""
        if alias in self.named:
            raise InvalidArgument(f"there is a stage {alias} already")
        if old := self.named.get(name.lower()):
            stage = _Stage(old.image, old.key)
            for trigger in old.triggers:
                self._do(stage, trigger)
        else:
            image = image_for(name, self.base)
            stage = _Stage(image, _key(_VERSION, name, str(image.mounts), _packages()))
        self.stages.append(stage)
        if alias:
            self.named[alias] = stage
        return stage

    def _do(self, stage: _Stage, step: Instruction) -> None:
        if step.name in _NOTED:
            return
        if step.name == "VOLUME":
            words = step.listed() or split(step.text, step.escape)
            paths = [posixpath.join("/", self._expand(stage, step, word)) for word in words]
            self._layer(stage, step, lambda machine: _make(machine, paths), *paths)
        elif step.name == "RUN":
            self._run(stage, step)
        elif step.name in ("COPY", "ADD"):
            self._copy(stage, step)
        elif step.name == "ENV":
            pairs = {name: self._expand(stage, step, value) for name, value in _pairs(step)}
            stage.image = replace(stage.image, env={**stage.image.env, **pairs})
        elif step.name == "ARG":
            stage.args |= self._arguments(step, self._variables(stage))
        elif step.name == "WORKDIR":
            # The folder belongs to the image's user, as in BuildKit.
            path = posixpath.normpath(posixpath.join(stage.image.workdir, self._expand(stage, step, step.text)))

            def act(machine: Machine) -> None:
                if not machine.files.exists(f"{path}/."):
                    user = stage.image.user
                    image_copy.put(machine, [image_copy.NOTHING], path, True, "" if user == "root" else user, "")
                    machine.files.make_dir(path)  # raises if the path is a file

            self._layer(stage, step, act, path, stage.image.user)
            stage.image = replace(stage.image, workdir=path)
        elif step.name == "USER":
            stage.image = replace(stage.image, user=self._expand(stage, step, step.text))
        elif step.name == "SHELL" and (listed := step.listed()):
            stage.image = replace(stage.image, shell=tuple(listed))
        elif step.name == "ONBUILD" and (later := parse(step.text)):
            stage.triggers.append(replace(later[0], line=step.line, escape=step.escape))
        else:
            raise BuildError(f"{self._where(step)}: this instruction is not supported here")

    def _variables(self, stage: _Stage) -> dict[str, str]:
        return {"PATH": PATH, **stage.args, **stage.image.env}

    def _expand(self, stage: _Stage, step: Instruction, word: str) -> str:
        return expand(word, self._variables(stage), step.escape)

    # -- layers ------------------------------------------------------------------------------------------------------

    def _layer(self, stage: _Stage, step: Instruction, act: Callable[[Machine], object], *depends: str) -> None:
        """Add a layer with the changes of an action."""
        key = _key(stage.key, step.name, str(step.flags), *depends)
        stage.image, stage.key = _image_after(stage.image, key, act, self.limits, self.offline.shown()), key

    def _run(self, stage: _Stage, step: Instruction) -> None:
        if not step.text:
            raise InvalidArgument("there is nothing to run")
        for name, value in step.flags:
            if name == "mount" and "type=cache" not in value and "type=tmpfs" not in value:
                raise BuildError(f"{self._where(step)}: --mount={value} is not supported here, only caches are")
        if (listed := step.listed()) is not None:
            command = listed
        elif step.heredocs and step.text.startswith("<<") and len(step.text.split()) == 1:
            script = step.heredocs[0][1]
            command = [_SCRIPT] if script.startswith("#!") else [*stage.image.shell, script]
        else:
            ends = "".join(f"\n{body}{name}" for name, body, _ in step.heredocs)
            command = [*stage.image.shell, step.text + ends]
        path = stage.image.env.get("PATH", PATH)
        env = {**stage.args, **stage.image.env, **self.offline.env(path)}

        def act(machine: Machine) -> None:
            if command == [_SCRIPT]:
                image_copy.put(machine, [image_copy.text_source("script", script)], _SCRIPT, False, "", "755")
            done = machine.run(command, env=env, timeout=self.timeout)
            if done.exit_code != 0:
                raise BuildError(f"{self._where(step)}: {_why(done)}")

        image = stage.image
        state = (image.env, image.user, image.workdir, stage.args)
        self._layer(stage, step, act, step.text, str(step.heredocs), str(image.shell), *map(str, state))

    def _copy(self, stage: _Stage, step: Instruction) -> None:
        flags = {name: self._expand(stage, step, value) for name, value in step.flags}
        words, heredocs = step.words(), [name for name, _, _ in step.heredocs]
        if not step.listed():
            words = [w for w in words if "<<" not in w or w.lstrip("0123456789<-\"'").rstrip("\"'") not in heredocs]
        *names, target = [self._expand(stage, step, word) for word in words] or [""]
        if not target or not (names or step.heredocs):
            raise InvalidArgument(f"{step.name} takes sources and a target")
        into = target.endswith("/") or posixpath.basename(target) in (".", "..")
        if len(names) + len(step.heredocs) > 1 and not into:
            raise InvalidArgument("the target of several sources must be a folder that ends with a slash")
        destination = posixpath.normpath(posixpath.join(stage.image.workdir, target))
        archives: list[Path] = []
        if "from" in flags:
            key, get = self._from_stage(stage, flags["from"], names)
        else:
            key, get, archives = self._from_context(stage, step, names)

        def act(machine: Machine) -> None:
            image_copy.put(machine, get(), destination, into, flags.get("chown", ""), flags.get("chmod", ""))
            for path in archives:
                machine.unpack(image_copy.plain(path), destination)

        self._layer(stage, step, act, destination, str(into), str(sorted(flags.items())), *key)

    def _from_context(
        self, stage: _Stage, step: Instruction, names: list[str]
    ) -> tuple[list[str], Callable[[], list[image_copy.Source]], list[Path]]:
        """Return the parts of the layer's cache key, the sources, and the archives that ADD unpacks."""
        if remote := [name for name in names if re.match(r"(https?|git|ssh)://|git@", name)]:
            raise InvalidArgument(f"{remote[0]} cannot be fetched: there is no network")
        paths = [path for name in names for path in self.context.found(name)]
        archives = [path for path in paths if step.name == "ADD" and path.is_file() and image_copy.is_archive(path)]
        variables = self._variables(stage)
        texts = [
            (name, expand(body, variables, quotes=False) if expands else body) for name, body, expands in step.heredocs
        ]
        key = [each for path in paths for each in self.context.digests(path)] + [str(texts), str(archives)]

        def get() -> list[image_copy.Source]:
            files = [self.context.source(path) for path in paths if path not in archives]
            return [image_copy.text_source(*text) for text in texts] + files

        return key, get, archives

    def _from_stage(
        self, stage: _Stage, name: str, names: list[str]
    ) -> tuple[list[str], Callable[[], list[image_copy.Source]]]:
        """Return the parts of the layer's cache key, and the sources."""
        number = int(name) if name.isdecimal() else len(self.stages)
        other = self.stages[number] if number < len(self.stages) else self.named.get(name.lower())
        image = other.image if other else None
        if other is None and _UV.match(name):
            image = self.offline.uv()
        if image is None and self.base:
            image = self.base(name)
        image = image or _standing_for(name)
        if image is None or other is stage:
            raise InvalidArgument(f"there is no stage or image {name!r} before this one")

        def get() -> list[image_copy.Source]:
            with Machine.create(image, limits=self.limits) as machine:
                most = self.limits.disk_mb << 20
                return [each for name in names for each in image_copy.machine_sources(machine, name, most)]

        return [other.key if other else f"{name} {image.mounts}", *names], get


def _after(image: Image, command: str) -> Image:
    """Return the image after a shell command that root runs once."""

    def act(machine: Machine) -> None:
        done = machine.run(["/bin/sh", "-c", command], user="0", cwd="/")
        if done.exit_code != 0:
            raise BuildError(f"{command}: {_why(done)}")

    return _image_after(image, _key(_VERSION, str(image.mounts), _packages(), command), act, LIMITS)


def _image_after(
    image: Image,
    key: str,
    act: Callable[[Machine], object],
    limits: Limits,
    shown: Mapping[str, str | os.PathLike[str]] | None = None,
) -> Image:
    """Return the image with a layer of an action's changes, from the cache if there is one."""
    target = store() / "layers" / key
    with made(target) as folder:
        if folder is not None:
            with Machine.create(image, limits=limits, shown=shown) as machine:
                act(machine)
                machine.end_processes()
                machine.commit(folder, keep=_is_of_image)
    return image.over(target)


def image_for(name: str, base: Base | None = None) -> Image:
    """Return the image for a registry's name: from ``base``, else the host's system if it can replace the image."""
    image = (base(name) if base else None) or _standing_for(name)
    if image is None:
        raise InvalidArgument(
            f"there is no image {name!r} here, and none can be pulled. The host's system "
            "stands for ubuntu, debian, buildpack-deps and python; give others with base= (Image.folder of a "
            "root file system, Image.archive of `docker export`)"
        )
    return image


def _standing_for(name: str) -> Image | None:
    if name == "scratch":
        raise InvalidArgument("there is no shell in scratch to build with here")
    for pattern, program in KNOWN:
        if match := pattern.fullmatch(_AROUND.sub("", name)):
            if not any(os.access(f"{folder}/{program}", os.X_OK) for folder in ("/usr/bin", "/bin", "/usr/local/bin")):
                raise InvalidArgument(f"the host's system cannot stand for {name}: it has no {program} in /usr/bin")
            wanted = match.groupdict().get("python") or ""
            if wanted and not f"{system_python()}.".startswith(f"{wanted}."):
                raise InvalidArgument(
                    f"the host's system cannot stand for {name}: its Python is {system_python()}. Give a root file "
                    "system with base= (Image.folder, or Image.archive of `docker export`)"
                )
            image, command = Image.host(work=False), _first(name)
            return _after(image, command) if command else image
    return None


def _first(name: str) -> str:
    """Return a command that adds what an image has and the host's system lacks."""
    if "python" in name:
        return "ln -sf /usr/bin/python3 /usr/local/bin/python"
    if not _WITH_USER.fullmatch(_AROUND.sub("", name)):
        return ""
    # A machine of an unprivileged user may have no user but root.
    groups = "adm,dialout,cdrom,floppy,sudo,audio,dip,video,plugdev"
    return f"useradd -m -c Ubuntu -s /bin/bash -G {groups} ubuntu || ! chown 1000 /tmp"


def _make(machine: Machine, paths: list[str]) -> None:
    for path in paths:
        image_copy.put(machine, [image_copy.NOTHING], path, True, "", "")


def _packages() -> str:
    """Return a text that changes with the host's packages."""
    try:
        return str(os.stat("/var/lib/dpkg/status").st_mtime_ns)
    except OSError:
        return ""


def _is_of_image(path: str, member: tarfile.TarInfo, contents: object) -> bool:
    """Return whether a file belongs to the image, not to the build itself."""
    return not path.startswith(("/opt/rollenv", "/run/rollenv"))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _why(done: CommandResult) -> str:
    output = (done.stdout[-_SHOWN:] + done.stderr[-_SHOWN:]).strip()
    return f"{done.error.value if done.error else done.exit_code}. Output: {output[-_SHOWN:]}"


def _pairs(step: Instruction) -> list[tuple[str, str]]:
    """Parse the names and values of an ENV: ``A=1 B=2``, or the old form ``A 1``."""
    words = split(step.text, step.escape)
    if words and "=" not in words[0]:
        name, _, rest = step.text.replace("\t", " ").partition(" ")
        pairs = [(name, rest.strip())] if rest.strip() else []
    else:
        pairs = [(name, value) for name, has, value in (word.partition("=") for word in words) if has and name]
    if not pairs or (len(pairs) != len(words) and "=" in words[0]):
        raise InvalidArgument("ENV takes NAME=value ..., or NAME and a value")
    return pairs
