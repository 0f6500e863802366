"""Play a family's tiny model in vLLM, and compare the probabilities with those of transformers.

Not a test by itself: ``benchmarks/model_families.py`` runs it in an interpreter that has vLLM, one model at a time.
"""

import asyncio
import json
import random
import sys

import torch

from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.vllm import VLLMAgent

ASKED = tuple(random.Random(0).randrange(10, 250) for _ in range(20))
OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 4, "max_model_len": 256}


def main(folder: str, *more: str) -> None:
    sampling = Sampling(1.0, 12)
    options = OPTIONS | dict.fromkeys(more, False)
    agent = VLLMAgent.load(folder, StepPrompt("{state}", chat=False), sampling, **options)
    response = asyncio.run(agent.engine.generate(ASKED, sampling, random.Random(0)))
    agent.close()
    model = LocalAgent.load(folder, plays=False).model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ASKED, *response.ids]])).logits[0]
    its = logits.log_softmax(-1)[len(ASKED) - 1 : -1].gather(1, torch.tensor(response.ids)[:, None])[:, 0]
    worst = (its - torch.tensor(response.logprobs)).abs().max()
    print("PLAYED", json.dumps({"tokens": len(response.ids), "worst": float(worst)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
