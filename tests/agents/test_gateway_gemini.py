"""Google's own SDK before a gateway: an episode, its errors, and its keys."""

from __future__ import annotations

import pytest
from gateway_calls import call_over_http, scripted

from rollenv.agents.gateway import server
from rollenv.agents.gateway.gateway import Gateway

genai = pytest.importorskip("google.genai", reason="google-genai is not installed (the extra dev has it)")
types, errors = genai.types, genai.errors
ASKED = [{"role": "user", "parts": [{"text": "Look."}]}]


def client_of(session):
    options = types.HttpOptions(base_url=session.anthropic_url, timeout=60_000)
    return genai.Client(api_key="any", http_options=options)


def run(command: str) -> str:
    """Run it."""
    return f"ran {command}"


@pytest.mark.integration
@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_plays_an_episode_that_is_one_line(stream):
    call = '<tool_call>{"name": "run", "arguments": {"command": "ls"}}</tool_call>'
    with Gateway(scripted([f"I look. {call}", "Done.", "Bye."])) as gateway:
        session = gateway.open()
        client = client_of(session)
        config = types.GenerateContentConfig(system_instruction="Be good.", tools=[run], max_output_tokens=100)
        chat = client.chats.create(model="policy", config=config)
        if stream:
            said = "".join(chunk.text or "" for chunk in chat.send_message_stream("Look."))
        else:
            said = chat.send_message("Look.").text
        assert said.endswith("Done.")
        assert chat.send_message("And?").text == "Bye."
        assert [message.text for message in session.tree.nodes[1].context] == ["ran ls"]
        assert dict(session.tree.matches) == {"exact": 3}
        assert len(session.samples()) == 1
        assert sum(session.samples()[0].mask) == session.drawn_tokens
        counted = client.models.count_tokens(model="policy", contents="Look.")
        assert counted.total_tokens > 1
        session.finish(1.0)
        with pytest.raises(errors.ClientError, match="is over") as refused:
            chat.send_message("More?")
        assert refused.value.code == 410


@pytest.mark.integration
def test_errors_are_raised_by_the_sdk_with_their_words():
    with Gateway(scripted(["a"], max_context=5)) as gateway:
        client = client_of(gateway.open())
        with pytest.raises(errors.ClientError, match="context"):
            client.models.generate_content(model="m", contents="Look.")
        with pytest.raises(errors.ClientError, match="images"):
            client.models.generate_content(
                model="m", contents=[types.Part.from_bytes(data=b"x", mime_type="image/png")]
            )


@pytest.mark.integration
def test_an_error_after_signs_of_life_is_raised_by_the_sdk(monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.0)
    with Gateway(scripted(lambda i: 1 / 0)) as gateway:
        client = client_of(gateway.open())
        with pytest.raises(errors.ServerError, match="division by zero"):
            list(client.models.generate_content_stream(model="m", contents="Look."))


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1"])
def test_a_key_is_found_where_googles_clients_put_it(prefix):
    async def work(gateway, client):
        key, url = gateway.open().key, f"{gateway.url}{prefix}/models/m:generateContent"
        ways = [{"headers": {"x-goog-api-key": key}}, {"params": {"key": key}}, {"params": {"key": "no"}}, {}]
        statuses = [(await client.post(url, json={"contents": ASKED}, **way)).status_code for way in ways]
        return statuses

    assert call_over_http(work) == [200, 200, 401, 401]
