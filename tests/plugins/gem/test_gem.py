"""Names under GEM's: where each leads, and what is said of those that are not there."""

from __future__ import annotations

import importlib
import subprocess
import sys

from rollenv.plugins.gem import MODULES

PREFIX = "from rollenv.plugins import gem as compat\ncompat.install()\n"


def test_every_name_leads_somewhere():
    for names in MODULES.values():
        for where in names.values():
            module, _, attribute = where.partition(":")
            assert hasattr(importlib.import_module(module), attribute), where


def test_names_that_are_not_there_are_explained():
    script = (
        PREFIX
        + "import gem.core\ntry:\n    gem.core.Nothing\nexcept AttributeError as e:\n    print(e)\nimport gem.nothing"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "it has ActType, Env, EnvWrapper, ObsType" in done.stdout
    assert "ModuleNotFoundError" in done.stderr


def test_a_gem_that_was_imported_before_is_an_error():
    script = "import sys, types\nsys.modules['gem'] = types.ModuleType('gem')\n" + PREFIX
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "rollenv.plugins.gem.install()" in done.stderr
