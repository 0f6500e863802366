"""Arguments and results of the tools."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

#: Bytes of a file that are read at once.
_BYTES = 1 << 20


class Given(BaseModel):
    """Arguments of a tool."""

    model_config = ConfigDict(extra="forbid")


class Search(Given):
    """Of list_environments."""

    search: str = Field("", max_length=200, description="Words that the id or the description has.")
    page: int = Field(1, ge=1)


class Which(Given):
    """Of describe_environment."""

    env_id: str


class Task(Given):
    """Of reset, where there is one environment."""

    seed: int | None = Field(None, ge=0, description="The same seed gives the same task; by default a new one.")
    index: int | None = Field(None, ge=0, description="Of a task, where the environment numbers its tasks.")


class Begin(Task):
    """Of reset."""

    env_id: str | None = Field(None, description="From list_environments; not needed with a session.")
    session: str | None = Field(None, description="To begin another episode in the same environment.")


class Act(Given):
    """Of step, where there is one environment."""

    action: str = Field(description="What to do, in the form that the first observation explains.")


class Step(Act):
    """Of step."""

    session: str = Field(description="From reset.")


class End(Given):
    """Of close."""

    session: str = Field(description="From reset.")


class InSandbox(Given):
    """Of what happens in a sandbox."""

    sandbox: str | None = Field(None, description="The one of an earlier result; by default your own.")


class Code(InSandbox):
    """Of run_code."""

    code: str
    language: str = Field("python", description="python, bash and javascript keep their variables; or sh, perl, ruby.")
    timeout: float | None = Field(None, gt=0, description="Seconds.")


class Command(InSandbox):
    """Of run_command."""

    command: str = Field(description="For a shell.")
    cwd: str | None = None
    timeout: float | None = Field(None, gt=0, description="Seconds.")


class Read(InSandbox):
    """Of read_file."""

    path: str
    offset: int = Field(0, ge=0, description="Bytes to leave out.")
    limit: int = Field(100_000, ge=1, le=_BYTES, description="Bytes to read.")
    encoding: Literal["utf-8", "base64"] = "utf-8"


class Write(InSandbox):
    """Of write_file."""

    path: str
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"


class Folder(InSandbox):
    """Of list_files."""

    path: str = "."


class About(TypedDict):
    """An environment in a list."""

    env_id: str
    summary: str


class Found(TypedDict):
    """Of list_environments."""

    environments: list[About]
    total: int
    pages: int


class Described(About):
    """Of describe_environment."""

    tasks: str
    missing: list[str]


class First(TypedDict):
    """Of reset, where there is one environment."""

    observation: str
    info: dict[str, Any]


class Started(First):
    """Of reset."""

    session: str


class Seen(First):
    """Of step."""

    reward: float
    terminated: bool
    truncated: bool


class Ended(TypedDict):
    """Of close and close_sandbox."""

    ended: str


class Failure(TypedDict):
    """An error of code."""

    name: str
    value: str
    traceback: str


class Done(TypedDict):
    """Of run_code and run_command."""

    sandbox: str
    stdout: str
    stderr: str
    result: str | None
    exit_code: int | None
    error: Failure | None
    seconds: float


class Contents(TypedDict):
    """Of read_file."""

    sandbox: str
    content: str
    size: int
    more: bool


class Written(TypedDict):
    """Of write_file."""

    sandbox: str
    path: str
    size: int


class File(TypedDict):
    """A file, folder or link."""

    name: str
    type: str
    size: int


class Listing(TypedDict):
    """Of list_files."""

    sandbox: str
    files: list[File]
    more: bool
