"""Qwen Code."""

from rollenv.agents.harness.records import NODE, NODE_PACKAGE, OPENAI, Harness

HARNESS = Harness(
    "qwen-code",
    "0.24.4",
    "chat",
    f"{NODE} {{runtime}}/node_modules/@qwen-code/qwen-code/cli-entry.js --auth-type openai --yolo",
    npm=("@qwen-code/qwen-code@0.24.4", NODE_PACKAGE),
    env={**OPENAI, "OPENAI_MODEL": "{model}", "QWEN_CODE_NO_RELAUNCH": "1", "QWEN_HOME": "{home}"},
    stdin="{instruction}",
    transcript="{home}/projects/*/chats/*.jsonl",
    prompt_tokens=19_000,
)
