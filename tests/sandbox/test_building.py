"""Images from Dockerfiles, without Docker."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from rollenv.sandbox import Image, Limits, Machine, layers
from rollenv.sandbox.dockerfile import expand, parse
from rollenv.sandbox.image_builder import BuildError, build
from rollenv.sandbox.offline import Debs, Offline, Wheels, packages, requirements, system_python, with_files

SMALL = Limits(seconds=60, memory_mb=512, processes=64, disk_mb=64, files=5000)


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    return Offline(Wheels(tmp_path_factory.mktemp("wheels"), fetch=False))


@pytest.fixture
def built(tmp_path, offline):
    """Builds a Dockerfile and runs a command in it."""

    def run(dockerfile, command=None, *, files=(), **settings):
        settings = {"offline": offline} | settings
        for name, contents in dict(files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        (tmp_path / "Dockerfile").write_text(dockerfile)
        image = build(tmp_path, limits=SMALL, **settings)
        if command is None:
            return image
        with Machine.create(image, limits=SMALL) as machine:
            done = machine.run(command)
            assert done.exit_code == 0, done
            return done.stdout

    return run


@pytest.mark.integration
def test_every_instruction(built):
    said = built(
        """# syntax=docker/dockerfile:1
ARG VERSION=24.04
FROM --platform=linux/amd64 ubuntu:${VERSION} AS first
ARG GREETING=hello NAME
ENV A=1 B="two words" C=$GREETING
ENV OLD the old form
WORKDIR /app/deep
WORKDIR ../other
RUN echo "$A $B $C ${NAME:-nobody}" \\
    # a comment in between

    > said && pwd >> said
