"""Python is parsed in several threads at once."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollenv.core import syntax

NESTED = "[" * 60 + "1" + "]" * 60


@pytest.mark.parametrize("parse", [syntax.parse, syntax.literal_eval])
def test_threads_that_parse_do_not_disturb_each_other(parse):
    text = "[" + ",\n".join([NESTED] * 100) + "]"
    switch = lambda phase, info: time.sleep(0.0005)  # noqa: E731  # another thread goes on amid a tree
    gc.callbacks.append(switch)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert len(list(pool.map(parse, [text] * 40))) == 40
    finally:
        gc.callbacks.remove(switch)


@pytest.mark.parametrize("parse", [syntax.parse, syntax.literal_eval])
def test_what_is_no_python_is_a_syntax_error(parse):
    with pytest.raises(SyntaxError):
        parse("(")
