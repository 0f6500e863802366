"""The wordings and shapes of real servers: each ends an episode with the right status, and is counted."""

import itertools
import json
from pathlib import Path

import pytest
from chat_server import ChatServer, completion

import rollenv
from rollenv.agents.chat import Budget, ChatAgent, Prices
from rollenv.agents.chat.endpoint import Patience
from rollenv.agents.chat.refusals import context_full, requested_wait
from rollenv.core import registry
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory

#: What servers say when a context is full and what they say of other faults, collected from servers and public reports.
WORDS = [json.loads(line) for line in Path(__file__).with_name("server_words.jsonl").read_text().splitlines()]
QUICK = Patience(timeout=30, retries=1, first_wait=0.001, limited=2.0)


@pytest.fixture(autouse=True, scope="module")
def _sums():
    rollenv.register("servers:Sum-v0", "rollenv.envs.math.env:MathEnv", dataset=[{"problem": "2 + 3?", "answer": "5"}])
    yield
    del registry.ENV_REGISTRY["servers:Sum-v0"]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def says(data, status="200 OK", **headers):
    """A server's answer: an object, or events of a stream (a tuple of data, or of lines)."""

    async def behave(exchange):
        if isinstance(data, tuple):
            lines = [part if isinstance(part, str) else f"data: {json.dumps(part)}" for part in data]
            await exchange.send("\n\n".join([*lines, ""]).encode(), status, "text/event-stream", **headers)
        else:
            await exchange.send(json.dumps(data).encode(), status, **headers)

    return behave


def played(*answers, stream=False, **settings):
    """The trajectory of an episode against a server that gives these answers, and what was counted."""
    given = itertools.chain(answers, itertools.repeat(answers[-1]))
    with ChatServer(lambda exchange: next(given)(exchange)) as server:
        agent = ChatAgent("m", server.url, stream=stream, **{"patience": QUICK, **settings})
        with RolloutManager(agent) as manager:
            trajectory = Trajectory(Task("servers:Sum-v0", 0))
            manager.play([trajectory])
    return trajectory, agent.totals


def openai(message, code=None, kind="invalid_request_error"):
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


RIGHT = completion("\\boxed{5}")


def whole(content, finish="stop", **more):
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish}], **more}


def part(content="", finish=None, **more):
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish, **more}]}


# -- a context that is full --------------------------------------------------------------------------------------------

FULL = [json.loads(line) for line in Path(__file__).with_name("full_contexts.jsonl").read_text().splitlines()]
NOT_FULL = {
    "a wrong role": openai("Invalid value: 'narrator'. Supported values are: 'system', 'assistant', 'user'."),
    "a filter": openai("The response was filtered due to the prompt triggering our policy.", "content_filter"),
    "temperature": openai("temperature must be at most 2, got 3"),
    "temperature, pydantic": {"detail": [{"loc": ["body", "temperature"], "msg": "Input should be less than 2"}]},
    "stop": openai("Invalid 'stop': array too long. Expected an array with maximum length 4."),
    "too long an answer": openai("max_tokens is too large: 512. This model supports at most 256 completion tokens."),
    "too long an answer for any prompt": openai("This model's maximum context length is 256 tokens. However, you "
                                                "requested 532 tokens (20 in the messages, 512 in the completion)."),
    "too long an answer, DashScope": openai("Range of max_tokens should be [1, 256]"),
    "too long an answer, Anthropic": openai("max_tokens: 512 > 256, which is the maximum number of output tokens"),
    "too long an answer, Groq": openai("`max_tokens` must be less than or equal to `256`, the maximum value for "
                                       "`max_tokens` is less than the `context_window` for this model"),
    "a schema": openai("Invalid schema for function 'find': In context=('properties', 'x'), 'foo' is not valid."),
    "too many tools": openai("Invalid 'tools': array too long. Expected an array with maximum length 128."),
    "a field of a message": openai("Invalid 'messages[3].tool_calls[0].id': string too long, maximum length 40."),
    "a picture": openai("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum"),
    "tokens of a minute": openai("Request too large on tokens per minute (TPM): Limit 6000, Requested 6500, please "
                                 "reduce your message size and try again.", "rate_limit_exceeded", "tokens"),
    "money": openai("This request requires more credits, or fewer max_tokens. You requested up to 512 tokens."),
    "probabilities": openai("Requested sample logprobs of 25, which is greater than max allowed: 20"),
    "an empty prompt": openai("The decoder prompt cannot be empty"),
    "nothing": "",
}  # fmt: skip


