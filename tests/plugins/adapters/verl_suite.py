"""verl's agent loop, built as its workers build it, with a server that answers with tokens of a tiny tokenizer."""

from __future__ import annotations

import asyncio
import threading

import hydra
import numpy as np
import pytest
from omegaconf import OmegaConf
from peer_envs import CLOSED, solved
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

import rollenv
from rollenv.core.errors import UnknownEnv, UsageError
from rollenv.plugins.adapters import EpisodeFailed

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    from tokenizers import decoders

    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    raw.train_from_iterator(
        ["the box is up down left right user assistant"] * 4,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=special),
    )
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = TEMPLATE
    return made


class FakeServer:
    """Says what it is told, one token list for each request, and notes what it was asked."""

    def __init__(self, tokenizer, replies, logprobs=True):
        self.tokenizer, self.replies, self.logprobs, self.asked = tokenizer, iter(replies), logprobs, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        await asyncio.sleep(0)
        self.asked.append((request_id, list(prompt_ids), sampling_params))
        ids = self.tokenizer.encode(next(self.replies), add_special_tokens=False)
        ids += [self.tokenizer.eos_token_id] if ids else []
        logs = [-(i + 1) / 100 for i in range(len(ids))] if self.logprobs else None
        step = len(self.asked)
        return TokenOutput(
            token_ids=ids, log_probs=logs, extra_fields={"min_global_steps": step, "max_global_steps": step}
        )


