"""pi."""

from rollenv.agents.harness.records import NODE, NODE_PACKAGE, Harness

_GATEWAY = {
    "baseUrl": "{base_url}/v1",
    "apiKey": "{key}",
    "api": "openai-completions",
    "models": [{"id": "{model}", "contextWindow": "{context}"}],
}
HARNESS = Harness(
    "pi",
    "0.73.1",
    "chat",
    f"{NODE} {{runtime}}/node_modules/@mariozechner/pi-coding-agent/dist/cli.js --print --offline "
    "--provider gateway --model {model} --session-dir {home}/sessions",
    npm=("@mariozechner/pi-coding-agent@0.73.1", NODE_PACKAGE),
    env={"PI_CODING_AGENT_DIR": "{home}", "PI_TELEMETRY": "0"},
    files={"{home}/models.json": {"providers": {"gateway": _GATEWAY}}},
    stdin="{instruction}",
    transcript="{home}/sessions/*.jsonl",
    prompt_tokens=1400,
)
