"""Play a family's tiny model in vLLM, and print its tokens and log-probabilities.

Not a test by itself: ``benchmarks/model_families.py`` runs it in an interpreter that has vLLM, one model at a time.
"""

import asyncio
import json
import random
import sys

from rollenv.agents.engines.base import Sampling
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
    print("PLAYED", json.dumps({"asked": ASKED, "ids": response.ids, "logprobs": response.logprobs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
