"""vLLM in this process and behind a server: the same tokens, versions and log-probabilities everywhere.

Not collected by itself: ``test_vllm.py`` runs it in an interpreter that has vLLM.
"""

import asyncio
import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_places import PLACES, adapter_of, engine_in, is_greedy, runner, save_model

from rollenv import UsageError
from rollenv.agents.base import ContextFull
from rollenv.agents.engines.adapters import Adapter
from rollenv.agents.engines.base import EngineFailed, EngineLost, Sampling
from rollenv.agents.engines.scoring import score


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=PLACES)
def placed(request, folder, tmp_path_factory):
    with engine_in(request.param, folder, tmp_path_factory.mktemp("logs") / "server.log") as (engine, kill):
        yield engine, kill


@pytest.fixture
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def engine(placed, model):
    engine, _ = placed
    runner.run(engine.update_weights(model.state_dict().items()))
    return engine


@pytest.fixture(scope="module")
def drawn():
    """What the first place drew, for the others to compare."""
    return {}


def prompt(n, seed=0):
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 250) for _ in range(n))


async def play(engine, prompts, sampling):
    return await asyncio.gather(*(engine.generate(p, sampling, random.Random(s)) for s, p in enumerate(prompts)))


def changed(model, seed=1):
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return model


def check_scores(model, prompts, responses, temperature=1.0):
    with torch.no_grad():
        scores = score(model, prompts, [tuple(r.ids) for r in responses], temperature)
    for row, response in enumerate(responses):
        assert len(response.ids) == len(response.logprobs) == len(response.versions) > 0
        assert scores.logprobs[row][scores.mask[row].bool()].tolist() == pytest.approx(response.logprobs, abs=1e-3)


async def in_the_middle(engine, old, new, count=4):
    """Long responses, in the middle of which the engine gets new weights, and one that begins meanwhile.

    A busy machine may let the engine finish them all before: then it is done again.
    """
    for _ in range(8):
        await engine.update_weights(old)
        version = engine.version
        long = [
            asyncio.ensure_future(engine.generate(prompt(20 + n, n), Sampling(0.0, 400), random.Random(n)))
            for n in range(count)
        ]
        await engine.generate(prompt(9), Sampling(1.0, 12), random.Random(0))
        await engine.suspend()
        late = engine.generate(prompt(20 + count, count), Sampling(0.0, 400), random.Random(count))
        long.append(asyncio.ensure_future(late))
        await asyncio.sleep(0.05)
        await engine.update_weights(new)
        await engine.resume()
        responses = await asyncio.gather(*long)
        if any(0 < r.versions.count(version) < len(r.ids) for r in responses[:-1]):
            return version, responses
    pytest.fail("all responses were whole before the new weights came, eight times")


def check_middle(responses, version, before, after):
    """Each response is greedy under the old weights up to its cut, and under the new ones behind it."""
    for n, response in enumerate(responses):
        cut = response.versions.count(version)
        assert response.versions == [version] * cut + [version + 1] * (len(response.ids) - cut)
        assert is_greedy(before, prompt(20 + n, n), response.ids[:cut])
        assert is_greedy(after, (*prompt(20 + n, n), *response.ids[:cut]), response.ids[cut:])
    assert responses[-1].versions.count(version) == 0, "what begins while weights change is drawn with the new ones"


def test_all_places_draw_the_same_with_a_seed(engine, drawn):
    prompts = [prompt(n, n) for n in (3, 50, 17)]
    sampling = Sampling(0.8, 12)
    found = [r.ids for r in runner.run(play(engine, prompts, sampling))]
    assert found == drawn.setdefault("ids", found)


