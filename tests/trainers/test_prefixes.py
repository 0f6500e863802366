"""Inputs that begin alike: what is shared is really shared, and nothing is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollenv.trainers.prefixes import LEAST_SHARED, common_length, depth_first, path_to, tokens_in, tree

WORDS = st.lists(st.integers(0, 2), max_size=4)
LONG = st.sampled_from([[], [7] * (LEAST_SHARED - 1), [8] * LEAST_SHARED, [9] * (3 * LEAST_SHARED)])
INPUTS = st.lists(
    st.builds(lambda *parts: sum(parts, [5]), LONG, WORDS, LONG, WORDS, LONG).map(
        lambda tokens: np.array(tokens, dtype=np.int64).tobytes()
    ),
    max_size=12,
)


def as_bytes(tokens: list[int]) -> bytes:
    return np.array(tokens, dtype=np.int64).tobytes()


def own(segment) -> np.ndarray:
    return np.frombuffer(segment.owner, dtype=np.int64)[segment.before : segment.end]


def cost(segments) -> int:
    return sum(segment.end - segment.before for segment in segments)


@given(INPUTS)
def test_every_input_is_the_beginning_of_the_path_to_its_leaf(inputs):
    segments, leaf_of = tree(inputs)
    assert leaf_of.keys() == set(inputs)
    for one, leaf in leaf_of.items():
        path = path_to(segments, leaf)[::-1]
        assert np.concatenate([own(segments[number]) for number in path]).tobytes().startswith(one)
    assert {segments[leaf].owner for leaf in leaf_of.values()} <= set(inputs)


@given(INPUTS)
def test_segments_follow_their_parents_and_shared_ones_are_worth_it(inputs):
    segments, _ = tree(inputs)
    above = [segment.parent for segment in segments]
    for number, segment in enumerate(segments):
        assert segment.parent < number
        assert segment.before == (segments[segment.parent].end if segment.parent >= 0 else 0)
        assert tokens_in(segment.owner) >= segment.end
        if number in above:
            assert segment.end - segment.before >= LEAST_SHARED
            assert above.count(number) > 1
    alone, same = tree(inputs, share=False)
    assert cost(segments) <= cost(alone) == sum(map(tokens_in, set(inputs)))
    assert all(alone[leaf].owner == one for one, leaf in same.items())


@given(INPUTS)
def test_long_common_beginnings_are_there_once(inputs):
    """Two inputs share all that they have in common, but for less than a segment at each branching."""
    segments, leaf_of = tree(inputs)
    for one in leaf_of:
        for other in leaf_of:
            if one < other and not (one.startswith(other) or other.startswith(one)):
                both = set(path_to(segments, leaf_of[one])) & set(path_to(segments, leaf_of[other]))
                held = max((segments[number].end for number in both), default=0)
                assert held <= common_length(one, other) < held + LEAST_SHARED


@given(INPUTS)
def test_leaves_are_visited_once_and_parts_of_the_tree_in_one_go(inputs):
    segments, leaf_of = tree(inputs)
    leaves = list(dict.fromkeys(leaf_of.values()))
    order = list(depth_first(segments, leaves))
    assert sorted(order) == sorted(leaves)
    paths = [set(path_to(segments, leaf)) for leaf in order]
    for number in range(len(segments)):
        inside = [place for place, path in enumerate(paths) if number in path]
        assert inside == list(range(inside[0], inside[-1] + 1))


def test_a_group_reads_its_prompt_once_and_a_conversation_its_turns():
    prompt = list(range(100, 100 + LEAST_SHARED))
    group = [as_bytes([*prompt, answer, answer]) for answer in range(8)]
    assert cost(tree(group)[0]) == LEAST_SHARED + 8 * 2
    turns = [as_bytes(prompt[: 3 * n] + [1] * (n == 7) * 20) for n in range(1, 8)]
    assert cost(tree(turns)[0]) <= LEAST_SHARED + 41


def test_episodes_that_part_late_share_all_before_at_any_depth():
    def grown(word: int, depth: int) -> list[list[int]]:
        tails = [[]] if not depth else [tail for next_ in (1, 2) for tail in grown(next_, depth - 1)]
        return [[word] * LEAST_SHARED + tail for tail in tails]

    inputs = [as_bytes(tokens) for tokens in grown(3, 4)]
    segments, leaf_of = tree(inputs)
    assert cost(segments) == (2**5 - 1) * LEAST_SHARED
    assert max(len(path_to(segments, leaf)) for leaf in leaf_of.values()) == 5