RUN ["sh", "-c", "echo exec >> said"]
RUN <<EOF
set -e
echo here >> said
EOF
RUN cat <<'END' >> said
$A stays
END
SHELL ["/bin/bash", "-c"]
RUN [[ 1 == 1 ]] && echo bash >> said
COPY --chmod=600 a.txt b* ./files/
COPY folder /copied/
ADD packed.tar.gz /unpacked
COPY <<ONE /inline/one
value $A
ONE
RUN useradd -m ann
COPY --chown=ann a.txt /ann.txt
USER ann
RUN id -un > ~/who
LABEL x=y
EXPOSE 80
CMD ["x"]
FROM first
COPY --from=first /app/other/said /said
""",
        "cat /said; ls files; cat /copied/in/deep.txt /unpacked/x /inline/one; stat -c '%a %U' files/a.txt /ann.txt; "
        "cat ~/who; id -un; pwd",
        files={
            "a.txt": "A", "b1": "", "b2": "", "folder/in/deep.txt": "deep\n", ".dockerignore": "folder/left*\n",
            "folder/left.txt": "", "packed.tar.gz": packed({"x": b"unpacked\n"}),
        },
    ) if os.geteuid() == 0 else pytest.skip("an ordinary user has one user")  # fmt: skip
    assert said == (
        "1 two words hello nobody\n/app/other\nexec\nhere\n$A stays\nbash\na.txt\nb1\nb2\ndeep\nunpacked\nvalue 1\n"
        "600 root\n644 ann\nann\nann\n/app/other\n"
    )


#: (Dockerfile, command, what it says in Docker)
BEGINNINGS = {
    "/app is not there": ("FROM debian\nRUN mkdir /app && ls -d /app", "ls -d /app", "/app"),
    "a folder becomes /app": ("FROM debian\nRUN mkdir /opt/s && touch /opt/s/a && mv /opt/s /app", "ls /app", "a"),
    "/app is a link": ("FROM debian\nRUN mkdir /s && touch /s/a && ln -s /s /app", "ls /app", "a"),
    "a home is its user's": ("FROM debian\nRUN useradd -m -d /app ann", "stat -c %U /app; id -u ann", "ann\n1000"),
    "the user ubuntu": (
        "FROM ubuntu\nUSER ubuntu\nWORKDIR /home/ubuntu",
        "id -un; id -u; pwd",
        "ubuntu\n1000\n/home/ubuntu",
    ),
    "one more user": ("FROM docker.io/library/ubuntu:noble-20250101\nRUN useradd -m ann", "id -u ann", "1001"),
    "an older system": ("FROM ubuntu:22.04\nRUN useradd -m ann", "id -u ann", "1000"),
    "Python": ("FROM python:3\nWORKDIR /app", "ls -d /app; command -v python", "/app\n/usr/local/bin/python"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("dockerfile", "command", "said"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_an_image_begins_as_in_docker(built, dockerfile, command, said):
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has one user")
    assert built(dockerfile, command).strip() == said


def packed(files):
    import io

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return data.getvalue()


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("dockerfile", "says"),
    [
        ("RUN true", "before FROM"),
        ("", "no FROM"),
        ("FROM ghcr.io/someone/private:1", "there is no image"),
        ("FROM scratch\nRUN true", "scratch"),
        ("FROM python:2.7", "there is no image"),
        ("FROM python:3.99-slim", "its Python is"),
        ("FROM ubuntu\nRUN exit 3", ":2: RUN exit 3: it exited with 3"),
        ("FROM ubuntu\nRUN echo why >&2; false", "why"),
        ("FROM ubuntu\nRUN curl -f https://example.com/x", "Could not resolve host: example.com"),
        ("FROM ubuntu\nRUN apt-get update && apt-get install -y no-such-thing", "no-such-thing"),
        ("FROM ubuntu\nRUN pip install no-such-thing-at-all", "no-such-thing-at-all"),
        ("FROM ubuntu\nCOPY nothing /x", "there is no nothing"),
        ("FROM ubuntu\nCOPY ../../etc/passwd /x", "there is no ../../etc/passwd"),
        ("FROM ubuntu\nCOPY x", "sources and a target"),
        ("FROM ubuntu\nADD https://example.com/x /x", "cannot be fetched"),
        ("FROM ubuntu\nCOPY --from=nowhere /x /y", "no stage or image"),
        ("FROM ubuntu\nRUN --mount=type=secret,id=x true", "--mount=type=secret"),
        ("FROM ubuntu\nUSER nobody-here\nRUN true", "no user"),
        ("FROM ubuntu\nRUN <<EOF\ntrue", "nothing ends the heredoc"),
        ("FROM ubuntu\nSHELL /bin/bash -c", "not supported"),
        ("FROM ubuntu\nRUN", "nothing to run"),
        ("FROM ubuntu junk", "an image AS a name"),
        ("FROM ubuntu AS a\nFROM ubuntu AS a", "a stage a already"),
        ("FROM ubuntu AS a\nCOPY --from=a /x /y", "no stage or image"),
        ("FROM ubuntu\nENV A", "NAME=value"),
        ("FROM ubuntu\nENV A=1 B", "NAME=value"),
        ("FROM ubuntu\nENV A=${B", ":2: ENV"),
        ("FROM ubuntu\nENV A='x", "a ' is missing"),
        ("FROM ubuntu\nENV A=${B:?why}", "why"),
        ("FROM ubuntu\nCOPY . . /x", "ends with a slash"),
        ("FROM ubuntu\nCOPY --parents . /x/", "--parents is not supported"),
        ("FROM ubuntu\nCOPY --chmod=u+x . /x/", "--chmod=u+x"),
        ("FROM ubuntu\nCOPY --chown=nobody-here . /x/", "no such user"),
        ("# escape=x\nFROM ubuntu", "escape character"),
        ("FROM ubuntu\nRUN sleep 60", "longer than 2 s"),
    ],
)
def test_what_cannot_be_built_says_why_and_where(dockerfile, says, built):
    with pytest.raises(BuildError) as caught:
        built(dockerfile, timeout=2.0)
    assert says in str(caught.value)


def test_what_images_of_python_and_volumes_have(built):
    dockerfile = (
        f"FROM docker.io/library/python:{system_python()}-slim@sha256:{'a' * 64}\nRUN python -c 'print(1)' > /x\n"
    )
    assert built(f"{dockerfile}VOLUME /data /more\n", "cat /x; python -c 'print(2)'; ls -d /data /more") == (
        "1\n2\n/data\n/more\n"
    )


@pytest.fixture
def with_uv(tmp_path):
    """In place of the network, with something for uv."""
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels/uv-1-py3-none-any.whl", "w") as archive:
        for name in ("uv", "uvx"):
            archive.writestr(f"uv-1.data/scripts/{name}", f"#!/bin/sh\necho {name} $*\n")
    return Offline(Wheels(tmp_path / "wheels", fetch=False))


def test_uv_is_had_from_its_image_and_its_installer(built, with_uv):
    copied = "FROM ubuntu\nCOPY --from=ghcr.io/astral-sh/uv:0.7 /uv /uvx /bin/\n"
    installed = "RUN curl -LsSf https://astral.sh/uv/install.sh | sh\n"
    said = built(copied + installed, "uv a; uvx b; ~/.local/bin/uv c", offline=with_uv)
    assert said == "uv a\nuvx b\nuv c\n"


def test_uv_takes_the_python_that_is_here_and_environments_by_their_path(built, with_uv):
    lines = (
        "pip install -p 3.13 x",
        "pip install --python=3.13 x",
        "pip install --python /tmp x",
        "run -p 3.13 python -p 3",
    )
    runs = "".join(f"RUN uv {line} >> /said\n" for line in lines)
    assert built(f"FROM ubuntu\n{runs}", "cat /said", offline=with_uv).splitlines() == [
        "uv pip install x", "uv pip install x", "uv pip install --python /tmp x", "uv run python -p 3",
    ]  # fmt: skip


def test_layers_are_cached_by_what_they_depend_on(built):
    text = "FROM ubuntu\nCOPY x /x\nRUN cat /proc/sys/kernel/random/uuid > /id\n"
    first = built(text, "cat /id", files={"x": "1"})
    assert built(text, "cat /id", files={"x": "1"}) == first
    assert built(text, "cat /id", files={"x": "2"}) != first
    assert built(text.replace("RUN", "ENV A=1\nRUN"), "cat /id", files={"x": "1"}) != first


def test_flags_and_permissions_are_part_of_what_a_layer_depends_on(built, tmp_path):
    show = "stat -c %a /x"
    assert built("FROM ubuntu\nCOPY --chmod=600 x /x", show, files={"x": ""}) == "600\n"
    assert built("FROM ubuntu\nCOPY --chmod=640 x /x", show) == "640\n"
    (tmp_path / "x").chmod(0o755)
    assert built("FROM ubuntu\nCOPY x /x", show) == "755\n"
    (tmp_path / "x").chmod(0o700)
    first = built("FROM ubuntu\nCOPY x /x")
    assert first.mounts != built("FROM ubuntu\nARG A=1\nCOPY x /y").mounts
    os.utime(tmp_path / "x", (0, 0))
    assert first.mounts == built("FROM ubuntu\nARG A=1\nENV B=1\nCOPY x /x").mounts


def test_hidden_files_are_in_no_image(built):
    said = built("FROM ubuntu\nCOPY . /app/", "find /app | sort", files={"a/.oracle/answer": "42", "a/b": ""})
    assert said.split() == ["/app", "/app/Dockerfile", "/app/a", "/app/a/b"]
    for name in ("a/.oracle", "a/.oracle/answer", "a/.ora*"):
        with pytest.raises(BuildError, match=r"\.ora"):
            built(f"FROM ubuntu\nCOPY {name} /app/")


#: What a Docker engine (28.2) makes of the same.
@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("ENV A=hello\nENV A=bye B=$A\nENV C=$A", {"A": "bye", "B": "hello", "C": "bye"}),
        ("ENV V=1\nENV A='$V x' B=\"$V\" C=a\\ b D=\\$V E=\"\\$V\" F=x\"y z\"w", {
            "V": "1", "A": "$V x", "B": "1", "C": "a b", "D": "$V", "E": "$V", "F": "xy zw",
        }),
        ('ENV A "b c" d\nENV B x = y\nENV C   spaced   out  ', {"A": "b c d", "B": "x = y", "C": "spaced   out"}),
        ("ENV A=$ B=5$ C=a$/b D=$1x E=a\\\\$A", {"A": "$", "B": "5$", "C": "a$/b", "D": "x", "E": "a\\"}),
        ("ENV V=1.2.3\nENV A=${V%.*} B=${V%%.*} C=${V#*.} D=${V##*.} E=${V/./-} F=${V//./-}", {
            "V": "1.2.3", "A": "1.2", "B": "1", "C": "2.3", "D": "3", "E": "1-2.3", "F": "1-2-3",
        }),
        ("ARG A=1 B\nARG C='$A'\nENV X=$A${B-none}$C", {"X": "1none$A"}),
        ("ENV\tA=1 \\\n# comment\n\n  B=2", {"A": "1", "B": "2"}),
        ("ENV A=x\\\\\nENV B=1", {"A": "x\\", "B": "1"}),
    ],
)  # fmt: skip
def test_variables_as_docker_has_them(text, variables, built):
    assert dict(built(f"\ufeffFROM\tubuntu\r\n{text}\n").env) == variables


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one user")
def test_files_lie_where_docker_puts_them(built, tmp_path):
    (tmp_path / "link").symlink_to("a")
    said = built(
        """FROM ubuntu AS One
