"""Any environment as a resources server of NeMo Gym's (0.4), for its ``gymnasium_agent``. It needs Python 3.12.

:func:`write_server` makes the folder that NeMo Gym starts: the program, its configuration and example rows. A row may
have ``env_id``, ``env_kwargs``, ``seed`` and ``options`` of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import peer
from rollenv.plugins.adapters import TextEpisode, fields_of, text_of, whole_of

with peer("nemo-gym", "0.4", "pip install 'nemo-gym==0.4.*' (on Python 3.12)"):
    from fastapi import HTTPException
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.openai_utils import NeMoGymResponse
    from resources_servers.gymnasium import GymnasiumServer, extract_text


class RollenvConfig(BaseResourcesServerConfig):  # type: ignore[misc]  # NeMo Gym is not among what is checked
    """Settings of a server, in its YAML."""

    env_id: str = ""
    """Id of the environment of rows without one."""
    env_kwargs: dict[str, Any] = {}
    """Arguments of the environment's constructor."""
    idle_seconds: float = 3600.0
    """Seconds without a turn after which an episode is closed: the agent does not report abandoned ones."""


class RollenvServer(GymnasiumServer):  # type: ignore[misc]
    """Episodes of any environment, one for each session."""

    config: RollenvConfig

    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Returns:
            The observation, and the info.
        """
        await self._close_idle()
        await self.close_session(session_id)
        env_id = text_of(metadata, "env_id") or self.config.env_id
        if not env_id:
            raise HTTPException(400, "env_id is missing: set it in the row or in the server's configuration")
        try:
            kwargs = {**self.config.env_kwargs, **fields_of(metadata, "env_kwargs")}
            seed, options = whole_of(metadata, "seed"), fields_of(metadata, "options") or None
            episode = await asyncio.to_thread(TextEpisode, env_id, **kwargs)
            self.session_state[session_id] = [episode, time.monotonic()]
            shown = await asyncio.to_thread(episode.start, seed, options)
        except RollenvError as error:
            raise await self._failed(session_id, error) from error
        return shown, _plain(episode.info)

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the text of a response.

        Returns:
            The observation, the reward of the turn, whether the episode has ended and whether a limit ended
            it, and info.
        """
        if session_id not in self.session_state:
            raise HTTPException(409, "this session has no running episode: start one with POST /reset")
        entry = self.session_state[session_id]
        entry[1] = time.monotonic()
        try:
            shown, reward = await asyncio.to_thread(entry[0].step, extract_text(action))
        except RollenvError as error:
            raise await self._failed(session_id, error) from error
        entry[1] = time.monotonic()
        episode: TextEpisode = entry[0]
        return shown, reward, episode.over and not episode.truncated, episode.truncated, _plain(episode.info)

    async def close_session(self, session_id: str | None) -> None:
        """End the episode of a session, if there is one."""
        entry = self.session_state.pop(session_id, None)
        if entry is not None:
            await asyncio.to_thread(entry[0].close)

    async def _close_idle(self) -> None:
        late = time.monotonic() - self.config.idle_seconds
        for session_id in [name for name, (_, used) in self.session_state.items() if used < late]:
            await self.close_session(session_id)

    async def _failed(self, session_id: str | None, error: RollenvError) -> HTTPException:
        await self.close_session(session_id)
        return HTTPException(400 if isinstance(error, UsageError) else 500, str(error))


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Convert data to JSON without infinities, which NeMo Gym cannot send."""
    found: dict[str, Any] = json.loads(json.dumps(dict(info), default=str, skipkeys=True), parse_constant=str)
    return found


_APP = """from rollenv.plugins.adapters.nemo_gym import RollenvServer

if __name__ == "__main__":
    RollenvServer.run_webserver()
"""

_CONFIG = """{name}:
  resources_servers:
    {name}:
      entrypoint: app.py
      domain: other
      verified: false
      description: An environment of rollenv
      env_id: {env_id}
      env_kwargs: {env_kwargs}
{name}_agent:
  responses_api_agents:
    gymnasium_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: {name}
      model_server:
        type: responses_api_models
        name: policy_model
      max_steps: {max_steps}
      datasets:
      - name: example
        type: example
        jsonl_fpath: resources_servers/{name}/data/example.jsonl
"""


def write_server(
    folder: str | Path, env_id: str, *, rows: int = 5, max_steps: int = 100, prompt: str = "", **env_kwargs: Any
) -> Path:
    """Write a server's folder: ``app.py``, ``requirements.txt``, ``configs/NAME.yaml``, ``data/example.jsonl``.

    Args:
        folder: below ``resources_servers``; its name is the server's.
        rows: number of example rows, with seeds from 0.
        max_steps: after which the agent gives an episode up.
        prompt: a system message of each row.

    Returns:
        The folder.
    """
    path = Path(folder)
    for part in ("configs", "data"):
        (path / part).mkdir(parents=True, exist_ok=True)
    (path / "app.py").write_text(_APP)
    (path / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\nrollenv\n")
    values = {"name": path.name, "env_id": json.dumps(env_id), "env_kwargs": json.dumps(env_kwargs)}
    (path / "configs" / f"{path.name}.yaml").write_text(_CONFIG.format(max_steps=max_steps, **values))
    messages = [{"role": "system", "content": prompt}] if prompt else []
    agent = {"type": "responses_api_agents", "name": f"{path.name}_agent"}
    made = [{"responses_create_params": {"input": messages}, "seed": i, "agent_ref": agent} for i in range(rows)]
    (path / "data" / "example.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return path
