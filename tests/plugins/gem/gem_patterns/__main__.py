"""Code as GEM's users write it: every pattern works with GEM 0.1.0, and has to work unchanged under the shim.

``python tests/plugins/gem/gem_patterns`` runs them all with whatever ``gem`` is, and prints what failed as JSON; with
``--shim`` rollenv stands under GEM's name. They share a process, so each registers ids of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import traceback

from common import PATTERNS

MODULES = ("registry", "environments", "playing", "wrapping", "tools", "vectors", "agents", "helpers")


def main() -> None:
    if "--shim" in sys.argv:
        from rollenv.plugins import gem as compat

        compat.install()
    for name in MODULES:
        importlib.import_module(name)
    failed = {}
    for name, function in PATTERNS.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                function()
        except BaseException:
            failed[name] = traceback.format_exc(limit=-4)
    print(json.dumps({"ran": list(PATTERNS), "failed": failed}))


if __name__ == "__main__":
    main()
