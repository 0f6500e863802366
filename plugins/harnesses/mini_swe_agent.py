"""mini-swe-agent."""

from rollenv.agents.harness.records import OPENAI, PYTHON, Harness

HARNESS = Harness(
    "mini-swe-agent",
    "2.4.6",
    "chat",
    f"{PYTHON} minisweagent.run.mini --model=openai/{{model}} --task={{instruction}} --agent-class=default "
    "--environment-class=local --cost-limit=0 --config=mini.yaml --config=agent.step_limit={max_turns} "
    "--output={home}/transcript.json",
    pip=("mini-swe-agent==2.4.6",),
    env={
        **OPENAI,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": "{home}",
        "MSWEA_SILENT_STARTUP": "1",
    },
    transcript="{home}/transcript.json",
    prompt_tokens=900,
)
