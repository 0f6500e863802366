"""The harnesses: their installation, endpoint settings and command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollenv.core.errors import UsageError, did_you_mean

#: Variables of templates, in braces. Other braces are literal.
VARIABLES = frozenset(
    {
        "arch",
        "base_url",
        "context",
        "home",
        "instruction",
        "key",
        "machine",
        "max_turns",
        "mcp_url",
        "model",
        "programs",
        "runtime",
    }
)
_NAMED = re.compile(r"\{([a-z_]+)\}")
Dialect = Literal["chat", "responses", "messages"]


@dataclass(frozen=True)
class Harness:
    """A program that plays a task with a model.

    Its texts are templates: ``{base_url}`` (without ``/v1``), ``{key}``, ``{model}``, ``{instruction}``,
    ``{max_turns}``, ``{context}`` (the model's context length in tokens), ``{home}`` (a temporary folder for its own
    files), ``{runtime}`` (its installation folder), ``{programs}`` (rollenv's programs) and ``{arch}``.

    Attributes:
        name: its name on command lines.
        version: version of the program, which its requirements include too.
        dialect: its API: chat completions, Responses or Messages.
        command: the command line, split like a shell's before templates are filled.
        pip: requirements for the machine's Python.
        npm: packages, installed without scripts.
        python: the oldest supported Python, such as ``3.12``.
        env: additional environment variables.
        files: files to write: paths, and texts or data for JSON.
        stdin: its standard input.
        transcript: shell pattern of its own record.
        prompt_tokens: approximate tokens of its first call without the task, a minimum for the context length.
        mcp: additional arguments for an MCP server at ``{mcp_url}``; empty without MCP support.
        mcp_env: additional environment variables with an MCP server.
        installed_as: the name of its runtime, if not its own.
    """

    name: str
    version: str
    dialect: Dialect
    command: str
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    python: str = "3.11"
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""
    transcript: str = ""
    prompt_tokens: int = 0
    mcp: str = ""
    mcp_env: Mapping[str, str] = field(default_factory=dict)
    installed_as: str = ""

    @property
    def folder(self) -> str:
        """The name of its runtime, which may be shared."""
        return self.installed_as or self.name


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Fill a template, or all templates in lists and dicts; a text with only a variable becomes its value."""
    if isinstance(template, Mapping):
        return {filled(name, values): filled(value, values) for name, value in template.items()}
    if isinstance(template, list | tuple):
        return [filled(each, values) for each in template]
    if not isinstance(template, str):
        return template
    if (whole := _NAMED.fullmatch(template)) and whole[1] in values:
        return values[whole[1]]

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise UsageError(f"{match[0]} is no variable of a harness; there are {', '.join(sorted(VARIABLES))}")
        return str(values[match[1]])

    return _NAMED.sub(value, template)


#: The command that runs a module or file with the packages from pip.
_PYTHON = "python3 -I {programs}/start.py {runtime}"
_NODE = "{runtime}/node_modules/node-linux-{arch}/bin/node"
_NODE_PACKAGE = "node-linux-{arch}@22.23.3"
_OPENAI = {"OPENAI_BASE_URL": "{base_url}/v1", "OPENAI_API_KEY": "{key}"}


def _framework(
    name: str, version: str, dialect: Dialect, prompt_tokens: int, *packages: str, **settings: Any
) -> Harness:
    """Create the harness of a framework, run by rollenv's program of the same name."""
    return Harness(
        name,
        version,
        dialect,
        f"{_PYTHON} {{programs}}/{name.replace('-', '_')}.py",
        pip=packages,
        env={
            **_OPENAI,
            "HARNESS_CONTEXT": "{context}",
            "HARNESS_MAX_TURNS": "{max_turns}",
            "HARNESS_MODEL": "{model}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        stdin="{instruction}",
        prompt_tokens=prompt_tokens,
        **settings,
    )


_CLAUDE_MCP = '{"mcpServers": {"environment": {"type": "http", "url": "{mcp_url}"}}}'
_OPENCODE_MCP = '{"mcp": {"environment": {"type": "remote", "url": "{mcp_url}", "enabled": true}}}'


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
        mcp=f"--mcp-config '{_CLAUDE_MCP}'",
        prompt_tokens=prompt_tokens,
        installed_as="claude-code",
    )


_ALL = (
    Harness(
        "mini-swe-agent",
        "2.4.6",
        "chat",
        f"{_PYTHON} minisweagent.run.mini --model=openai/{{model}} --task={{instruction}} --agent-class=default "
        "--environment-class=local --cost-limit=0 --config=mini.yaml --config=agent.step_limit={max_turns} "
        "--output={home}/transcript.json",
        pip=("mini-swe-agent==2.4.6",),
        env={
            **_OPENAI,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": "{home}",
            "MSWEA_SILENT_STARTUP": "1",
        },
        transcript="{home}/transcript.json",
        prompt_tokens=900,
    ),
    Harness(
        "pi",
        "0.73.1",
        "chat",
        f"{_NODE} {{runtime}}/node_modules/@mariozechner/pi-coding-agent/dist/cli.js --print --offline "
        "--provider gateway --model {model} --session-dir {home}/sessions",
        npm=("@mariozechner/pi-coding-agent@0.73.1", _NODE_PACKAGE),
        env={"PI_CODING_AGENT_DIR": "{home}", "PI_TELEMETRY": "0"},
        files={
            "{home}/models.json": {
                "providers": {
                    "gateway": {
                        "baseUrl": "{base_url}/v1",
                        "apiKey": "{key}",
                        "api": "openai-completions",
                        "models": [{"id": "{model}", "contextWindow": "{context}"}],
                    }
                }
            }
        },
        stdin="{instruction}",
        transcript="{home}/sessions/*.jsonl",
        prompt_tokens=1400,
    ),
    Harness(
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
    ),
    _claude_code(
        "claude-code",
        700,
        "--tools Bash --system-prompt 'You solve tasks on this computer with the Bash tool.'",
        CLAUDE_CODE_SIMPLE="1",
    ),
    _claude_code("claude-code-full", 12_000),
    Harness(
        "opencode",
        "1.18.33",
        "chat",
        "{runtime}/node_modules/opencode-linux-{arch}/bin/opencode run --title task -m gateway/{model}",
        npm=("opencode-linux-{arch}@1.18.33",),
        mcp="--log-level WARN",
        mcp_env={"OPENCODE_CONFIG_CONTENT": _OPENCODE_MCP},
        env={
            "OPENCODE_CONFIG": "{home}/opencode.json",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            **{f"XDG_{name}_HOME": f"{{home}}/{name.lower()}" for name in ("CACHE", "CONFIG", "DATA", "STATE")},
        },
        files={
            "{home}/opencode.json": {
                "permission": "allow",
                "provider": {
                    "gateway": {
                        "npm": "@ai-sdk/openai-compatible",
                        "options": {"baseURL": "{base_url}/v1", "apiKey": "{key}"},
                        "models": {"{model}": {"limit": {"context": "{context}", "output": "{context}"}}},
                    }
                },
            }
        },
        stdin="{instruction}",
        prompt_tokens=7000,
    ),
    Harness(
        "qwen-code",
        "0.24.4",
        "chat",
        f"{_NODE} {{runtime}}/node_modules/@qwen-code/qwen-code/cli-entry.js --auth-type openai --yolo",
        npm=("@qwen-code/qwen-code@0.24.4", _NODE_PACKAGE),
        env={**_OPENAI, "OPENAI_MODEL": "{model}", "QWEN_CODE_NO_RELAUNCH": "1", "QWEN_HOME": "{home}"},
        stdin="{instruction}",
        transcript="{home}/projects/*/chats/*.jsonl",
        prompt_tokens=19_000,
    ),
    _framework(
        "terminus-2", "0.26.0", "chat", 800, "harbor==0.26.0", python="3.12", transcript="{home}/trajectory*.json"
    ),
    _framework("openai-agents", "0.24.0", "responses", 150, "openai-agents==0.24.0"),
    _framework("pydantic-ai", "2.68.0", "chat", 150, "pydantic-ai-slim[openai]==2.68.0"),
    _framework("smolagents", "1.26.0", "chat", 2000, "smolagents[openai]==1.26.0"),
    _framework("deepagents", "0.7.32", "chat", 3000, "deepagents==0.7.32", "langchain-openai==1.7.4"),
)

#: Harnesses by name.
HARNESSES: dict[str, Harness] = {each.name: each for each in _ALL}


def find_harness(name: str) -> Harness:
    """Return a harness by name, or of the form ``command:WORDS`` without installation.

    The words are templates. The command gets OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY,
    HARNESS_MODEL and, unless the words include it, the task on standard input.
    """
    kind, _, words = name.partition(":")
    if kind == "command" and words.strip():
        try:
            shlex.split(words)
        except ValueError as error:
            raise UsageError(f"{name}: these are no words of a shell: {error}") from None
        env = {**_OPENAI, "ANTHROPIC_BASE_URL": "{base_url}", "ANTHROPIC_API_KEY": "{key}", "HARNESS_MODEL": "{model}"}
        stdin = "" if "{instruction}" in words else "{instruction}"
        return Harness("command", "", "chat", words, env=env, stdin=stdin)
    if name not in HARNESSES:
        hint = did_you_mean(name, HARNESSES)
        hint = f"; {hint}" if hint else "."
        raise UsageError(f"there is no harness {name!r}{hint} There are {', '.join(HARNESSES)}, and command:WORDS")
    return HARNESSES[name]