def test_answers_follow_a_schema(engine, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    schema = json.dumps({"type": "object", "properties": {"move": {"enum": ["up", "down"]}}, "required": ["move"]})
    for response in runner.run(play(engine, [prompt(n, n) for n in (3, 9)], Sampling(1.0, 300, schema=schema))):
        text = tokenizer.decode(response.ids, skip_special_tokens=True)
        assert response.finish == "length" or json.loads(text)["move"] in ("up", "down")


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_sampler_and_the_trainer_agree_before_and_after_an_update(engine, model, temperature):
    prompts = [prompt(n, n) for n in (3, 50, 17)]
    version = engine.version
    check_scores(model, prompts, runner.run(play(engine, prompts, Sampling(temperature, 12))), temperature)
    runner.run(engine.update_weights(changed(model).state_dict().items()))
    after = runner.run(play(engine, prompts, Sampling(temperature, 12)))
    check_scores(model, prompts, after, temperature)
    assert {v for r in after for v in r.versions} == {version + 1} == {engine.version}


def test_unfinished_responses_go_on_with_new_weights(engine, model, folder):
    other = changed(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    old, new = ([*each.state_dict().items()] for each in (model, other))
    version, responses = runner.run(in_the_middle(engine, old, new))
    check_middle(responses, version, model, other)


def test_the_versions_follow_the_agents_count(engine):
    engine.version = 41
    assert set(runner.run(play(engine, [prompt(9)], Sampling(1.0, 3)))[0].versions) == {41}


def test_an_adapter_and_its_merged_weights_draw_alike(engine, model, folder):
    prompts = [prompt(n, n) for n in (3, 50, 17)]
    base = list(model.state_dict().items())
    adapter = adapter_of(model)
    plain = runner.run(play(engine, prompts, Sampling(1.0, 10)))
    runner.run(engine.update_weights(adapter))
    played = runner.run(play(engine, prompts, Sampling(1.0, 10)))
    runner.run(engine.update_weights(adapter.merged(base)))
    merged = runner.run(play(engine, prompts, Sampling(1.0, 10)))
    assert [r.ids for r in played] != [r.ids for r in plain]
    assert [r.ids for r in played] == [r.ids for r in merged]
    for one, other in zip(played, merged, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    model.load_state_dict(dict(adapter.merged(base)))
    check_scores(model, prompts, played)


def test_unfinished_responses_go_on_with_a_new_adapter(engine, model, folder):
    base = list(model.state_dict().items())
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for _ in range(3)]
    for seed, merged in enumerate(models):
        merged.load_state_dict(dict(adapter_of(model, seed).merged(base)))
    for seed in (1, 2):
        version, responses = runner.run(in_the_middle(engine, adapter_of(model, seed - 1), adapter_of(model, seed)))
        check_middle(responses, version, models[seed - 1], models[seed])
    runner.run(engine.update_weights(base))  # and back to no adapter
    assert is_greedy(model, prompt(20), runner.run(play(engine, [prompt(20)], Sampling(0.0, 20)))[0].ids)


def test_what_is_wrong_is_said_and_changes_nothing(engine, model):
    with pytest.raises(ContextFull, match="512"):
        runner.run(play(engine, [prompt(512)], Sampling(1.0, 1)))
    with pytest.raises(UsageError, match="named weights"):
        runner.run(engine.update_weights())
    with pytest.raises(UsageError, match="cannot sleep"):
        runner.run(engine.sleep())
    version = engine.version
    with pytest.raises(UsageError, match="rank"):
        runner.run(engine.update_weights(adapter_of(model, rank=16)))
    runner.run(engine.resume())
    assert engine.version == version
    assert is_greedy(model, prompt(20), runner.run(play(engine, [prompt(20)], Sampling(0.0, 20)))[0].ids)


def test_what_is_cancelled_makes_room(engine):
    async def cancel():
        long = [
            asyncio.ensure_future(engine.generate(prompt(20, n), Sampling(1.0, 400), random.Random(n)))
            for n in range(24)
        ]
        await asyncio.sleep(0.1)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        return await engine.generate(prompt(5), Sampling(1.0, 3), random.Random(0))

    assert runner.run(cancel()).ids == runner.run(play(engine, [prompt(5)], Sampling(1.0, 3)))[0].ids


def test_when_it_dies_requests_fail_and_later_ones_end_the_rollout(placed, engine, model):
    _, kill = placed

    async def die():
        many = [  # more than it samples at once, so that a busy machine does not finish them before it is killed
            asyncio.ensure_future(engine.generate(prompt(20, n), Sampling(1.0, 400), random.Random(n)))
            for n in range(64)
        ]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(kill)
        ended = await asyncio.gather(*many, return_exceptions=True)
        failed = [end for end in ended if isinstance(end, BaseException)]
        assert failed
        assert all(isinstance(error, EngineFailed) for error in failed)
        with pytest.raises(EngineLost):
            await engine.generate(prompt(9), Sampling(1.0, 6), random.Random(0))

    runner.run(die())
    if hasattr(engine, "server"):
        comes_back(engine, model)


def comes_back(engine, model):
    """A server that was started again draws nothing before it has the weights."""
    with pytest.raises(EngineLost):
        runner.run(engine.update_weights(model.state_dict().items()))
    engine.server.start()
    with pytest.raises(EngineLost, match="other weights"):
        runner.run(play(engine, [prompt(9)], Sampling(1.0, 2)))
    runner.run(engine.update_weights(changed(model).state_dict().items()))
    runner.run(engine.resume())
    check_scores(model, [prompt(9)], runner.run(play(engine, [prompt(9)], Sampling(1.0, 5))))


def test_an_adapter_of_another_kind_is_refused(model):
    adapter = adapter_of(model)
    with pytest.raises(UsageError, match="use_dora"):
        Adapter({**adapter.config, "use_dora": True}, adapter.tensors)
    with pytest.raises(UsageError, match="are named"):
        Adapter(adapter.config, {"model.layers.0.weight": torch.zeros(1)})
    with pytest.raises(UsageError, match="model"):
        list(adapter.merged([]))