RUN mkdir /s && echo A > /s/a1 && ln -s a1 /s/l && touch /s/a2 /s/b && chown 7 /s/b
FROM ubuntu AS two
RUN touch /second
ONBUILD RUN touch /o
FROM two
WORKDIR /app
COPY a /app
COPY a b
COPY link /linked
COPY --chown=5:6 a /deep/er/
COPY ?.[!x]t d* /wild/
COPY --from=oNE /s/a* /stage/
COPY --from=0 /s/l /followed
COPY --from=One /s /all
COPY --from=1 /second .
ADD zeros /zeros
""",
        "cd /; find app linked deep wild stage followed all zeros o -printf '%p %y %U\n' | sort",
        files={
            "a": "", "x.txt": "", "y.xt": "", "d/in/x.txt": "", "d/in/skip": "", "d/top": "", "skip": "",
            "zeros": bytes(10240), ".dockerignore": "# all\n*/top\n/skip\n**/in/skip\nd/in/*.txt\n!d/in/x.txt\n",
        },
    )  # fmt: skip
    assert said.splitlines() == [
        "all d 0", "all/a1 f 0", "all/a2 f 0", "all/b f 7", "all/l l 0", "app d 0", "app/a f 0", "app/b f 0",
        "app/second f 0", "deep d 5", "deep/er d 5", "deep/er/a f 5", "followed f 0", "linked f 0", "o f 0",
        "stage d 0", "stage/a1 f 0", "stage/a2 f 0", "wild d 0", "wild/in d 0", "wild/in/x.txt f 0",
        "wild/y.xt f 0", "zeros f 0",
    ]  # fmt: skip


def test_heredocs_are_words_of_their_own(built):
    said = (
        built(
            """FROM ubuntu
