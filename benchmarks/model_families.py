"""Families of models that people train, and what works with them: runs tests/zoo, writes the table of what it finds.

    python benchmarks/model_families.py --vllm .bench/vllm/bin/python

Each family is a tiny random model of transformers' own class with the published chat template, or one of its shape.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from common import ROOT, header, save, table

ZOO = ROOT / "tests" / "zoo"
sys.path.insert(0, str(ZOO))

from families import FAMILIES, Family  # noqa: E402

#: Seconds for loading and playing a model in vLLM.
_LIMIT = 240
_QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
ABOUT = """\
Each family is a tiny random model of transformers' own class with the published chat template, or one of its shape (in
brackets). Chats have three turns, two calls with results that contain marks of turns, and a cut thought: every prompt
is what the template renders for the structured messages. Models are trained for an iteration, saved, and go on from the
checkpoint: sampled and trained log-probabilities differ by at most 1e-4 in float32, and transformers loads what was
saved.

Thoughts: `opened` by the prompt, or `written` by the model. Kept: prompts of the chat that begin with the tokens before
them. Calls: in the template's `own` form, or in `Hermes'`, as the system prompt says. vLLM: the model plays there with
the probabilities of transformers; on CPUs those with recurrent layers need `enable_prefix_caching=false`. Models with
layers that the local player has no cache for (`with vLLM`) are trained with `player.kind=vllm` or `sglang`.
"""


def tested(folder: Path) -> dict[str, dict[str, str]]:
    """Run the tests; return the outcome of each with what it recorded, by its name."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", str(ZOO)]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    found = {}
    for case in ET.parse(report).iter("testcase"):
        recorded = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        failed = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        found[case.get("name", "")] = recorded | {"outcome": "no" if failed else "yes"}
    return found


def played(family: Family, python: str, folder: Path) -> tuple[str, str]:
    """Return whether vLLM plays a family's model, and the reason if it does not."""
    from rollenv.agents.tiny.model import build_tokenizer

    model = family.model(512).eval()
    model.save_pretrained(folder / "model")
    build_tokenizer(["What is 2 + 3? 5"] * 9, 300, chat=True).save_pretrained(folder / "model")
    (folder / "rollenv").symlink_to(ROOT / "rollenv")
    settings = os.environ | _QUIET | {"PYTHONPATH": str(folder)}
    options = ["enable_prefix_caching"] if family.elsewhere else []  # on CPUs, not for states of recurrent layers
    command = [python, str(ZOO / "vllm_play.py"), str(folder / "model"), *options]
    try:
        run = subprocess.run(
            command, env=settings, cwd=folder, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return "no", f"not loaded in {_LIMIT} s"
    if line := re.search(r"^PLAYED (.*)", run.stdout, re.MULTILINE):
        answer = json.loads(line[1])
        asked, ids = answer["asked"], torch.tensor(answer["ids"])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*asked, *answer["ids"]]]), use_cache=False).logits[0]
        its = logits.log_softmax(-1)[len(asked) - 1 : -1].gather(1, ids[:, None])[:, 0]
        worst = float((its - torch.tensor(answer["logprobs"])).abs().max())
        return ("yes", "") if worst < 1e-3 else ("no", f"log-probabilities differ by {worst:.2g}")
    told = run.stdout + run.stderr
    causes = re.findall(r"(?:Value error|Assertion failed), (.*?)(?: \[type=|$)", told, re.MULTILINE)
    causes = causes or re.findall(r"^.*?((?:\w+Error|Exception)\b.*?: .*)$", told, re.MULTILINE)
    reason = " ".join((causes or ["it ended without a result"])[-1].split())
    return "no", re.sub(r"^.*? with \{.*?\}: ", "", reason)[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", metavar="PYTHON", help="an interpreter with vLLM, in which the models are played too")
    args = parser.parse_args()
    rows, reasons = [], []

    def in_vllm(family: Family) -> tuple[str, str]:
        with tempfile.TemporaryDirectory() as scratch:
            return played(family, str(Path(args.vllm).absolute()), Path(scratch))

    with tempfile.TemporaryDirectory() as scratch:
        tests = tested(Path(scratch))
    plays = [("not tried", "")] * len(FAMILIES)
    if args.vllm:
        with ThreadPoolExecutor(2) as pool:
            plays = list(pool.map(in_vllm, FAMILIES))
    for family, (vllm, why) in zip(FAMILIES, plays, strict=True):
        chat = tests[f"test_chats_are_what_the_template_renders[{family.name}]"]
        full, lora = (
            tests[f"test_models_are_trained_as_they_play_and_go_on[{family.name}-{how}]"] for how in ("full", "lora")
        )
        reasons += [f"- {family.name} in vLLM: `{why}`"] if why else []
        trained = [
            "with vLLM" if family.elsewhere and how["outcome"] == "yes" else how["outcome"] for how in (full, lora)
        ]
        template = family.template if family.published else f"({family.template})"
        told = [chat.get(key, "") for key in ("thoughts", "kept", "calls")]
        rows.append(
            [family.name, family.kind, template, chat["outcome"], *told, *trained, full.get("experts", ""), vllm]
        )
    head = ["family", "class", "template", "chat", "thoughts", "kept", "calls", "full", "LoRA", "experts", "vLLM"]
    save("model_families", "\n".join([header(), ABOUT, table(head, rows), *reasons]).rstrip() + "\n")


if __name__ == "__main__":
    main()
