"""The router: where sessions go, and what happens to them when a replica fails."""

import asyncio
import contextlib
import json
import random
from collections import Counter

import httpx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv import UsageError
from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import EngineFailed, Sampling
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.engines.router import Router
from rollenv.agents.engines.vllm import VLLMEngine
from rollenv.agents.engines.vllm_http import HttpTransport
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

TOKENIZER = build_tokenizer(["up down left right\n" * 9], 300)
SIZE = TinySize(hidden=32, layers=1, heads=2, intermediate=64, context=128)


class Replica:
    """A model and its engine; the model can be made to fail at a later call."""

    def __init__(self):
        self.model = build_model(SIZE, TOKENIZER, 0).eval()
        self.model.register_forward_pre_hook(self._maybe_fail)
        self.engine = LocalEngine(self.model, frozenset())
        self.calls_left = None

    def fail_after(self, calls):
        self.calls_left = calls
        return self

    def _maybe_fail(self, *_):
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise RuntimeError("the device is gone")


def replicas(n):
    made = [Replica() for _ in range(n)]
    return made, Router([r.engine for r in made])


def prompt(n, seed=0):
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 250) for _ in range(n))


def ask(router, number, asked, tokens=5):
    return router.generate(asked, Sampling(1.0, tokens), random.Random(number), session=number)


@pytest.fixture(scope="module")
def undisturbed():
    """What a single engine that never fails answers."""
    engine = Replica().engine
    return lambda number, asked, tokens=5: asyncio.run(ask(engine, number, asked, tokens))


def test_a_router_is_an_engine_like_any_other(undisturbed):
    _, router = replicas(3)

    async def play():
        return await asyncio.gather(*(ask(router, n, prompt(9, n)) for n in range(8)))

    assert [r.ids for r in asyncio.run(play())] == [undisturbed(n, prompt(9, n)).ids for n in range(8)]


def test_sessions_stay_and_their_caches_serve_them():
    made, router = replicas(3)

    async def turns(number):
        history, homes = prompt(20, number), set()
        for _ in range(4):
            response = await ask(router, number, history)
            homes.add(router.replica_of(number))
            history += (*response.ids, 11)
        return homes

    async def play():
        return await asyncio.gather(*(turns(n) for n in range(9)))

    homes = asyncio.run(play())
    assert all(len(h) == 1 for h in homes)
    assert Counter(h.pop() for h in homes) == {0: 3, 1: 3, 2: 3}
    computed = sum(r.engine.stats.computed for r in made)
    assert computed == 9 * (20 + 3 * 2), "a turn computes the last token drawn and the new one"
    for number in range(9):
        router.release(number)
    assert router.replica_of(0) is None


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(groups=st.lists(st.integers(1, 9), min_size=1, max_size=8), n=st.integers(1, 4))
def test_members_of_a_group_meet_unless_their_replica_is_too_busy(groups, n):
    router = Router([Replica().engine for _ in range(n)], busier=2.0)

    async def play():
        number = 0
        for group, size in enumerate(groups):
            for _ in range(size):
                loads = Counter(router.replica_of(s) for s in range(number))
                emptiest = min(loads[i] for i in range(n))
                await ask(router, number, prompt(20, group), 1)
                assert loads[router.replica_of(number)] <= 2.0 * max(emptiest, 1)
                number += 1

    asyncio.run(play())


