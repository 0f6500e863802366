"""The command ``rollenv``, also as ``python -m rollenv``."""

import os
import sys

import rollenv


def main() -> None:
    """Run the command line; its parts are imported only if there is more to do than to print the version."""
    if sys.argv[1:] == ["--version"]:
        print(rollenv.__version__)  # noqa: T201
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it once: large pages for its tensors on CPUs
    from rollenv.cli.main import main

    main()


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # as with `rollenv`: the folder of a stranger's run may have modules
    main()
