"""Train a model with your own loop over a program that knows a base URL only. Needs: the train and serve extras."""

import statistics

import httpx

from rollenv.agents import Gateway, LocalAgent, Sampling
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.trainers import Learner

# A random tiny model that learns to answer with digits. Yours: agent = LocalAgent.load("Qwen/Qwen3-0.6B")
tokenizer = build_tokenizer(["What is 2 + 3? 5 7 1 8 9 4 6 0"] * 9, 300, chat=True)
model = build_model(TinySize(hidden=32, layers=1, heads=2, context=512), tokenizer, seed=0)
agent = LocalAgent(model, tokenizer, sampling=Sampling(max_new_tokens=8))


def program(base_url: str, question: str) -> str:
    """Any program that calls a model: LangGraph, the OpenAI SDK, a shell command."""
    asked = {"model": "policy", "messages": [{"role": "user", "content": question}]}
    answer = httpx.post(f"{base_url}/chat/completions", json=asked, timeout=60)
    return answer.raise_for_status().json()["choices"][0]["message"]["content"] or ""


learner = Learner(agent, "optimizer.lr=3e-2", "algorithm.name=grpo")
with Gateway(agent) as gateway:
    for iteration in range(10):
        sessions = []
        for question in ("What is 2 + 3?", "What is 7 - 1?"):
            for _ in range(8):  # one group: sessions of an equal task
                session = gateway.open(question)
                said = program(session.base_url, question)
                session.finish(reward=sum(c.isdigit() for c in said) / max(len(said), 1))
                sessions.append(session)
        metrics = learner.update(sessions)
        gateway.run(learner.publish())  # the next answers are the trained model's
        rewards = statistics.mean(session.reward or 0.0 for session in sessions)
        print(f"iteration {iteration}: reward {rewards:.2f}, drift {metrics['drift']:.0f}")
        for session in sessions:
            gateway.forget(session)
