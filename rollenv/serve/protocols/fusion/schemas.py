"""The requests of SandboxFusion's clients."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from rollenv.core import UsageError
from rollenv.envs.code.env import MAX_CHARACTERS

#: Files that are sent, files that are fetched, and cells.
_FILES, _FETCHED, _CELLS = 1000, 100, 1000

Path = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Files(BaseModel):
    """Files that go into a sandbox before the code runs, and files to fetch after it."""

    files: dict[Path, str | None] = Field({}, max_length=_FILES)
    fetch_files: list[Path] = Field([], max_length=_FETCHED)

    def contents(self) -> dict[str, bytes]:
        """The files, decoded.

        Raises:
            UsageError: one would be outside of the working directory, or is not base64.
        """
        found = {}
        for path, data in self.files.items():
            if path.startswith("/") or ".." in path.split("/"):
                raise UsageError(f"the file {path!r:.80} would be outside of the program's folder; use a relative path")
            try:
                found.update({} if data is None else {path: base64.b64decode(data, validate=True)})
            except ValueError as error:
                raise UsageError(f"the file {path!r:.80} is not base64: {error}") from error
        return found


class Program(Files):
    """The body of ``run_code``."""

    code: str
    language: str
    stdin: str | None = None
    args: list[Path] = Field([], max_length=100)
    compile_timeout: SecondsOrNone = 10.0
    run_timeout: Seconds = 10.0
    memory_limit_MB: int | None = None


class Notebook(Files):
    """The body of ``run_jupyter``."""

    cells: list[str] = Field(max_length=_CELLS)
    cell_timeout: SecondsOrNone = 0.0
    total_timeout: Seconds = 45.0
    kernel: Literal["python3"] = "python3"


class Config(BaseModel):
    """The settings of a data set."""

    dataset_type: str | None = None
    language: str | None = None
    run_timeout: Seconds | None = None
    compile_timeout: SecondsOrNone | None = None
    custom_extract_logic: str | None = None
    provided_data: dict[str, Any] | list[dict[str, Any]] | None = None
    extra: dict[str, Any] = {}


class Rows(BaseModel):
    """The body of ``get_prompts`` and ``list_ids``."""

    dataset: str
    config: Config
    offset: int = Field(0, ge=0)
    limit: int = Field(1_000_000, ge=0)


class OneRow(BaseModel):
    """The body of ``get_prompt_by_id``."""

    dataset: str
    id: int | str
    config: Config


class Submission(OneRow):
    """The body of ``submit``."""

    completion: str = Field(max_length=MAX_CHARACTERS)
