"""opencode."""

from rollenv.agents.harness.records import Harness

_MCP = '{"mcp": {"environment": {"type": "remote", "url": "{mcp_url}", "enabled": true}}}'
_GATEWAY = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{base_url}/v1", "apiKey": "{key}"},
    "models": {"{model}": {"limit": {"context": "{context}", "output": "{context}"}}},
}
HARNESS = Harness(
    "opencode",
    "1.18.33",
    "chat",
    "{runtime}/node_modules/opencode-linux-{arch}/bin/opencode run --title task -m gateway/{model}",
    npm=("opencode-linux-{arch}@1.18.33",),
    mcp="--log-level WARN",
    mcp_env={"OPENCODE_CONFIG_CONTENT": _MCP},
    env={
        "OPENCODE_CONFIG": "{home}/opencode.json",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        **{f"XDG_{name}_HOME": f"{{home}}/{name.lower()}" for name in ("CACHE", "CONFIG", "DATA", "STATE")},
    },
    files={"{home}/opencode.json": {"permission": "allow", "provider": {"gateway": _GATEWAY}}},
    stdin="{instruction}",
    prompt_tokens=7000,
)
