"""``ast.parse`` and ``ast.literal_eval`` for several threads at once."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def _retried(function: F) -> F:
    """Call again after a SystemError.

    Threads of Python 3.11.7, 3.12.1 and older share the depth of the syntax tree (CPython's issue 106905).
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for _ in range(100):
            with contextlib.suppress(SystemError):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(F, call)


parse = _retried(ast.parse)
literal_eval = _retried(ast.literal_eval)
