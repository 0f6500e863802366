"""The radix tree, and the engine that finds keys and values in it: it changes the work, never the responses."""

import asyncio
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollenv.agents.engines.base import EngineFailed, Sampling
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.engines.radix import RadixTree, common_prefix
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

STOP = frozenset({7, 8, 9})


@pytest.fixture(scope="module")
def model():
    tokenizer = build_tokenizer(["up down left right\n" * 9], 300)
    return build_model(TinySize(hidden=32, layers=2, heads=2, intermediate=64, context=128), tokenizer, 0).eval()


def prompt(n, seed=0):
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 250) for _ in range(n))


# -- the tree ----------------------------------------------------------------------------------------------------------

sequences = st.lists(st.integers(0, 2), max_size=12).map(tuple)


@given(one=sequences, two=sequences)
def test_the_common_prefix(one, two):
    n = common_prefix(one, two)
    assert one[:n] == two[:n]
    assert n == min(len(one), len(two)) or one[n] != two[n]


@given(bound=st.integers(0, 40), asked=st.lists(st.tuples(st.booleans(), sequences), max_size=60))
def test_a_slot_always_holds_the_prefix_that_it_was_given_for(bound, asked):
    tree, holds = RadixTree(bound), {}
    tokens = dropped = 0
    for insert, sequence in asked:
        if insert:
            known = len(tree.find(sequence))
            start, slots, more = tree.insert(sequence)
            assert start == known
            for place, slot in enumerate(slots, start):
                holds[slot] = sequence[: place + 1]
            dropped += more
            tokens += len(slots) - more
            assert start + len(slots) == len(sequence) or tree.tokens == bound
        found = tree.find(sequence)
        assert [holds[slot] for slot in found] == [sequence[: place + 1] for place in range(len(found))]
        assert tree.tokens == tokens <= bound
        assert all(slot < tree.size <= bound for slot in found)
    tree.clear()
    assert tree.tokens == 0
    assert tree.find((0, 1)) == []


@given(st.lists(sequences, max_size=40))
def test_with_room_for_all_every_prefix_is_stored_once(asked):
    tree = RadixTree(10_000)
    for sequence in asked:
        tree.insert(sequence)
    assert tree.tokens == len({s[:n] for s in asked for n in range(1, len(s) + 1)})
    assert all(len(tree.find(s)) == len(s) for s in asked)


def test_what_was_not_used_for_the_longest_time_goes_first():
    tree = RadixTree(6)
    tree.insert((1, 2, 3))
    tree.insert((1, 2, 4))
    tree.insert((5, 6))
    assert len(tree.find((1, 2, 3))) == 3
    assert tree.tokens == 6
    assert tree.insert((8,))[2] == 1
    assert [len(tree.find(s)) for s in ((1, 2, 4), (1, 2, 3), (5, 6), (8,))] == [2, 3, 2, 1]
    assert tree.insert((5, 6, 7, 7))[2] == 3, "a leaf goes, and its parent, which is a leaf then"
    assert [len(tree.find(s)) for s in ((1, 2, 3), (8,), (5, 6, 7, 7))] == [0, 1, 4]
    assert tree.insert((8, *range(9)))[1:] != ([], 0)
    assert [len(tree.find(s)) for s in ((5, 6), (8, *range(9)))] == [0, 6], "its own beginning is never dropped"


# -- the engine --------------------------------------------------------------------------------------------------------


async def episode(engine, number, turns, told):
    """A session that begins like others of its task; its next prompts contain what it was told."""
    rng = random.Random(number)
    history = prompt(40, number % 3)[: 5 + 7 * (number % 5)]
    for _ in range(turns):
        for _ in range(number % 4):
            await asyncio.sleep(0)
        response = await engine.generate(history, Sampling(1.0, rng.randrange(1, 7)), rng)
        told.append((history, tuple(response.ids), response.logprobs))
        assert engine.kept_tokens <= engine.bound
        history += tuple(response.ids) + prompt(rng.randrange(4), rng.randrange(9))


def episodes(model, keep, numbers, turns=3, **more):
    engine = LocalEngine(model, STOP, keep_tokens=keep, **more)
    engine.bound = keep
    told = [[] for _ in numbers]

    async def play():
        await asyncio.gather(*(episode(engine, n, turns, said) for n, said in zip(numbers, told, strict=True)))

    asyncio.run(play())
    assert engine.active == 0
    return told, engine.stats


