"""The programs that a task's tests use, which must not be the agent's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollenv.sandbox.offline import packages, requirements

#: Python packages that run tests, or that Python loads at startup.
_ALWAYS = re.compile(
    r"^(_?pytest|py|pluggy|iniconfig|packaging|exceptiongroup|tomli|pygments|colorama|typing_extensions|xdist|execnet|"
    r"coverage|nose\w*|tox|ctrf|uv|pip|setuptools|pkg_resources|_distutils_hack|distutils_precedence|wheel|rollenv|"
    r"sitecustomize|usercustomize|rollenv_\w+|pytest_\w+)$"
)
#: Programs that run tests, whether or not the image has them.
_PROGRAMS = re.compile(
    r"^(apt|apt-get|awk|bash|cat|cp|curl|dash|env|git|grep|jq|npm|npx|sed|sh|tee|timeout|wget|"
    r"(node|perl|pip|py\.test|pypy|pytest|python|uv|uvx)[\d.]*)$"
)
_IMPORT = re.compile(r"^\s*(?:from\s+(\w+)[\w.]*\s+import\b|import\s+([\w., ]+))", re.MULTILINE)
_OF_PROJECT = re.compile(
    r"pyproject|\buv\s+sync\b|\binstall\b[^\n;&|]*\s['\"]?\.{1,2}(/|\[|['\"]?(\s|$))", re.MULTILINE
)
_ENVIRONMENT = re.compile(r"\b(?:uv\s+venv|-m\s+venv|virtualenv)((?:\s+[\w./$~=-]+)*)")


@dataclass(frozen=True)
class Runners:
    """The programs that the tests of a task use.

    Attributes:
        modules: whether they run ``python -m``, which imports from the working directory first.
        inline: whether they run ``python -c`` or code on standard input, which do so too.
        project: whether they create a uv project in the working directory, or run uv there, which installs a project
            that it finds, without referring to one.
        environments: names of the virtual environments that they create.
        programs: names of the programs that they install.
        installed: names of the Python packages that they install.
        imported: names of the Python packages that they import.
    """

    modules: bool = False
    inline: bool = False
    project: bool = False
    environments: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    installed: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()

    @classmethod
    def of(cls, script: str, sources: Iterable[str] = ()) -> Runners:
        """Return the programs that a shell script of tests, and their sources, use."""
        joined, sources = script.replace("\\\n", " "), list(sources)
        spoken_of = any(_OF_PROJECT.search(each) for each in (joined, *sources))
        uses_uv = bool(re.search(r"\buvx?\b", joined))
        made = {word.rstrip("/").rpartition("/")[2] for found in _ENVIRONMENT.findall(joined) for word in found.split()}
        return cls(
            bool(re.search(r"\bpython[\d.]*\s+(-\w+\s+)*-m\b", joined)),
            bool(re.search(r"\bpython[\d.]*\s+(-\w+\s+)*(-\w*c\b|-\s|-$|<<)", joined, re.MULTILINE)),
            bool(re.search(r"\buv\s+init\b" if spoken_of else r"\buv\s+(init|run)\b", joined)),
            frozenset(made | ({".venv"} if uses_uv else set())),
            frozenset(packages(script)),
            frozenset(top_level(re.split(r"[\[=<>!~]", each)[0]) for each in requirements(script)),
            frozenset(name for source in sources for name in _imports(source)),
        )

    def runs(self, program: str) -> bool:
        """Return whether a program with this name may run the tests, in any folder."""
        return program in self.programs or _PROGRAMS.match(program) is not None

    def loads(self, package: str, of_image: bool) -> bool:
        """Return whether the tests load a Python package for themselves, rather than as part of the agent's work."""
        name = top_level(package)
        return bool(_ALWAYS.match(name)) or name in self.installed or (of_image and name in self.imported)


def top_level(name: str) -> str:
    """Return the package of a name in ``site-packages``, in lower case, without version and suffix."""
    stem = re.split(r"-\d|\.(?:dist-info|egg-info|egg-link|pth|py|pyc|so)\b|\.cpython", name)[0]
    return re.sub(r"[-.]+", "_", stem).lower()


def _imports(source: str) -> set[str]:
    names = {name for one, several in _IMPORT.findall(source) for name in (one or several).split(",")}
    words = {name.split()[0].partition(".")[0] for name in names if name.strip()}
    return {word.lower() for word in words - sys.stdlib_module_names}


def read_runners(sources: Iterable[Path], script: str) -> Runners:
    """Return the programs that tests use."""
    return Runners.of(script, (path.read_text(errors="replace") for path in sources))
