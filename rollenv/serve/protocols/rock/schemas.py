"""The requests of ROCK's clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints
from starlette.requests import Request

from rollenv.serve.responses import body_of

Text = Annotated[str, StringConstraints(min_length=1, max_length=10_000, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
Env = (
    dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")],
    ]
    | None
)


class Start(BaseModel):
    """The body of ``start_async``: what of it is heeded here."""

    image_os: str = "linux"
    auto_clear_time_minutes: Seconds = None
    num_gpus: float | None = None


class Named(BaseModel):
    """The fields of every other body."""

    sandbox_id: Text


class Command(Named):
    """The body of ``execute``."""

    command: str | list[str]
    timeout: Seconds = None
    cwd: Text | None = None
    env: Env = None


class InSession(Named):
    """The body of ``close_session``."""

    session_type: Literal["bash"] = "bash"
    session: Text = "default"


class NewSession(InSession):
    """The body of ``create_session``."""

    startup_source: list[Text] = []
    env: Env = None
    remote_user: str | None = None


class Action(InSession):
    """The body of ``run_in_session``."""

    action_type: Literal["bash"] = "bash"
    command: str
    timeout: Seconds = None
    check: Literal["silent", "raise", "ignore"] = "raise"


class Written(Named):
    """The body of ``write_file``."""

    path: Text
    content: str


class Read(Named):
    """The body of ``read_file``."""

    path: Text
    encoding: str | None = None
    errors: Literal["strict", "ignore", "replace", "backslashreplace"] | None = None


def reader(model: type[BaseModel]) -> Callable[[Request], Awaitable[Any]]:
    """Reads bodies."""

    async def read(request: Request) -> Any:
        return model.model_validate(await body_of(request))

    return read


async def started(request: Request) -> tuple[Start, dict[str, str]]:
    """The body of ``start_async``, and what the headers say of the experiment."""
    names = {"user_id": "X-User-Id", "experiment_id": "X-Experiment-Id", "namespace": "X-Namespace"}
    labels = {name: request.headers[header][:200] for name, header in names.items() if header in request.headers}
    return Start.model_validate(await body_of(request)), labels


async def queried(request: Request) -> tuple[str, bool]:
    """The sandbox in the query of ``get_status``, and whether one that was stopped counts."""
    asked = request.query_params
    return asked.get("sandbox_id", ""), asked.get("include_all_states") in ("True", "true")
