"""The initial systems of tasks, prepared and cached once a day."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollenv.envs.terminal.shell import is_busy
from rollenv.sandbox import Image, Limits, Machine
from rollenv.sandbox.layers import made, store

#: Part of the key of every image; raise it when the preparation changes.
_VERSION = 1


def start_prepared(
    name: str, recipe: Sequence[str], prepare: Callable[[Machine], None], limits: Limits, env: Mapping[str, str]
) -> Machine:
    """Start a prepared machine, from the cache if possible.

    Images are cached for a day: tasks ask for recently modified files, but other machines on the same day must be the
    same even if scripts draw random numbers. A machine with processes running after its preparation is not cached.

    Args:
        recipe: the key: equal recipes give equal images.
        prepare: sets up a machine over the host's system; its errors are raised.
    """
    base = Image.host()
    recipe_json = json.dumps([_VERSION, base.mounts, list(recipe)])
    target = _today(name) / hashlib.sha256(recipe_json.encode()).hexdigest()[:32]
    if not target.exists():
        machine = Machine.create(base, limits=limits, env=env)
        try:
            prepare(machine)
            if is_busy(machine):
                return machine
            with made(target) as folder:
                if folder is not None:
                    machine.commit(folder)
        except BaseException:
            machine.kill()
            raise
        machine.kill()
    return Machine.create(base.over(target), limits=limits, env=env)


def _today(name: str) -> Path:
    """Return the folder of today's images (UTC), and delete those from before yesterday."""
    root, today = store() / name, datetime.datetime.now(datetime.UTC).date()
    folder = root / today.isoformat()
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kept = {(today - datetime.timedelta(days=1)).isoformat(), today.isoformat()}
        for old in root.iterdir():
            if old.name not in kept:
                shutil.rmtree(old, ignore_errors=True)
    return folder