def assert_same(told, others):
    for one, two in zip(told, others, strict=True):
        for (asked, ids, logprobs), (other_asked, other_ids, other_logprobs) in zip(one, two, strict=True):
            assert (asked, ids) == (other_asked, other_ids)
            assert logprobs == pytest.approx(other_logprobs, abs=1e-4)


@pytest.fixture(scope="module")
def alone(model):
    """What each session is told by an engine of its own that keeps nothing."""
    return [episodes(model, 0, [number])[0][0] for number in range(9)]


@pytest.mark.integration
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keep=st.sampled_from([0, 1, 7, 40, 150, 10_000]),
    count=st.integers(1, 9),
    batch=st.sampled_from([1, 200, 1 << 16]),
    worth=st.sampled_from([1, 8, 32]),
)
def test_responses_are_the_same_with_a_cache_of_any_size(model, alone, keep, count, batch, worth):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollenv.agents.engines.requests.WORTH_WAITING", worth)
        told, stats = episodes(model, keep, range(count), max_batch_tokens=batch)
    assert_same(told, alone[:count])
    assert stats.found == 0 or keep


@pytest.mark.parametrize("keep", [0, 30, 10_000])
def test_a_cache_changes_the_work_and_not_the_responses(model, keep):
    told, stats = episodes(model, keep, range(3), turns=2)
    others, plain = episodes(model, 0, range(3), turns=2, max_batch_tokens=1)
    assert_same(told, others)
    assert (stats.computed < plain.computed) == (keep > 0)
    assert (stats.evicted > 0) == (keep == 30)


def ask(engine, *asked, tokens=4, seeds=None):
    """Ask for all at the same time."""

    async def all_at_once():
        sampling = Sampling(1.0, tokens)
        return await asyncio.gather(
            *(engine.generate(p, sampling, random.Random(s)) for p, s in zip(asked, seeds or range(99), strict=False)),
            return_exceptions=True,
        )

    return asyncio.run(all_at_once())


def test_others_continue_what_one_has_computed(model):
    engine = LocalEngine(model, frozenset())
    first = ask(engine, prompt(50))[0]
    assert (engine.stats.computed, engine.stats.found) == (50, 0)
    ask(engine, prompt(50), (*prompt(30), 1, 2, 3), prompt(30))
    assert engine.stats.computed == 50 + 1 + 3 + 1, "of a prompt that is known, the last token is computed"
    assert engine.stats.found == 49 + 30 + 29
    ask(engine, (*prompt(50), *first.ids, 11))
    assert engine.stats.computed == 55 + 2, "the last token drawn was never put through the model"
    assert engine.stats.evicted == 0


@pytest.mark.parametrize("keep", [0, 1000])
def test_what_waiting_prompts_have_in_common_is_computed_once(model, keep):
    engine = LocalEngine(model, frozenset(), keep_tokens=keep)
    system = prompt(40)
    tasks = [system + prompt(40, seed) for seed in (1, 2)]
    asked = [(*task, member) for task in tasks for member in (1, 2, 2)]
    ask(engine, *asked, tasks[0][:75])
    assert engine.stats.computed == 40 + 2 * 40 + 4 + 1
    assert engine.stats.found == 0
    assert engine.stats.reused == sum(map(len, asked)) + 75 - engine.stats.computed


def test_a_prompt_longer_than_the_cache_leaves_its_beginning(model):
    engine = LocalEngine(model, frozenset(), keep_tokens=20)
    ask(engine, prompt(50))
    assert engine.kept_tokens == 20
    ask(engine, prompt(50))
    assert engine.stats.found == 20


def test_a_bound_in_bytes_limits_the_cache_and_what_runs_together(model):
    config = model.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * head
    engine = LocalEngine(model, frozenset(), max_bytes=20 * token)
    answers = [ask(engine, prompt(50), prompt(30, 1), tokens=3) for _ in range(2)]
    assert engine.kept_tokens == engine.max_batch_tokens == 20
    free = LocalEngine(model, frozenset())
    assert [r.ids for r in answers[1]] == [r.ids for r in ask(free, prompt(50), prompt(30, 1), tokens=3)]


