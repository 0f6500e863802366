"""Claude Code, with one tool and a short system prompt, and as it comes."""

from rollenv.agents.harness.records import Harness

_MCP = '{"mcpServers": {"environment": {"type": "http", "url": "{mcp_url}"}}}'


def _claude_code(name: str, prompt_tokens: int, words: str = "", **env: str) -> Harness:
    return Harness(
        name,
        "2.1.331",
        "messages",
        "{runtime}/node_modules/@anthropic-ai/claude-code-linux-{arch}/claude --print --dangerously-skip-permissions "
        f"--max-turns {{max_turns}} {words}",
        npm=("@anthropic-ai/claude-code-linux-{arch}@2.1.331",),
        env={
            "ANTHROPIC_BASE_URL": "{base_url}",
            "ANTHROPIC_API_KEY": "{key}",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
            "CLAUDE_CONFIG_DIR": "{home}",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{context}",
            "IS_SANDBOX": "1",
            **env,
        },
        stdin="{instruction}",
        transcript="{home}/projects/*/*.jsonl",
        mcp=f"--mcp-config '{_MCP}'",
        prompt_tokens=prompt_tokens,
        installed_as="claude-code",
    )


SHORT = _claude_code(
    "claude-code",
    700,
    "--tools Bash --system-prompt 'You solve tasks on this computer with the Bash tool.'",
    CLAUDE_CODE_SIMPLE="1",
)
FULL = _claude_code("claude-code-full", 12_000)
