"""Inputs that begin alike: what is shared is really shared, and nothing is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollenv.trainers.prefixes import LEAST_SHARED, families, shared, tokens_in

WORDS = st.lists(st.integers(0, 2), max_size=4)
LONG = st.sampled_from([[], [7] * (LEAST_SHARED - 1), [8] * LEAST_SHARED, [9] * (3 * LEAST_SHARED)])
INPUT = st.builds(lambda long, *words: long + sum(words, [5]), LONG, WORDS, WORDS)


def as_bytes(tokens: list[int]) -> bytes:
    return np.array(tokens, dtype=np.int64).tobytes()


def cost(found) -> int:
    return sum(family.stem + sum(tokens_in(leaf) - family.stem for leaf in family.leaves) for family in found)


@given(st.lists(INPUT, max_size=12))
def test_every_input_is_the_beginning_of_a_leaf_of_one_family(inputs):
    keys = [as_bytes(tokens) for tokens in inputs]
    found, within = families(keys)
    leaves = [leaf for family in found for leaf in family.leaves]
    assert len(leaves) == len(set(leaves))
    assert within.keys() == set(keys)
    assert set(within.values()) == set(leaves) <= set(keys)
    assert all(leaf.startswith(key) for key, leaf in within.items())
    if any(tokens_in(key) >= LEAST_SHARED for key in keys):
        assert not any(one != other and one.startswith(other) for one in leaves for other in leaves)


@given(st.lists(INPUT, max_size=12))
def test_families_share_their_stem_and_cost_no_more_than_inputs_alone(inputs):
    keys = [as_bytes(tokens) for tokens in inputs]
    found, _ = families(keys)
    for family in found:
        assert family.stem == 0 or (family.stem >= LEAST_SHARED and len(family.leaves) > 1)
        assert all(shared(one, other) >= family.stem for one in family.leaves for other in family.leaves)
    alone, same = families(keys, share=False)
    assert cost(found) <= cost(alone) == sum(map(tokens_in, set(keys)))
    assert all(key == leaf for key, leaf in same.items())


def test_a_group_reads_its_prompt_once_and_a_conversation_its_turns():
    prompt = list(range(100, 100 + LEAST_SHARED))
    group = [as_bytes([*prompt, answer, answer]) for answer in range(8)]
    assert cost(families(group)[0]) == LEAST_SHARED + 8 * 2
    turns = [as_bytes(prompt[: 10 * n] + [1] * (n == 7) * 20) for n in range(1, 8)]
    assert cost(families(turns)[0]) == LEAST_SHARED + 20
