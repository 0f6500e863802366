"""A run or an evaluation as one self-contained HTML page: curves, and episodes to step through."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

#: The curves of a training run: title, then the metrics drawn in it. ``eval/success`` comes with its interval.
CURVES = (
    ("Success", ("eval/success", "success")),
    ("Reward per trajectory", ("eval/reward", "reward")),
    ("Level of the curriculum", ("level",)),
    ("Turns per trajectory", ("eval/turns", "turns")),
    ("Groups whose members differ in reward", ("informative_groups",)),
    ("Entropy of the policy, nats per token", ("entropy",)),
    ("Gradient norm", ("grad_norm",)),
    ("KL from the sampling policy", ("kl",)),
    ("Tokens per second", ("tokens_per_s",)),
)


def render_report(
    title: str,
    *,
    metrics: Sequence[Mapping[str, Any]] = (),
    episodes: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    results: Sequence[Sequence[Sequence[str]]] = (),
) -> str:
    """The page as text. Nothing in it is loaded from elsewhere.

    Args:
        title: what it is about.
        metrics: rows with an ``iteration`` and numbers.
        episodes: trajectories as plain data, each with the ``iteration`` it was played at.
        settings: shown as they are.
        results: tables shown first; each is a row of headings and rows of text.
    """
    curves = [
        {"title": name, "keys": keys} for name, keys in CURVES if any(key in row for row in metrics for key in keys)
    ]
    data = {
        "title": title,
        "metrics": list(metrics),
        "curves": curves,
        "episodes": [_slim(e) for e in episodes],
        "settings": dict(settings or {}),
        "results": [[list(row) for row in table] for table in results],
    }
    # "<" never stands in the script, so that no text from an episode can end it.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("rollenv").joinpath("report.html").read_text(encoding="utf-8")
    safe_title = title.replace("&", "&amp;").replace("<", "&lt;")
    return template.replace("{{title}}", safe_title).replace("{{data}}", text)


def _slim(episode: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of an episode."""
    turns = [
        {k: turn[k] for k in ("observation", "view", "text", "reward", "logprobs", "policy_version")}
        for turn in episode["turns"]
    ]
    kept = ("iteration", "task", "status", "success", "reward", "error", "member", "final_observation", "final_view")
    return {k: episode.get(k) for k in kept} | {"turns": turns}
