"""The sandboxes of environments: their choice, with rollenv's errors for wrong arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rollenv.core.errors import MissingExtra, UsageError
from rollenv.sandbox import backends
from rollenv.sandbox.errors import InvalidArgument, MissingPackage


@contextlib.contextmanager
def as_own_errors() -> Iterator[None]:
    """Raise a wrong argument of a sandbox, or a package it lacks, as an error of rollenv."""
    try:
        yield
    except InvalidArgument as error:
        raise UsageError(str(error)) from error
    except MissingPackage as error:
        raise MissingExtra(str(error)) from error


def chosen(sandbox: str | None = None, image: str | None = None) -> dict[str, Any]:
    """Return the settings of a sandbox; see :func:`rollenv.sandbox.backends.chosen`."""
    with as_own_errors():
        return backends.chosen(sandbox, image)