def test_a_small_group_shares_one_replica_and_its_prompt():
    made, router = replicas(4)

    async def play():
        await asyncio.gather(*(ask(router, n, prompt(20, n // 3)) for n in range(12)))

    asyncio.run(play())
    assert all(len({router.replica_of(n) for n in group}) == 1 for group in (range(3), range(3, 6), range(6, 9)))
    assert sum(r.engine.stats.computed for r in made) == 4 * 20


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_what_a_failed_replica_was_doing_goes_on_elsewhere(calls, undisturbed, caplog):
    made, router = replicas(3)
    made[1].fail_after(calls)

    async def play():
        return await asyncio.gather(*(ask(router, n, prompt(9, n), 10) for n in range(6)))

    responses = asyncio.run(play())
    assert router.alive == [0, 2]
    assert {router.replica_of(n) for n in range(6)} == {0, 2}
    assert "engine 1 failed" in caplog.text
    assert "the device is gone" in caplog.text
    for n, response in enumerate(responses):
        expected = undisturbed(n, prompt(9, n), 10)
        assert (response.ids, response.finish) == (expected.ids, expected.finish)
        assert response.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    drawn = sum(r.engine.stats.drawn for r in made)
    assert drawn == 60, "tokens that the failed replica had drawn were kept"


def test_without_replicas_there_is_no_answer():
    made, router = replicas(2)
    for replica in made:
        replica.fail_after(2)

    async def play():
        return await asyncio.gather(*(ask(router, n, prompt(9, n), 10) for n in range(3)), return_exceptions=True)

    failures = asyncio.run(play())
    assert all(isinstance(f, EngineFailed) for f in failures)
    assert all("all 2 engines have failed" in str(f) for f in failures)
    assert any(f.response.ids for f in failures)
    with pytest.raises(UsageError, match="at least one"):
        Router([])


def test_a_request_that_is_at_fault_takes_nothing_out():
    _, router = replicas(2)
    for bad, error in ((prompt(128), ContextFull), ((), UsageError), ((10**6,), UsageError)):
        with pytest.raises(error):
            asyncio.run(ask(router, 0, bad))
    assert router.alive == [0, 1]


def test_updates_reach_every_replica_and_lose_nothing(undisturbed):
    made, router = replicas(2)
    other = build_model(SIZE, TOKENIZER, 1).state_dict()

    async def play():
        tasks = [asyncio.create_task(ask(router, n, prompt(9, n), 12)) for n in range(4)]
        for _ in range(5):
            await asyncio.sleep(0)
        await router.suspend()
        await router.update_weights(iter(other.items()))
        await router.resume()
        return await asyncio.gather(*tasks)

    responses = asyncio.run(play())
    for n, response in enumerate(responses):
        cut = response.versions.count(0)
        assert 0 < cut < 12
        assert response.versions == [0] * cut + [1] * (12 - cut)
        assert response.ids[:cut] == undisturbed(n, prompt(9, n), 12).ids[:cut]
    assert router.version == 1
    assert [r.engine.version for r in made] == [1, 1]
    router.version = 7
    assert [r.engine.version for r in made] == [7, 7]
    for replica in made:
        assert all(torch.equal(replica.model.state_dict()[name], tensor) for name, tensor in other.items())


def test_wrong_weights_are_an_error_and_no_failure():
    _, router = replicas(2)
    with pytest.raises(UsageError, match="no weight"):
        asyncio.run(router.update_weights([("nonsense", torch.zeros(1))]))
    assert router.alive == [0, 1]


def test_cancelling_reaches_the_replica():
    made, router = replicas(2)

    async def play():
        tasks = [asyncio.create_task(ask(router, n, prompt(9, n), 50)) for n in range(4)]
        for _ in range(4):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())
    assert [r.engine.active for r in made] == [0, 0]
    assert router.alive == [0, 1]


@pytest.mark.integration
@pytest.mark.slow
def test_a_replica_that_never_finishes_an_update_is_left_out():
    made, _ = replicas(2)
    router = Router([r.engine for r in made], patience=0.2)

    async def never(weights=None):
        while True:  # and it does not heed its cancellation at once
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(2)
                return

    made[0].engine.update_weights = never

    async def play():
        await router.update_weights()
        assert (router.alive, router.version) == ([1], 1)
        assert (await ask(router, 0, prompt(9))).ids

    asyncio.run(play())


class Answering(HttpTransport):
    """A server that answers every request with given pieces."""

    def __init__(self, pieces):
        self.answers, self.version = pieces, None
        super().__init__("http://127.0.0.1:9", patience=0.1)

    def first_look(self):
        return 64

    def client(self):
        def answer(request):
            if request.url.path == "/inference/v1/generate":
                return httpx.Response(200, text="".join(f"data: {json.dumps(piece)}\n\n" for piece in self.answers))
            if request.url.path == "/update_weight_version":
                self.version = json.loads(request.content)["new_version"]
            return httpx.Response(200, json={"weight_version": self.version})

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def answering(*pieces):
    """An engine over such a server."""
    return VLLMEngine(Answering(pieces), frozenset({2}))


def piece(ids=(5,), logprobs=(-1.0,), finish=None, **more):
    content = {"content": [{"logprob": number} for number in logprobs]}
    return {"choices": [{"token_ids": list(ids), "logprobs": content, "finish_reason": finish, **more}]}


@pytest.mark.parametrize(
    "nonsense",
    [
        [],
        3,
        None,
        {},
        {"choices": []},
        {"choices": [{}]},
        {"error": "no"},
        piece(logprobs=()),
        piece(logprobs=(-1.0, -1.0)),
        piece(logprobs=(None,)),
        piece(logprobs=(float("nan"),)),
        piece(ids=("5",)),
        {"choices": None},
        piece(weight_versions=3),
        piece(weight_versions=[{"version": 7, "start": 0, "end": 1}]),
        piece(weight_versions=[{"version": "7", "start": 0, "end": 1}]),
        piece(finish=[]),
    ],
    ids=str,
)
def test_a_server_that_answers_nonsense_has_failed(nonsense):
    async def main():
        bad, good = answering(piece(), nonsense), answering(piece((6, 2), (-0.5, -0.5), "stop"))
        with pytest.raises(EngineFailed, match=r"http://127\.0\.0\.1:9") as failed:
            await bad.generate((1,), Sampling(1.0, 8), random.Random(0))
        response = await Router([bad, good]).generate((1,), Sampling(1.0, 8), random.Random(0))
        return failed.value.response, response

    before, after = asyncio.run(main())
    assert len(before.ids) == len(before.logprobs) == len(before.versions) in (1, 2)
    assert before.ids == [5] * len(before.ids)
    assert after.ids == [*before.ids, 6, 2]
    assert after.logprobs == [-1.0] * len(before.ids) + [-0.5, -0.5]
    assert set(after.versions) == {0}