def loop_of(tokenizer, server, agent="", prompt=2000, response=4000, turns=None):
    """As AgentLoopWorker does: from the YAML file's entry, with hydra."""
    entry = OmegaConf.create(f"name: rollenv\n_target_: rollenv.plugins.adapters.verl.RollenvAgentLoop\n{agent}")
    rollout = {"prompt_length": prompt, "response_length": response, "multi_turn": {"max_assistant_turns": turns}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    return hydra.utils.instantiate(
        config=entry,
        trainer_config=DictConfigWrap(config=config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type="qwen2",
    )


def run(tokenizer, replies, row, logprobs=True, **settings):
    server = FakeServer(tokenizer, replies, logprobs)

    async def play():
        loop = loop_of(tokenizer, server, **settings)
        prompt = [{"role": "system", "content": "Play."}]
        return await loop.run({"temperature": 1.0}, **{"raw_prompt": prompt, "session_id": 1, **row})

    return asyncio.run(play()), server


def test_an_episode_is_ours_and_its_tokens_are_those_that_were_sampled(tokenizer):
    seen, replies, rewards = solved("game:Sokoban-v0-tiny", 3)
    output, server = run(
        tokenizer, replies, {"extra_info": {"env_id": "game:Sokoban-v0-tiny", "seed": 3}}, response=60_000
    )
    assert isinstance(output, AgentLoopOutput)
    assert output.reward_score == pytest.approx(sum(rewards))
    assert output.num_turns == 2 * len(replies)
    turns = [{"role": "system", "content": "Play."}, {"role": "user", "content": seen[0]}]
    first = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(output.prompt_ids) == first
    for reply, observation in zip(replies, seen[1:], strict=True):
        turns += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
    whole = tokenizer.apply_chat_template(turns[:-1], tokenize=False)
    assert tokenizer.decode(output.prompt_ids + output.response_ids) == whole.removesuffix("\n")
    sampled = [t for t, m in zip(output.response_ids, output.response_mask, strict=True) if m]
    said = [id for reply in replies for id in [*tokenizer.encode(reply), tokenizer.eos_token_id]]
    assert sampled == said
    logs = [p for p, m in zip(output.response_logprobs, output.response_mask, strict=True) if m]
    assert logs == [-(i + 1) / 100 for reply in replies for i in range(len(tokenizer.encode(reply)) + 1)]
    assert all(p == 0 for p, m in zip(output.response_logprobs, output.response_mask, strict=True) if not m)
    assert len({request for request, _, _ in server.asked}) == 1
    for _, asked, params in server.asked:  # each request is a beginning of what is trained on
        assert (output.prompt_ids + output.response_ids)[: len(asked)] == asked
        assert params == {"temperature": 1.0}
    assert output.extra_fields["reward_extra_info"] == {"score": output.reward_score, "success": 1.0}
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, len(replies))
    assert set(output.as_dict()) >= {"prompts", "responses", "response_mask", "rollout_log_probs"}


def test_rows_and_the_file_choose_the_environment(tokenizer):
    agent = "env_id: peers:Moody-v0\nenv_kwargs: {}"
    prompts = set()
    filled = {"seed": 1.0, "env_id": float("nan"), "env_kwargs": {"a": None}, "options": {"index": 4, "b": None}}
    for row in ({"seed": 1}, {"extra_info": {"seed": 2}}, {"seed": 1, "options": {"index": 4}}, {"seed": 1}, filled):
        output, _ = run(tokenizer, ["end"], row, agent=agent)
        prompts.add(tokenizer.decode(output.prompt_ids))
    assert len(prompts) == 3
    assert run(tokenizer, ["end"], {"seed": float("nan"), "options": float("nan")}, agent=agent)[0].reward_score == 0.5
    for wrong in ({"seed": "x"}, {"env_kwargs": "{}"}):
        with pytest.raises(UsageError, match="row"):
            run(tokenizer, [], wrong, agent=agent)
    output, _ = run(tokenizer, ["end"], {"raw_prompt": [{"role": "user", "content": "Well?"}], "seed": 1}, agent=agent)
    assert tokenizer.decode(output.prompt_ids).startswith("<|im_start|>user\nWell?\n\ntask ")
    with pytest.raises(UsageError, match="env_id"):
        run(tokenizer, [], {})
    with pytest.raises(UnknownEnv):
        run(tokenizer, [], {"env_id": "game:Sokobam-v0"})
    with pytest.raises(UsageError, match="'size'"):
        run(tokenizer, [], {}, agent="env_id: peers:Moody-v0\nenv_kwargs: {size: 3}")


def test_limits_of_turns_and_of_tokens_hold(tokenizer):
    row = {"env_id": "peers:Moody-v0"}
    for settings in ({"turns": 3}, {"agent": "max_turns: 3"}, {"agent": "max_turns: 3", "turns": 9}):
        output, _ = run(tokenizer, ["a"] * 99, row, **settings)
        assert output.reward_score == 1.5
        assert output.num_turns == 6
        assert output.response_mask[-1] == 1
    for length in (1, 2, 30, 50, 51, 52, 77):
        output, _ = run(tokenizer, ["up up up up"] * 99, row, response=length)
        assert 0 < len(output.response_ids) <= length
        assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
        assert output.response_mask[-1] == 1, "what follows the last reply is of no use"


def test_without_log_probabilities_and_without_tokens(tokenizer):
    output, _ = run(tokenizer, ["a", "end"], {"env_id": "peers:Moody-v0"}, logprobs=False)
    assert output.response_logprobs is None
    assert sum(output.response_mask) > 0
    output, _ = run(tokenizer, ["a", "", "end"], {"env_id": "peers:Moody-v0"})
    assert output.reward_score == 1.5
    output, _ = run(tokenizer, [""] * 999, {"env_id": "peers:Moody-v0"}, response=200)
    assert len(output.response_ids) <= 200


@pytest.mark.parametrize(("reply", "said"), [("raise", r"RuntimeError: two lines"), ("hang", r"within 0\.3 s")])
def test_an_environment_that_fails_is_one_line_and_is_closed(tokenizer, reply, said):
    CLOSED.clear()
    with pytest.raises(EpisodeFailed, match=said) as caught:
        run(tokenizer, ["a", reply], {"env_id": "peers:Moody-v0"}, agent="seconds: 0.3")
    assert "\n" not in str(caught.value)
    assert CLOSED


def test_many_at_once_and_one_that_is_cancelled_leave_nothing(tokenizer):
    CLOSED.clear()

    async def play():
        loops = [loop_of(tokenizer, FakeServer(tokenizer, ["a"] * 5 + ["end"])) for _ in range(20)]
        row = {"raw_prompt": [], "env_id": "peers:Moody-v0"}
        outputs = await asyncio.gather(*(loop.run({}, seed=i, **row) for i, loop in enumerate(loops)))

        class Silent:
            async def generate(self, **kwargs):
                await asyncio.sleep(1000)

        task = asyncio.create_task(loop_of(tokenizer, Silent()).run({}, **row))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return outputs

    outputs = asyncio.run(play())
    assert {output.reward_score for output in outputs} == {3.0}
    assert len({tuple(output.prompt_ids) for output in outputs}) == 20
    assert len(CLOSED) == 21
    assert threading.active_count() < 40


def test_pictures_need_a_processor_as_verl_says(tokenizer):
    row = {"extra_info": {"env_id": "game:Sokoban-v0-tiny", "env_kwargs": {"images": "only"}, "seed": 3}}
    with pytest.raises(ValueError, match="Multimodal inputs require"):
        run(tokenizer, ["x"], row)


class SeenBuilder:
    """verl's text builder with parts of pictures in place of its processor, which needs torchvision."""

    def __init__(self, text):
        self.text, self.images = text, []

    def supports_multimodal(self):
        return True

    def flat(self, messages):
        flat = []
        for message in messages:
            content = message["content"]
            if isinstance(content, list):
                self.images += [part["image"] for part in content if part["type"] == "image"]
                content = "".join(part.get("text", "<|endoftext|>") for part in content)
            flat.append({**message, "content": content})
        return flat

    def build_initial_tokens(self, messages, tools=None, images=None, **more):
        flat = self.flat(messages)
        return self.text.build_initial_tokens(flat, tools=tools)

    def merge_context_tokens(self, before, after, *given, **more):
        return self.text.merge_context_tokens(self.flat(before), self.flat(after), *given, **more)

    def __getattr__(self, name):
        return getattr(self.text, name)


@pytest.mark.parametrize("response", [4000, 8])
def test_pictures_go_to_the_server_and_to_training_and_none_of_a_cut_turn(tokenizer, response):
    pytest.importorskip("PIL")
    server = FakeServer(tokenizer, ["right", "down", "right"])
    sent, generate = [], server.generate

    async def noted(request_id, image_data=None, **given):
        sent.append(len(image_data))
        return await generate(request_id, **given)

    server.generate = noted

    async def play():
        loop = loop_of(tokenizer, server, response=response, turns=3)
        loop.processor = object()
        loop.continuous_token_builder = SeenBuilder(loop.continuous_token_builder)
        row = {"env_id": "game:Sokoban-v0-tiny", "env_kwargs": {"images": "only"}, "seed": 3}
        return await loop.run({"temperature": 1.0}, raw_prompt=[{"role": "user", "content": "Play."}], **row)

    output = asyncio.run(play())
    env = rollenv.make("game:Sokoban-v0-tiny", images="only")
    seen = [*env.reset(3)[1]["images"]]
    for move in ("right", "down")[: len(sent) - 1]:
        seen += env.step(move)[4]["images"]
    assert sent == [*range(1, len(sent) + 1)]
    assert len(sent) == (3 if response == 4000 else 1)
    shown = output.multi_modal_data["images"]
    assert [np.asarray(image).tolist() for image in shown] == [image.array().tolist() for image in seen]
