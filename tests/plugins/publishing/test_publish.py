"""An index of environment packages: `rollenv publish`, `rollenv list --index`, `rollenv install`."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from listening import listening

from rollenv.core.errors import UsageError
from rollenv.plugins.publishing.package_index import check_contents, check_wheel, read_wheel
from rollenv.plugins.publishing.publish import build_wheel
from rollenv.serve.catalog import CATALOG, read_catalog

ENV = """
import rollenv

class Coin(rollenv.Env):
    def _reset(self, options):
        self.side = self.np_random.integers(2)
        return "heads or tails?", {}

    def _step(self, action):
        return "done", float(action == ("heads", "tails")[self.side]), True, False, {}
"""
BROKEN = ENV.replace("self.np_random.integers(2)", "__import__('random').randrange(2)")


def wheel(folder, env=ENV, version="1.0", points="[rollenv.envs]\ncoin_env = coin_env:register_envs\n"):
    """A wheel of a package with one environment."""
    path = Path(folder, f"coin_env-{version}-py3-none-any.whl")
    register = '\n\ndef register_envs():\n    rollenv.register("coin_env:Coin-v0", "coin_env:Coin")\n'
    about = f"coin_env-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("coin_env.py", env + register)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: coin-env\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/entry_points.txt", points)
        file.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, rollenv_command):
    done = rollenv_command("publish", str(wheel(tmp_path)), "--to", "index", "-n", "2")
    assert done.returncode == 0, done.stderr
    return tmp_path / "index"


@pytest.fixture
def served(index):
    with listening(functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(index))) as address:
        yield f"http://{address}"


@pytest.mark.slow
def test_a_checked_package_is_listed_and_installed_from_a_folder_and_a_server(index, served, tmp_path, rollenv_process):
    record = json.loads((index / "coin-env" / "coin_env-1.0-py3-none-any.whl.json").read_text())
    checks = record["environments"]["coin_env:Coin-v0"]["checks"]
    assert {"types", "processes"} <= {check["name"] for check in checks if check["ok"]}
    for place in (str(index), served):
        listed = rollenv_process("list", "--index", place)
        assert "coin_env:Coin-v0" in listed.stdout
    target = tmp_path / "site"
    done = rollenv_process("install", "coin-env", "--from", served, env=os.environ | {"PIP_TARGET": str(target)})
    assert done.returncode == 0, done.stderr
    played = rollenv_process(
        "eval", "coin_env:Coin-v0", "-a", "nop", "-n", "2", env=os.environ | {"PYTHONPATH": str(target)}
    )
    assert played.returncode == 0, played.stderr


@pytest.mark.slow
def test_a_wheel_has_what_is_in_the_folder_now_and_is_the_same_when_that_is(tmp_path):
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools>=77']\n[project]\nname = 'sums'\nversion = '1'"
    )
    (folder / "sums").mkdir()
    built = []
    for names in (("old", "sums"), ("sums",), ("sums",)):
        for file in (folder / "sums").iterdir():
            file.unlink()
        for name in names:
            (folder / "sums" / f"{name}.py").write_text("")
        (into := tmp_path / str(len(built))).mkdir()
        built.append(build_wheel(folder, into).read_bytes())
    assert b"sums/old.py" in built[0]
    assert b"sums/old.py" not in built[1]
    assert built[1] == built[2]
    assert not (folder / "build").exists()


@pytest.mark.slow
def test_a_wheel_that_was_changed_is_refused(index, tmp_path, rollenv_command):
    file = index / "coin-env" / "coin_env-1.0-py3-none-any.whl"
    file.write_bytes(file.read_bytes().replace(b"heads or tails", b"rm -rf or tail"))
    done = rollenv_command("install", "coin-env==1.0", "--from", str(index))
    assert done.returncode == 2
    assert "SHA-256" in done.stderr
    again = rollenv_command("publish", str(wheel(tmp_path, ENV.replace("heads or", "tails or"))), "--to", "index")
    assert again.returncode == 2
    assert "raise the version" in again.stderr


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"env": BROKEN}, "global rng"),
        ({"env": "import nothing_of_this_name"}, "nothing_of_this_name"),
        ({"points": ""}, "rollenv.envs"),
    ],
)
def test_what_keeps_no_promises_is_not_published(made, said, tmp_path, rollenv_command):
    done = rollenv_command("publish", str(wheel(tmp_path, **made)), "--to", "index", "-n", "2")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "index").exists()


def test_places_that_are_no_index_are_said(tmp_path, rollenv_command):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rollenv.json").write_text('[{"name": 1}]')
    (tmp_path / "file.whl").write_text("no zip")
    for words in (
        ["install", "coin-env", "--from", "nowhere"],
        ["install", "coin-env", "--from", "bad"],
        ["list", "--index", "http://127.0.0.1:9"],
        ["publish", "nowhere", "--to", "index"],
        ["publish", "file.whl", "--to", "index"],
    ):
        assert rollenv_command(*words).returncode == 2, words


ROW = {
    "name": "coin-env",
    "version": "1.0",
    "wheel": "coin_env-1.0-py3-none-any.whl",
    "sha256": 64 * "0",
    "ids": ["coin_env:Coin-v0"],
}


@pytest.mark.parametrize(
    "lie",
    [
        {"name": "/etc"},
        {"name": "../coin-env", "wheel": "../coin_env-1.0-py3-none-any.whl"},
        {"name": 1},
        {"name": "<b>"},
        {"version": "1.0/../.."},
        {"version": None},
        {"wheel": "../coin_env-1.0-py3-none-any.whl"},
        {"wheel": "other-1.0-py3-none-any.whl"},
        {"sha256": ""},
        {"ids": ["a\x1b]0;title"]},
        {"ids": [1]},
        {"ids": 1},
    ],
    ids=str,
)
def test_a_catalog_whose_fields_could_be_more_than_names_is_refused(lie, tmp_path):
    (tmp_path / CATALOG).write_text(json.dumps([ROW]))
    assert [p.name for p in read_catalog(str(tmp_path))] == ["coin-env"]
    (tmp_path / CATALOG).write_text(json.dumps([ROW | lie]))
    with pytest.raises(UsageError, match="is damaged"):
        read_catalog(str(tmp_path))


def test_a_catalog_of_endless_depth_is_damaged(tmp_path):
    (tmp_path / CATALOG).write_text(100_000 * "[")
    with pytest.raises(UsageError, match="is damaged"):
        read_catalog(str(tmp_path))


@pytest.mark.parametrize("name", ["../../coin", "/coin", "", "other", None])
def test_a_wheel_that_calls_itself_otherwise_is_refused(name, tmp_path):
    about = "coin_env-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / ROW["wheel"], "w") as file:
        file.writestr(f"{about}/METADATA", "Version: 1.0\n" + (f"Name: {name}\n" if name is not None else ""))
        file.writestr(f"{about}/entry_points.txt", "[rollenv.envs]\na = a:b\n")
    with pytest.raises(UsageError, match="is no"):
        read_wheel(tmp_path / ROW["wheel"])


def test_what_a_wheel_unpacks_stays_in_its_folder(tmp_path):
    hostile = wheel(tmp_path)
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(hostile, "a") as file:
        file.writestr("../outside.py", "")
        file.writestr("/outside.py", "")
        file.writestr(link, str(tmp_path))
        file.writestr("link/outside.txt", "")
    with pytest.raises(UsageError):
        check_wheel(hostile, ["coin_env"], tmp_path / "below" / "site", 1, 60.0)
    assert not [path for path in tmp_path.rglob("outside*") if "site" not in path.parts]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_what_several_processes_publish_at_once_is_all_there_or_refused(tmp_path):
    code = (
        "import sys, pathlib; from rollenv.plugins.publishing.package_index import add, read_wheel\n"
        "w = pathlib.Path(sys.argv[1]); p, _ = read_wheel(w); add(pathlib.Path('index'), w, p, {})"
    )
    wheels = [wheel(tmp_path, version=f"1.{n}") for n in range(4)]
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(w)], cwd=tmp_path, stderr=subprocess.DEVNULL) for w in wheels
    ]
    ended = [process.wait() for process in started]
    assert 0 in ended
    assert len(read_catalog(str(tmp_path / "index"))) == ended.count(0)


@pytest.mark.parametrize(
    "name",
    [
        "rollenv/__init__.py",
        "httpx/__init__.py",
        "start.pth",
        "sitecustomize.py",
        "__pycache__/other.cpython-311.pyc",
        "../outside.py",
        "coin_env-1.0.data/data/start.pth",
    ],
)
def test_a_wheel_with_more_than_its_own_modules_is_not_installed(tmp_path, name):
    path = wheel(tmp_path)
    check_contents(path, read_wheel(path)[0])
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, "")
    with pytest.raises(UsageError, match=name.split("/")[0]):
        check_contents(path, read_wheel(path)[0])


def test_a_wheels_metadata_are_those_that_pip_reads(tmp_path):
    path = wheel(tmp_path)
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    about = next(name for name in parts if name.endswith(".dist-info/METADATA"))
    decoys = {f"coin_data/{name}": data for name, data in parts.items() if ".dist-info/" in name}
    parts[about] = parts[about].rstrip() + b"\nRequires-Dist: other @ http://127.0.0.1:1/other.whl\n"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in (decoys | parts).items():
            file.writestr(name, data)
    with pytest.raises(UsageError, match="127"):
        check_contents(path, read_wheel(path)[0])


@pytest.mark.parametrize("command", ["rollenv", "sh", "../outside"])
def test_a_wheel_takes_the_place_of_no_command(tmp_path, command):
    points = f"[rollenv.envs]\ncoin_env = coin_env:register_envs\n[console_scripts]\n{command} = coin_env:main\n"
    path = wheel(tmp_path, points=points)
    with pytest.raises(UsageError, match=re.escape(command)):
        check_contents(path, read_wheel(path)[0])


def test_a_wheel_writes_over_no_file_of_others(tmp_path, monkeypatch):
    (tmp_path / "some.libs").mkdir()
    (tmp_path / "some.libs" / "libc.so").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda kind: str(tmp_path))
    path = wheel(tmp_path)
    check_contents(path, read_wheel(path)[0])
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("some.libs/libc.so", "")
    with pytest.raises(UsageError, match=r"libc\.so"):
        check_contents(path, read_wheel(path)[0])