SHELL ["/bin/bash", "-c"]
RUN cat <<<"here" > /x; A=2; echo $((1<<A)) "a <<EOF b" >> /x
RUN <<-EOF
	#!/usr/bin/env python3
	open("/x", "a").write("python\\n")
	EOF
ENV A=1
COPY <<one <<'two' /y/
$A \\$A 'q'
one
$A
two
""",
            "cat /x /y/one /y/two; ls -d /run/rollenv/* 2> /dev/null | wc -l",
        )
        if os.geteuid() == 0
        else pytest.skip("an ordinary user has one user")
    )
    assert said == "here\n4 a <<EOF b\npython\n1 $A 'q'\n$A\n0\n"


def test_what_a_killed_build_leaves_is_removed(built):
    store = Path(os.environ["ROLLENV_CACHE"]) / "machines/layers"
    code = "import sys, os; from pathlib import Path; from rollenv.sandbox.layers import made\n"
    code += "with made(Path(sys.argv[1])) as folder: (folder / 'half').touch(); os.kill(os.getpid(), 9)"
    store.mkdir(parents=True, exist_ok=True)
    before = set(store.glob(".*"))
    with mock.patch.object(layers, "_YOUNG", -1.0), layers.made(store / "alive") as alive:
        subprocess.run([sys.executable, "-c", code, str(store / "killed")])
        assert len(set(store.glob(".*")) - before) == 2
        built(f"FROM ubuntu\nRUN echo {time.time()}")
        assert set(store.glob(".*")) - before == {alive}
    assert not (store / "killed").exists()


def test_links_in_a_context_stay_links(built, tmp_path):
    (tmp_path / "link").symlink_to("/etc/shadow")
    assert built("FROM ubuntu\nCOPY . /app/", "readlink /app/link") == "/etc/shadow\n"


def test_a_base_of_ones_own(built, tmp_path):
    seen = []

    def base(name):
        seen.append(name)
        return Image.host()

    assert built("FROM my/own:1\nENV X=1", "echo $X", base=base) == "1\n"
    assert seen == ["my/own:1"]


def test_parsing_keeps_line_numbers_and_expands_variables():
    steps = parse("# a\n\nFROM x\nRUN a \\\n  b\nENV A=1\n")
    assert [(step.name, step.line) for step in steps] == [("FROM", 3), ("RUN", 4), ("ENV", 6)]
    assert expand(r"${A:-b} ${B-c} ${A:+d} $A \$A ${C:-${A}}", {"A": "1"}) == "1 c d 1 $A 1"


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("pip install pytest==8.4.1 'numpy>=2' -r more.txt", ["pytest==8.4.1", "numpy>=2"]),
        ("RUN pip3 install --no-cache-dir \\\n  flask && python3 -m pip install -U x[y]", ["flask", "x[y]"]),
        ("uv add pytest==8.4.1 pytest-json-ctrf==0.3.5", ["pytest==8.4.1", "pytest-json-ctrf==0.3.5"]),
        ("uvx -p 3.13 -w pytest==8.4.1 -w a==1 pytest --ctrf x", ["pytest==8.4.1", "a==1", "pytest"]),
        ("uv run --with requests pytest x", ["requests"]),
        ("pip install . ./x.whl git+https://x && echo pip install", []),
    ],
)
def test_what_scripts_install(script, wanted):
    assert requirements(script) == wanted


LISTED = "# needed\na==1  # why\nb >= 2, < 3 ; python_version > '3'\n-r more.txt\n"
PROJECT = "[build-system]\nrequires = ['hatchling']\n[project]\ndependencies = ['c>=1']\n"


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("RUN pip install --no-cache-dir -r /tmp/needs.txt", ["a==1", "b>=2,<3"]),
        ("uv pip install --requirement='needs.txt' d", ["d", "a==1", "b>=2,<3"]),
        ("pip install -e '.[dev]' && true", ["hatchling", "c>=1"]),
        ("cd /app; uv sync --frozen", ["hatchling", "c>=1"]),
        ("pip install d", ["d"]),
    ],
)
def test_what_files_that_scripts_install_from_list(script, wanted, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/needs.txt").write_text(LISTED)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert [name for text in with_files(script, [tmp_path]) for name in requirements(text)] == wanted


@pytest.fixture(scope="module")
def debs(tmp_path_factory):
    """Two packages that stand in a folder, as apt would have left them there; one needs the other."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("packages of Debian are made with dpkg-deb")
    folder = tmp_path_factory.mktemp("debs")
    for name, needs in (("greeter", "wordlist"), ("wordlist", "")):
        tree = folder / name
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "usr/share" / name).mkdir(parents=True)
        (tree / "usr/share" / name / "text").write_text("hello\n")
        control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\nDescription: none\n"
        (tree / "DEBIAN/control").write_text(control + (f"Depends: {needs}\n" if needs else ""))
        (tree / "DEBIAN/postinst").write_text(f"#!/bin/sh\necho $1 > /var/lib/{name}.configured\n")
        (tree / "DEBIAN/postinst").chmod(0o755)
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, folder / f"{name}.deb"], check=True)
    (folder / "greeter.list").write_text("greeter.deb\nwordlist.deb\n")
    return Debs(folder, fetch=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="the list of packages belongs to the host's root")