@pytest.mark.parametrize("row", FULL, ids=lambda row: row["server"])
def test_a_full_context_truncates_in_any_words(row):
    trajectory, totals = played(says(row["body"], f"{row['status']} No"), max_tokens=512)
    assert (trajectory.status, trajectory.error, totals.requests) == ("truncated", "", 1)


@pytest.mark.parametrize("name", NOT_FULL)
def test_other_refusals_fail(name):
    trajectory, totals = played(says(NOT_FULL[name], "400 No"), max_tokens=512)
    assert (trajectory.status, totals.requests, totals.failures) == ("failed", 1, 1)


def test_a_full_context_is_told_from_other_faults():
    assert [row for row in WORDS if context_full(row["words"], row["longest_answer"]) != row["full"]] == []


def test_what_the_user_set_is_not_taken_for_what_is_left():
    refusal = says(openai("max_tokens must be at least 1, got -5."), "400 No")
    assert played(refusal, max_tokens=-5)[0].status == "failed"
    assert played(refusal)[0].status == "truncated"


# -- errors inside answers ---------------------------------------------------------------------------------------------

GONE = {"code": 502, "message": "the provider went away"}
BROKEN = {
    "OpenRouter": whole("First, I", "error") | {"choices": [{"message": {"content": ""}, "error": GONE}]},
    "OpenRouter, at the top": {"error": GONE},
    "DeepSeek": whole("", "insufficient_system_resource"),
    "Zhipu": whole("First, I", "network_error"),
    "SGLang": whole("First, I", "abort"),
    "vLLM, before": {"object": "error", "message": "engine died", "code": 500},
    "Gemini": whole(None, "OTHER"),
    "a finish in capitals": whole("First, I", "ERROR"),
    "a cancelled answer": whole("First, I", "cancelled"),
    "an unknown finish": whole("", "unknown"),
    "nothing": whole(None),
    "nothing, and no end": whole("", None),
    "no choices": {"choices": None, "base_resp": {"status_code": 1002}},
    "a stream, error in the choice": (part("First, I"), part("", "error", error=GONE), "data: [DONE]"),
    "a stream, error at the top": (part("First, I"), {"error": GONE}),
    "a stream, vLLM": (part("First, I"), {"object": "error", "message": "engine died"}, "data: [DONE]"),
    "a stream, event of an error": (part("First, I"), "event: error\ndata: {\"message\": \"gone\"}", "data: [DONE]"),
    "a stream that was cut": (part("First, I"),),
    "a stream that was cut, with its mark": (part("First, I"), "data: [DONE]"),
    "a stream that was aborted": (part("First, I"), part("", "abort"), "data: [DONE]"),
    "a stream of nothing": ("data: [DONE]",),
}  # fmt: skip
OWN = {
    "cut at its limit": (whole("First, I", "length"), "length"),
    "cut at its limit, Anthropic": (whole("First, I", "max_tokens"), "length"),
    "cut by the context": (whole("First, I", "model_context_window_exceeded"), "length"),
    "a filter": (whole("I would rather not.", "content_filter"), "stop"),
    "a filter that leaves nothing": (whole(None, "content_filter"), "stop"),
    "a refusal": (completion(None, message={"refusal": "I cannot"}), "stop"),
    "an empty answer": (whole("", "stop"), "stop"),
    "a stop of another name": (whole("no", "eos_token"), "stop"),
    "a refusal, streamed": (
        ({"choices": [{"delta": {"refusal": "I cannot"}}]}, part("", "stop"), "data: [DONE]"),
        "stop",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_an_answer_that_is_an_error_is_asked_for_again(name):
    stream = isinstance(BROKEN[name], tuple)
    trajectory, totals = played(says(BROKEN[name]), says(RIGHT), stream=stream)
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0)
    assert (totals.requests, totals.retries, sum(totals.problems.values())) == (2, 1, 1)
    trajectory, totals = played(says(BROKEN[name]), stream=stream)
    assert (trajectory.status, len(trajectory.turns), totals.failures) == ("failed", 0, 1)


@pytest.mark.parametrize("name", OWN)
def test_an_answer_of_the_models_own_counts(name):
    answer, finish = OWN[name]
    trajectory, totals = played(says(answer), says(RIGHT), stream=isinstance(answer, tuple))
    assert (trajectory.status, trajectory.reward, totals.requests) == ("terminated", 0.0, 1)
    assert trajectory.turns[0].finish == finish


# -- rate limits -------------------------------------------------------------------------------------------------------

LIMITS = {
    "no word of time": says(openai("Rate limit reached", "rate_limit_exceeded"), "429 No"),
    "Retry-After": says({}, "429 No", Retry_After="0.01"),
    "OpenAI": says({}, "429 No", x_ratelimit_reset_requests="10ms", x_ratelimit_reset_tokens="0.02s"),
    "Azure": says({}, "429 No", retry_after_ms="10"),
    "Groq": says(openai("Rate limit reached. Please try again in 0.012s. Visit the console"), "429 No"),
    "Gemini": says({"error": {"details": [{"@type": "RetryInfo", "retryDelay": "0.01s"}]}}, "429 No"),
    "Anthropic": says({"type": "error", "error": {"type": "overloaded_error"}}, "529 Overloaded"),
    "a proxy": says({}, "503 No", Retry_After="0"),
    "OpenRouter": says({"error": {"code": 429, "message": "upstream is busy"}}),
    "a reset in the past": says({}, "429 No", x_ratelimit_reset="2020-01-01T00:00:00Z"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_rate_limit_is_waited_out_and_uses_up_no_attempts(name):
    trajectory, totals = played(*[LIMITS[name]] * 6, says(RIGHT), patience=Patience(30, retries=0, first_wait=0.001))
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0)
    assert (totals.requests, totals.retries, totals.failures) == (7, 6, 0)
    assert sum(totals.problems.values()) == 6


@pytest.mark.parametrize(
    ("limit", "asked"),
    [
        (says({}, "429 No"), ""),
        (says({}, "429 No", Retry_After="3600"), "asks to wait 3600 s"),
        (says(openai("Please try again in 1h0m5s."), "429 No"), "asks to wait 3605 s"),
        (says({}, "429 No", x_ratelimit_reset_requests_day="7200", x_ratelimit_remaining_requests_day="0"), "7200 s"),
        (says({}, "429 No", x_ratelimit_reset="4102444800"), "asks to wait"),
    ],
)
def test_a_limit_that_outlasts_the_patience_fails(limit, asked):
    trajectory, totals = played(limit, patience=Patience(30, retries=0, first_wait=0.001, limited=0.05))
    assert (trajectory.status, totals.failures) == ("failed", 1)
    assert asked in trajectory.error


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "said", "seconds"),
    [
        ({"retry-after": "20"}, "", 20),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, "", 30),
        ({"retry-after-ms": "1500", "retry-after": "2"}, "", 1.5),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, "", 1),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"},
          "", 360),
        ({"x-ratelimit-reset-tokens": "120ms"}, "", 0.12),
        ({"x-ratelimit-reset": str(NOW + 30)}, "", 30),
        ({"x-ratelimit-reset": str(int(NOW + 30) * 1000)}, "", 30),
        ({"anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:30Z"}, "", 30),
        ({"ratelimit-reset": "7"}, "", 7),
        ({}, "Rate limit reached. Please try again in 20s. Visit the console", 20),
        ({}, "Please try again in 1m30.5s.", 90.5),
        ({}, "Please retry after 45 seconds.", 45),
        ({}, '{"retryDelay": "41.82s"}', 41.82),
        ({}, '{"error": {"retry_after": 3}}', 3),
        ({}, "Please wait 2 minutes", 120),
        ({}, "Rate limit of 3 requests reached", None),
        ({"retry-after": "later", "x-ratelimit-reset": "nan"}, "", None),
    ],
)  # fmt: skip
def test_the_wait_that_a_limit_asks_for_is_read(headers, said, seconds, monkeypatch):
    monkeypatch.setattr("rollenv.agents.chat.refusals.time.time", lambda: NOW)
    assert requested_wait(headers, said) == (seconds if seconds is None else pytest.approx(seconds))


