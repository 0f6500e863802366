"""What is read from archives and folders."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest
from tiny_package import LIBRARY, PKG_INFO, TESTS, files, sdist

from rollenv.core.errors import UsageError
from rollenv.plugins.forge.forge import forge
from rollenv.plugins.forge.sources import BadPackage, load
from rollenv.plugins.forge.suite import Suite


def test_an_sdist(tmp_path):
    package = load(str(sdist(tmp_path)))
    assert (package.name, package.version, package.licence) == ("tinylib", "1.2", "MIT")
    assert package.libraries == ("src/tinylib",)
    assert package.paths == ("src", ".")
    assert package.tests == ("tests/test_tinylib.py",)
    assert package.sources == {"src/tinylib/__init__.py": LIBRARY}


def test_folders_that_may_hold_the_answer_are_left_out(tmp_path):
    assert not [path for path in load(str(sdist(tmp_path))).files if path.startswith(("build/", "docs/"))]


def test_an_archive_and_its_folder_are_the_same(tmp_path):
    with zipfile.ZipFile(tmp_path / "tinylib-1.2.zip", "w") as archive:
        for name, text in files().items():
            archive.writestr(f"tinylib-1.2/{name}", text)
            (tmp_path / "tinylib-1.2" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tinylib-1.2" / name).write_text(text)
    packages = [load(str(path)) for path in (sdist(tmp_path), tmp_path / "tinylib-1.2.zip", tmp_path / "tinylib-1.2")]
    assert packages[0] == packages[1] == packages[2]


@pytest.mark.parametrize(
    ("members", "library", "tests"),
    [
        ({"one.py": "", "setup.py": "", "test_one.py": ""}, "one.py", "test_one.py"),
        ({"one/__init__.py": "", "one/tests/test_x.py": "", "examples/test_y.py": ""}, "one", "one/tests/test_x.py"),
        ({"big/one/__init__.py": "", "tests/test_x.py": "", "tests/a/__init__.py": ""}, "big/one", "tests/test_x.py"),
        ({"src/big/one/__init__.py": "", "tests/test_x.py": ""}, "src/big/one", "tests/test_x.py"),
        ({"src/helper.py": "", "one/__init__.py": "", "tests/test_x.py": ""}, "one", "tests/test_x.py"),
        ({"one/__init__.py": "", "tests/__init__.py": "", "tests/x_test.py": ""}, "one", "tests/x_test.py"),
    ],
)
def test_layouts(tmp_path, members, library, tests):
    package = load(str(sdist(tmp_path, members, "one-0.1")))
    assert (package.libraries, package.tests) == ((library,), (tests,))
    assert (package.name, package.version) == ("one", "0.1")


def test_settings_of_tests_in_a_library_are_no_source(tmp_path):
    members = {"one/__init__.py": "", "one/conftest.py": "", "one/tests/test_x.py": ""}
    assert list(load(str(sdist(tmp_path, members, "one-0.1"))).sources) == ["one/__init__.py"]


@pytest.mark.parametrize(
    ("members", "told"),
    [({"one/__init__.py": ""}, "tests"), ({"tests/test_x.py": "", "setup.py": ""}, "library"), ({}, "library")],
)
def test_what_makes_no_task_is_reported(tmp_path, members, told):
    with pytest.raises(BadPackage, match=told):
        load(str(sdist(tmp_path, {"PKG-INFO": PKG_INFO, **members})))


def hostile(kind):
    entry = tarfile.TarInfo("tinylib-1.2/evil")
    if kind == "up":
        entry.name = "../../evil"
    elif kind == "link":
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    else:
        entry.type = tarfile.CHRTYPE
    return entry


@pytest.mark.parametrize("kind", ["up", "link", "device"])
def test_hostile_archives_are_refused(tmp_path, kind):
    path = tmp_path / "tinylib-1.2.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(hostile(kind), io.BytesIO())
    with pytest.raises(BadPackage, match="unpacked"):
        load(str(path))
    assert {one.name for one in tmp_path.iterdir()} == {path.name}


def test_links_in_a_folder_are_not_followed(tmp_path):
    folder = tmp_path / "tinylib-1.2"
    (folder / "tinylib").mkdir(parents=True)
    (folder / "tinylib/__init__.py").write_text("")
    (folder / "test_x.py").write_text(TESTS)
    (folder / "tinylib/secret.py").symlink_to("/etc/passwd")
    assert "tinylib/secret.py" not in load(str(folder)).files


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b broken"])
def test_a_damaged_archive_is_reported(tmp_path, data):
    (tmp_path / "tinylib-1.2.tar.gz").write_bytes(data)
    with pytest.raises(BadPackage, match="unpacked"):
        load(str(tmp_path / "tinylib-1.2.tar.gz"))


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb-1.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("bomb", "w") as file:
        for _ in range(70):
            file.write(bytes(1 << 20))
    with pytest.raises(BadPackage, match="64 MiB"):
        load(str(path))


def test_metadata_cannot_name_places_or_commands(tmp_path):
    text = "Name: ../../up\nVersion: 1 2\nLicense: a\n b\nRequires-Dist: x>=1; extra == 'y'\nRequires-Dist: z\n"
    members = {"PKG-INFO": text, "one/__init__.py": "", "tests/test_x.py": ""}
    package = load(str(sdist(tmp_path, members)))
    assert (package.name, package.version, package.licence, package.requires) == ("up", "1-2", "a", ("z",))
    members["PKG-INFO"] = "Name: a\nVersion: 1\nRequires-Dist: z\n RUN evil\n"
    with pytest.raises(BadPackage, match="read"):
        load(str(sdist(tmp_path, members)))


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(UsageError):
        load(str(tmp_path / "gone.tar.gz"))


@pytest.mark.integration
def test_copies_beside_a_module_and_archives_of_too_many_files(tmp_path):
    copies = [f"src/tinylib/{name}" for name in ("__init__.py.orig", "__init__.py~", "__init__.py.bak", "old.egg")]
    copies += ["src/tinylib/__init__.pyo", "fix.patch", "src/tinylib/__init__.py.save"]
    package = load(str(sdist(tmp_path, {**files(), **dict.fromkeys(copies, LIBRARY)})))
    assert not set(copies) & set(package.files)
    with pytest.raises(BadPackage, match="20000"):
        load(str(sdist(tmp_path, {f"{i}": "" for i in range(20_001)})))


@pytest.mark.parametrize("name", ["pyparsing", "more-itertools", "Typing_Extensions"])
def test_a_package_that_pip_or_setuptools_bring_along_is_refused(tmp_path, name):
    package = str(sdist(tmp_path, {**files(), "PKG-INFO": PKG_INFO.replace("tinylib", name)}))
    (made,) = forge([package], tmp_path / "tasks", count=1)
    assert "--bundled" in made.error


def test_a_package_that_the_tests_bring_along_is_refused(tmp_path):
    with pytest.raises(BadPackage, match="answer"):
        Suite(load(str(sdist(tmp_path, {**files(), "PKG-INFO": PKG_INFO.replace("tinylib", "Pluggy")}))), 10)