def test_packages_that_were_fetched_are_installed_with_their_scripts(built, offline, debs):
    seen = (
        "dpkg-query -W -f '${Status}\\n' greeter wordlist; cat /usr/share/*/text /var/lib/*.configured | sort | uniq -c"
    )
    said = built(
        "FROM ubuntu\nRUN apt-get update && apt-get install -y greeter=1.0", seen, offline=Offline(offline.wheels, debs)
    )
    assert said.split("\n")[:2] == ["install ok installed"] * 2
    assert said.split()[-4:] == ["2", "configure", "2", "hello"]


SCRIPTS = {
    "apt-get update && apt-get install -y curl \\\n  jq && rm -rf /x": ["curl", "jq"],
    "RUN DEBIAN_FRONTEND=noninteractive apt install --no-install-recommends g++ python3.11-dev=3.11.2 a/stable": [
        "g++",
        "python3.11-dev",
    ],
    "sudo /usr/bin/apt-get -qq install ./local.deb libc6:i386": ["libc6"],
    "apt-get update; apt-get remove nano": [],
    "pip install apt requests": [],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_a_script_installs_is_read(script):
    assert packages(script) == SCRIPTS[script]


@pytest.mark.integration
def test_missing_packages_are_fetched_by_the_hosts_apt(tmp_path):
    if not shutil.which("apt-get") or not any(os.scandir("/var/lib/apt/lists")):
        pytest.skip("the host has no apt, or no lists of packages")
    debs = Debs(tmp_path)
    assert debs.ensure(["rollenv-no-such-package", "bash", "sl"]) == ["rollenv-no-such-package"]
    assert (tmp_path / "bash.list").read_text() == ""
    assert not shutil.which("sl")
    assert [path.name.partition("_")[0] for path in tmp_path.glob("sl_*.deb")] == ["sl"]


def test_layers_that_nobody_asks_for_any_more_are_removed(built, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    layers = tmp_path / "cache/machines/layers"
    built("FROM debian\nRUN echo 1 > /one")
    (old,) = layers.iterdir()
    built("FROM debian\nRUN echo 2 > /two")
    (new,) = set(layers.iterdir()) - {old}
    for layer in (old, new):
        os.utime(layer, (0, 0))
    built("FROM debian\nRUN echo 2 > /two")  # which is in use again
    built("FROM debian\nRUN echo 3 > /three")
    assert not old.exists()
    assert new.exists()
    assert len(list(layers.iterdir())) == 2
