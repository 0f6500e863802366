"""``rollenv train --from``: training on the sessions of a gateway, as they are rated."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollenv.cli.common import console, key_values
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.proxies import without_proxy

#: Seconds between two looks at a gateway.
_EVERY = 1.0

#: Settings unless others of their section are given: few episodes have one task, and tokens are of earlier weights.
_DEFAULTS = {
    "algorithm": ("algorithm.name=reinforce_pp", "algorithm.baseline=false"),
    "correction": ("correction.name=tis",),
}


def train_from(url: str, settings: Sequence[str], batch: int) -> None:
    """Update the model with each batch of finished and rated sessions, and write a checkpoint after each update.

    Args:
        settings: ``model=`` (what the gateway serves), ``run_dir=``, and those of
            :class:`rollenv.trainers.own_loop.Learner`.
    """
    import httpx
    import transformers

    from rollenv.agents.gateway.session import GatewaySample
    from rollenv.agents.local import LocalAgent
    from rollenv.trainers.own_loop import Learner

    own = ("model=", "run_dir=")
    named = key_values(each for each in settings if each.startswith(own))
    if missing := [name for name in own if name.rstrip("=") not in named]:
        raise UsageError(f"--from needs {' and '.join(f'{name}FOLDER' for name in missing)}")
    others = [each for each in settings if not each.startswith(own)]
    for section, defaults in _DEFAULTS.items():
        if not any(each.startswith(section) for each in others):
            others += defaults
    transformers.utils.logging.disable_progress_bar()
    agent = LocalAgent.load(str(named["model"]), plays=False)
    learner = Learner(agent, *others, run_dir=Path(str(named["run_dir"])))
    learner.run.path.mkdir(parents=True, exist_ok=True)
    key = os.environ.get("ROLLENV_GATEWAY_KEY", "")
    if not key:
        raise UsageError("--from needs ROLLENV_GATEWAY_KEY, the administrator's key that `rollenv gateway` prints")
    headers, mounts = {"Authorization": f"Bearer {key}"}, without_proxy(url)
    console.print(f"writing to {learner.run.path}", soft_wrap=True, markup=False)
    with httpx.Client(base_url=url, headers=headers, timeout=60.0, mounts=mounts) as client:
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
                learner.save()
                learner.run.append(learner.run.metrics_file, {"iteration": learner.state.iteration, **metrics})
                shown = "reward {reward:.3f} drift {drift:.0f}".format(**metrics)
                console.print(f"update {learner.state.iteration}: {shown}", markup=False)
            for name in names:
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
        raise UsageError("the gateway refuses the key: set ROLLENV_GATEWAY_KEY as for `rollenv gateway`")
    if answer.status_code != 200:
        hint = ": --from is its administrator's address, not the agents'" if answer.status_code == 404 else ""
        raise RollenvError(f"the gateway answered {answer.status_code} {answer.text[:300]}{hint}")
    return answer.json()
