"""``python -m rollenv`` is the command ``rollenv``."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # as with `rollenv`: the folder of a stranger's run may have modules
    from rollenv.cli.main import main

    main()
