"""The agent's files that are left out where its work is checked: all that would change how programs run."""

from __future__ import annotations

import re
import tarfile
from typing import IO

from rollenv.envs.terminal.guard import Guard
from rollenv.sandbox import Image

#: What Bash reads at its start; tasks ask for changes of it, and their checks read it where they need it.
_STARTUP = re.compile(r"/(root|home/[^/]+)/\.(bashrc|bash_\w+|profile)$")


class SystemGuard(Guard):
    """For tasks about the system itself: start-up files of Bash are kept, and so are permissions of programs.

    Args:
        image: that the agent began with.
    """

    def __init__(self, image: Image):
        super().__init__(image)

    def _keeps(self, path: str, member: tarfile.TarInfo, contents: IO[bytes] | None) -> bool:
        if _STARTUP.match(path) or (contents is not None and self._is_as_before(path, member, contents)):
            return True
        if contents is not None:
            contents.seek(0)
        return super()._keeps(path, member, contents)

    def _is_as_before(self, path: str, member: tarfile.TarInfo, contents: IO[bytes]) -> bool:
        """Return whether at most the permissions of a file have changed."""
        before = self.image.find(path)
        if before is None or before.is_symlink() or not before.is_file() or before.stat().st_size != member.size:
            return False
        return before.read_bytes() == contents.read()
