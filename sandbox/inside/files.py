"""The kernel's operations on files. Paths mean what they mean to code in the sandbox."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
from typing import Any

Json = dict[str, Any]

#: Bytes of a file that are read at once.
MAX_READ = 32 << 20


class FileOperations:
    """What the kernel does with files; a failure is an OSError."""

    scratch: str

    def _op_read(self, request: Json) -> Json:
        with open(request["path"], "rb") as file:
            if not os.path.isfile(request["path"]):
                raise OSError(errno.EINVAL, "not a regular file", request["path"])
            data = file.read(request.get("max_bytes", MAX_READ) + 1)
        if len(data) > request.get("max_bytes", MAX_READ):
            raise OSError(errno.EFBIG, "the file is larger than what is read at once", request["path"])
        return {"data": base64.b64encode(data).decode()}

    def _op_write(self, request: Json) -> Json:
        self._make_dirs(os.path.dirname(request["path"]))
        with open(request["path"], "wb") as file:
            file.write(base64.b64decode(request["data"]))
        self._give_away(request["path"])
        return {}

    def _op_list(self, request: Json) -> Json:
        entries = []
        for entry in sorted(os.scandir(request["path"]), key=lambda e: e.name):
            info = entry.stat(follow_symlinks=False)
            kind = "dir" if entry.is_dir(follow_symlinks=False) else "link" if entry.is_symlink() else "file"
            entries.append({"name": entry.name, "type": kind, "size": info.st_size, "mode": info.st_mode & 0o7777})
        return {"entries": entries}

    def _op_make_dir(self, request: Json) -> Json:
        self._make_dirs(request["path"])
        return {}

    def _op_remove(self, request: Json) -> Json:
        path = request["path"]
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
        return {}

    def _op_rename(self, request: Json) -> Json:
        os.rename(request["path"], request["to"])
        return {}

    def _op_exists(self, request: Json) -> Json:
        return {"exists": os.path.lexists(request["path"])}

    def _make_dirs(self, path: str) -> None:
        if path and not os.path.isdir(path):
            self._make_dirs(os.path.dirname(path))
            os.mkdir(path)
            self._give_away(path)

    def _give_away(self, path: str) -> None:
        """What the kernel writes belongs to whoever runs code."""
        owner = os.stat(self.scratch)
        with contextlib.suppress(OSError):
            os.chown(path, owner.st_uid, owner.st_gid)