def test_prompts_of_one_token_and_a_full_context(model):
    engine = LocalEngine(model, frozenset())
    for _ in range(2):
        one, almost, full = ask(engine, (11,), prompt(126), prompt(127, 1), tokens=3)
        assert (len(one.ids), len(almost.ids), len(full.ids)) == (3, 2, 1)
    assert engine.stats.found == 125, "of the others nothing but a last token is needed, or no cache"
    longer = ask(engine, (*prompt(126), almost.ids[0]), tokens=3)[0]
    assert len(longer.ids) == 1


def test_new_weights_empty_the_cache_and_running_requests_start_from_their_tokens(model):
    engine = LocalEngine(model, frozenset())

    async def update():
        tasks = [
            asyncio.create_task(engine.generate((*prompt(40), n), Sampling(1.0, 9), random.Random(n))) for n in range(4)
        ]
        for _ in range(4):
            await asyncio.sleep(0)
        before = engine.kept_tokens
        engine.weights_changed()
        assert before == 41, "the others have one token each of their own, which is kept when they end"
        assert engine.kept_tokens == 0
        await asyncio.gather(*tasks)
        return {tuple(t.result().versions) for t in tasks}

    assert {0, 1} == set().union(*map(set, asyncio.run(update())))
    assert engine.stats.found == 0
    assert engine.stats.computed < 44 + 40 + 4 * 9, "after the update, too, they share what they have in common"


def test_a_cancelled_request_leaves_its_prompt_to_others(model):
    engine = LocalEngine(model, frozenset())

    async def cancel():
        task = asyncio.create_task(engine.generate(prompt(40), Sampling(1.0, 30), random.Random(0)))
        for _ in range(4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert engine.active == 0
    ask(engine, prompt(40))
    assert engine.stats.found == 39


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_when_the_model_fails_nothing_false_stays_in_the_cache(model, calls):
    engine = LocalEngine(model, frozenset())
    asked = [prompt(40) + prompt(9 + n, n + 1) for n in range(3)]
    left = [calls]

    def fail_once(*_):
        left[0] -= 1
        if left[0] == -1:
            raise RuntimeError("out of memory")

    hook = model.model.layers[1].register_forward_pre_hook(fail_once)
    try:
        failed, answered = ask(engine, *asked), ask(engine, *asked)
    finally:
        hook.remove()
    assert any(isinstance(response, EngineFailed) for response in failed)
    for number, response in enumerate(answered):
        assert response.ids == ask(LocalEngine(model, frozenset()), asked[number], seeds=[number])[0].ids
    assert engine.active == 0


def test_a_failure_to_keep_tokens_empties_the_cache(model, monkeypatch):
    engine = LocalEngine(model, frozenset())
    ask(engine, prompt(20))

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("rollenv.agents.engines.radix.PrefixCache._write", fail)
        assert isinstance(ask(engine, prompt(20, 1))[0], EngineFailed)
    assert engine.kept_tokens == 0
    assert ask(engine, prompt(20, 1))[0].ids == ask(LocalEngine(model, frozenset()), prompt(20, 1))[0].ids


@pytest.mark.parametrize("tokens", [1, 4])
def test_values_that_are_not_numbers_stay_with_their_request(model, tokens):
    """Attention multiplies masked values by zero, which leaves what is not a number as it is."""
    engine = LocalEngine(model, frozenset())
    bad = 5

    def poison(module, args, output):
        return output.masked_fill((args[0] == bad)[..., None], torch.nan)

    hook = model.model.embed_tokens.register_forward_hook(poison)
    try:
        bad_one = prompt(60)[:40] + (bad,) * 20
        failed, good = ask(engine, bad_one, prompt(50, 1), tokens=tokens)
        after = ask(engine, prompt(8, 2), prompt(70, 3), bad_one[:45], (*bad_one[:40], 11), tokens=tokens)
    finally:
        hook.remove()
    assert isinstance(failed, EngineFailed)
    assert isinstance(after[2], EngineFailed)
    for seed, asked, response in ((1, prompt(50, 1), good), (0, prompt(8, 2), after[0]), (1, prompt(70, 3), after[1])):
        assert response.ids == ask(LocalEngine(model, frozenset()), asked, tokens=tokens, seeds=[seed])[0].ids
    assert len(after[3].ids) == tokens