def test_failures_and_limits_are_counted_apart():
    limit, broken = says({}, "429 No"), says({}, "500 No")
    trajectory, totals = played(limit, broken, limit, limit, says(RIGHT))
    assert trajectory.reward == 1.0
    assert totals.problems == {"rate_limit": 3, "server_error": 1}
    trajectory, totals = played(limit, broken, limit, broken)
    assert (trajectory.status, totals.requests) == ("failed", 4)


# -- usage -------------------------------------------------------------------------------------------------------------

TOLD = {
    "OpenAI": {"usage": {"prompt_tokens": 90, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}},
    "Anthropic": {"usage": {"input_tokens": 50, "cache_read_input_tokens": 40, "output_tokens": 10}},
    "Responses": {"usage": {"input_tokens": 90, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 40}}},
    "DeepSeek": {"usage": {"prompt_tokens": 90, "completion_tokens": 10, "prompt_cache_hit_tokens": 40}},
    "Gemini": {"usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 7, "thoughtsTokenCount": 3,
                                 "cachedContentTokenCount": 40}},
    "Ollama": {"prompt_eval_count": 90, "eval_count": 10},
    "Groq": {"x_groq": {"usage": {"prompt_tokens": 90, "completion_tokens": 10}}},
    "Cohere": {"usage": {"tokens": {"input_tokens": 90.0, "output_tokens": 10.0}}},
    "texts": {"usage": {"prompt_tokens": "90", "completion_tokens": "10"}},
    "a sum": {"usage": {"prompt_tokens": None, "completion_tokens": 10, "total_tokens": 100}},
}  # fmt: skip
UNTOLD = [
    {},
    {"usage": None},
    {"usage": {}},
    {"usage": {"prompt_tokens": -1, "completion_tokens": None}},
    {"usage": {"prompt_tokens": 0, "completion_tokens": 0}},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TOLD)
