"""What a bridge says of its framework's version; run in that framework's environment, with the bridge's name."""

import subprocess
import sys

BEFORE = "import importlib.metadata as m, sys, rollenv.plugins.adapters\n"
#: Changes the version of the packages whose names begin so.
VERSION = """
real = m.version
def version(name):
    if name.startswith({start!r}):
        {outcome}
    return real(name)
m.version = version
"""


def imported(code: str, bridge: str) -> str:
    """Import a bridge after some code; return the last line of standard error that is the bridge's."""
    command = [sys.executable, "-c", f"{BEFORE}{code}\nimport rollenv.plugins.adapters.{bridge}"]
    lines = subprocess.run(command, capture_output=True, text=True).stderr.strip().splitlines()
    return [line for line in lines if "this bridge" in line][-1]


def main(bridge: str, module: str) -> None:
    """Check three lines: another version, no package, a package without a module that the bridge needs."""
    other = imported(VERSION.format(start=bridge.partition("_")[0], outcome="return '77.7'"), bridge)
    assert "tested with" in other, other
    assert "77.7" in other, other
    missing = imported(VERSION.format(start=bridge.partition("_")[0], outcome="raise m.PackageNotFoundError"), bridge)
    assert "pip install" in missing, missing
    moved = imported(f"sys.modules[{module!r}] = None", bridge)
    assert "cannot be imported as this bridge needs it" in moved, moved


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("passed")
