"""``rollenv train --from``: training on the sessions of a gateway, as they are rated."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from rollenv.cli.common import console, key_values, print_result
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.proxies import without_proxy

#: Seconds between two looks at a gateway.
_EVERY = 1.0

#: Settings unless others of their section are given: few episodes have one task, and tokens are of earlier weights.
_DEFAULTS = {
    "algorithm": ("algorithm.name=reinforce_pp", "algorithm.baseline=false"),
    "correction": ("correction.name=tis",),
}


def train_from(url: str, settings: Sequence[str], batch: int, accept: bool = False) -> None:
    """Update the model with each batch of finished and rated sessions, and write a checkpoint after each update.

    A session is trained on once: its checkpoint names it, and it is dropped at the gateway after that.

    Args:
        settings: ``model=`` (what the gateway serves), ``run_dir=``, ``temperature=`` (the gateway's), and those of
            :class:`rollenv.trainers.learner.Learner`.
        accept: continue although the model changed.
    """
    import httpx

    from rollenv.agents.gateway.session import GatewaySample
    from rollenv.agents.local import LocalAgent
    from rollenv.trainers.learner import Learner

    own = ("model=", "run_dir=", "temperature=")
    named = key_values(each for each in settings if each.startswith(own))
    if missing := [name for name in own[:2] if name.rstrip("=") not in named]:
        raise UsageError(f"--from needs {' and '.join(f'{name}FOLDER' for name in missing)}")
    others = [each for each in settings if not each.startswith(own)]
    for section, defaults in _DEFAULTS.items():
        if not any(each.startswith(section) for each in others):
            others += defaults
    key = os.environ.get("ROLLENV_GATEWAY_KEY", "")
    if not key:
        raise UsageError("--from needs ROLLENV_GATEWAY_KEY, the administrator's key that `rollenv gateway` prints")
    drawn = {"temperature": named["temperature"]} if "temperature" in named else {}
    agent = LocalAgent.load(str(named["model"]), plays=False, **drawn)
    others.append(f"model.path={named['model']}")
    headers, mounts = {"Authorization": f"Bearer {key}"}, without_proxy(url)
    with httpx.Client(base_url=url, headers=headers, timeout=60.0, mounts=mounts) as client:
        _asked(client, "GET", "")  # fails before anything is written
        learner = Learner(agent, *others, run_dir=str(named["run_dir"]), accept_changes=accept)
        console.print(f"writing to {learner.run.path}", soft_wrap=True, markup=False)
        _drop(client, learner.about.get("sessions", ()))
        while learner.state.iteration < learner.config.iterations:
            rated = [row for row in _asked(client, "GET", "") if row["over"] and row["total_reward"] is not None][
                :batch
            ]
            if len(rated) < batch:
                time.sleep(_EVERY)
                continue
            names = [row["id"] for row in rated]
            samples = [GatewaySample(**each) for name in names for each in _asked(client, "GET", f"/{name}/samples")]
            if samples:
                metrics = learner.update(samples)
                learner.save({"sessions": names})
                shown = "reward {reward:.3f} drift {drift:.0f}".format(**metrics)
                console.print(f"update {learner.state.iteration}: {shown}", markup=False)
            _drop(client, names)
    print_result({"run": str(learner.run.path), "iterations": learner.state.iteration})


def _drop(client: Any, sessions: Sequence[str]) -> None:
    """Drop sessions that are there."""
    there = {row["id"] for row in _asked(client, "GET", "")}
    for name in there.intersection(sessions):
        _asked(client, "DELETE", f"/{name}")


def _asked(client: Any, method: str, path: str) -> Any:
    """Ask the gateway's administrator about its sessions."""
    import httpx

    try:
        answer = client.request(method, f"/sessions{path}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RollenvError(
            f"no gateway answers at {client.base_url}: {error}; name the address of its administrator"
        ) from error
    if answer.status_code == 401:
        raise UsageError("the gateway refuses the key: ROLLENV_GATEWAY_KEY has to be the one that it prints")
    if answer.status_code != 200:
        hint = ": --from is its administrator's address, not the agents'" if answer.status_code == 404 else ""
        raise RollenvError(f"the gateway answered {answer.status_code} {answer.text[:300]}{hint}")
    return answer.json()