def test_usage_is_read_in_any_form(name, stream):
    events = (part("\\boxed{5}"), part("", "stop"), {"choices": [], **TOLD[name]}, "data: [DONE]")
    _, totals = played(says(events if stream else whole("\\boxed{5}", **TOLD[name])), stream=stream)
    assert (totals.prompt_tokens, totals.completion_tokens, totals.estimated) == (90, 10, 0)
    assert totals.cached_tokens in (0, 40)


def test_usage_in_a_choice_is_read():
    last = part("", "stop", usage={"prompt_tokens": 90, "completion_tokens": 10})
    _, totals = played(says((part("\\boxed{5}"), last, "data: [DONE]")), stream=True)
    assert (totals.prompt_tokens, totals.completion_tokens, totals.estimated) == (90, 10, 0)


@pytest.mark.parametrize("untold", UNTOLD)
@pytest.mark.parametrize("budget", [Budget(tokens=300), Budget(cost=3e-4)])
def test_a_budget_ends_a_run_whose_usage_is_not_reported(untold, budget, caplog):
    with ChatServer(says(whole("It must be \\boxed{5}.", **untold))) as server:
        agent = ChatAgent("m", server.url, patience=QUICK, concurrency=1, prices=Prices(1, 1), budget=budget)
        with RolloutManager(agent) as manager, pytest.raises(rollenv.RollenvError, match="budget"):
            manager.collect([Task("servers:Sum-v0", seed) for seed in range(40)])
    assert 2 <= agent.totals.requests == agent.totals.estimated < 40
    assert caplog.text.count("estimated") == 1
