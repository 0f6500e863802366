"""Codex."""

from rollenv.agents.harness.records import Harness

HARNESS = Harness(
    "codex",
    "0.169.0",
    "responses",
    "{runtime}/node_modules/@openai/codex/vendor/{machine}-unknown-linux-musl/bin/codex exec "
    "--skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m {model} -c model_provider=gateway "
    "-c model_providers.gateway.name=gateway -c model_providers.gateway.base_url={base_url}/v1 "
    "-c model_providers.gateway.env_key=GATEWAY_KEY -c model_providers.gateway.wire_api=responses "
    "-c model_context_window={context} -c web_search=disabled -",
    npm=("@openai/codex@0.169.0-linux-{arch}",),
    mcp="-c mcp_servers.environment.url={mcp_url}",
    env={"CODEX_HOME": "{home}", "GATEWAY_KEY": "{key}"},
    stdin="{instruction}",
    transcript="{home}/sessions/*/*/*/*.jsonl",
    prompt_tokens=9000,
)
