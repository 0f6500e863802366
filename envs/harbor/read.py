"""Reads task folders in Harbor's format (task.toml 1.0 to 1.4) and in Terminal-Bench 1's (task.yaml)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollenv.envs.terminal.folder import (
    Artifact,
    Collect,
    Fields,
    Healthcheck,
    Step,
    TaskFolder,
    TaskFolderError,
    Verifier,
    read_text,
)
from rollenv.needs import extra

#: The versions of task.toml that are known.
VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")


def read_task(path: Path) -> TaskFolder:
    """Read a task folder of either format.

    Raises:
        TaskFolderError: if it is none, or not as its format says.
    """
    if (path / "task.toml").is_file():
        return read_harbor(path)
    if (path / "task.yaml").is_file():
        return read_terminal_bench(path)
    raise TaskFolderError(f"{path} is no task folder: it has neither task.toml (Harbor) nor task.yaml (Terminal-Bench)")


def find_tasks(path: Path) -> list[Path]:
    """The folder itself, or the task folders in it (at any depth), sorted.

    Raises:
        TaskFolderError: if there are none.
    """
    if not path.is_dir():
        raise TaskFolderError(f"there is no folder {path}")
    if any((path / name).is_file() for name in ("task.toml", "task.yaml")):
        return [path]
    found = sorted({file.parent for name in ("task.toml", "task.yaml") for file in path.rglob(name)})
    if not found:
        raise TaskFolderError(f"there is no task in {path}: no task.toml (Harbor) and no task.yaml (Terminal-Bench)")
    return found


# -- Harbor ----------------------------------------------------------------------------------------------------------


def read_harbor(path: Path) -> TaskFolder:
    """Read a folder with a task.toml.

    Raises:
        TaskFolderError: if it is not as the format says.
    """
    file = path / "task.toml"
    try:
        fields = Fields(file, tomllib.loads(read_text(file)))
    except tomllib.TOMLDecodeError as error:
        raise TaskFolderError(f"{file} is no TOML: {error}") from error
    version = str(fields.data.get("schema_version", fields.data.get("version", "1.0")))
    if version not in VERSIONS:
        raise TaskFolderError(f"{file}: version {version!r} is not known; {VERSIONS[0]} to {VERSIONS[-1]} are")
    environment, agent = fields.table("environment"), fields.table("agent")
    if (system := environment.text("os", "linux")) != "linux":
        raise TaskFolderError(f"{file}: environment.os is {system!r}; only linux can be run here")
    context = path / "environment"
    compose = next((n for n in ("docker-compose.yaml", "docker-compose.yml") if (context / n).is_file()), "")
    if compose:
        _require_one_service(context / compose)
    strategy = fields.text("multi_step_reward_strategy", "mean")
    if strategy not in ("mean", "final"):
        fields.wrong("multi_step_reward_strategy", "mean or final")
    return TaskFolder(
        path=path,
        name=fields.table("task").text("name") or path.name,
        kind="harbor",
        steps=tuple(_steps(path, fields)),
        context=context,
        dockerfile="Dockerfile" if (context / "Dockerfile").is_file() else "",
        image=environment.text("docker_image"),
        env=environment.variables("env"),
        build_seconds=environment.some_seconds("build_timeout_sec", 600.0),
        memory_mb=environment.megabytes("memory_mb", "memory"),
        storage_mb=environment.megabytes("storage_mb", "storage"),
        workdir=_workdir(environment),
        user=_user(agent),
        healthcheck=_healthcheck(environment),
        solution_env=fields.table("solution").variables("env"),
        **_network(environment, agent),
        final_only=strategy == "final",
        metadata=dict(fields.table("metadata").data),
    )


def _network(environment: Fields, agent: Fields) -> dict[str, Any]:
    """The agent's network: its own table counts before the environment's."""
    table = agent if "network_mode" in agent.data else environment
    default = "no-network" if environment.data.get("allow_internet") is False else "public"
    mode, hosts = table.text("network_mode") or default, table.data.get("allowed_hosts") or []
    if mode not in ("public", "no-network", "allowlist"):
        table.wrong("network_mode", "public, no-network or allowlist")
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        table.wrong("allowed_hosts", "a list of texts")
    return {"network_mode": mode, "allowed_hosts": tuple(hosts)}


def _steps(path: Path, fields: Fields) -> Iterable[Step]:
    listed = fields.tables("steps")
    if not listed:
        yield _step(path, fields, fields, "")
        return
    for each in listed:
        name = each.text("name")
        if not name or "/" in name or name == ".." or not (path / "steps" / name).is_dir():
            raise TaskFolderError(f"{fields.file}: the step {name!r} has no folder {path / 'steps' / name}")
        yield _step(path / "steps" / name, fields, each, name)


def _step(folder: Path, task: Fields, own: Fields, name: str) -> Step:
    solution, setup = folder / "solution", folder / "workdir"
    shared = task.table("verifier").data if own is not task else {}
    return Step(
        name=name,
        instruction=read_text(folder / "instruction.md"),
        verifier=_verifier(folder, Fields(own.file, {**shared, **own.table("verifier").data}, "verifier"), task),
        solution=solution if (solution / "solve.sh").is_file() else None,
        agent_seconds=own.table("agent").seconds("timeout_sec", task.table("agent").seconds("timeout_sec", None)),
        setup=setup if setup.is_dir() else None,
        min_reward=own.numbers("min_reward"),
        healthcheck=_healthcheck(own) if own is not task else None,
        artifacts=tuple(_artifacts(own)) or tuple(_artifacts(task)),
    )


def _verifier(folder: Path, fields: Fields, task: Fields) -> Verifier:
    tests = folder / "tests"
    if not tests.is_dir() and (task.file.parent / "tests").is_dir():
        tests = task.file.parent / "tests"
    if not (tests / "test.sh").is_file():
        raise TaskFolderError(f"there is no {tests / 'test.sh'}, which grades the task")
    mode = fields.text("environment_mode") or ("separate" if "environment" in fields.data else "shared")
    if mode not in ("shared", "separate"):
        fields.wrong("environment_mode", "shared or separate")
    collect = (
        Collect(_command(each), each.some_seconds("timeout_sec", 60.0), _user(each))
        for each in fields.tables("collect")
        if each.text("service", "main") == "main"
    )
    return Verifier(
        tests=tests,
        seconds=fields.some_seconds("timeout_sec", 600.0),
        env=fields.variables("env"),
        user=_user(fields),
        separate=mode == "separate",
        collect=tuple(collect),
    )


def _user(fields: Fields) -> str:
    value = fields.data.get("user")
    if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
        fields.wrong("user", "a name or a number")
    return "" if value is None else str(value)


def _command(fields: Fields) -> str:
    if not fields.text("command"):
        fields.wrong("command", "a command")
    return fields.text("command")


def _workdir(fields: Fields) -> str:
    value = fields.text("workdir")
    if value and not value.startswith("/"):
        fields.wrong("workdir", "an absolute path")
    return value


def _healthcheck(fields: Fields) -> Healthcheck | None:
    if "healthcheck" not in fields.data:
        return None
    check = fields.table("healthcheck")
    retries = check.data.get("retries", 3)
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 1:
        check.wrong("retries", "a whole number from 1")
    return Healthcheck(
        _command(check),
        check.some_seconds("interval_sec", 5.0),
        check.some_seconds("timeout_sec", 30.0),
        (check.seconds("start_period_sec", None) or 0.0) if check.data.get("start_period_sec") else 0.0,
        int(retries),
    )


def _artifacts(fields: Fields) -> Iterable[Artifact]:
    listed = fields.data.get("artifacts") or []
    if not isinstance(listed, list):
        fields.wrong("artifacts", "a list of paths, or of tables with a source")
    for each in listed:
        if isinstance(each, str):
            yield Artifact(each, each)
        elif isinstance(each, dict) and isinstance(each.get("source"), str):
            if each.get("service", "main") == "main":
                yield Artifact(each["source"], str(each.get("destination") or each["source"]))
        else:
            fields.wrong("artifacts", "a list of paths, or of tables with a source")


# -- Terminal-Bench 1 ------------------------------------------------------------------------------------------------


def read_terminal_bench(path: Path) -> TaskFolder:
    """Read a folder with a task.yaml. Without a Dockerfile it gets the host's system, with its own files in /app.

    Raises:
        TaskFolderError: if it is not as the format says.
    """
    file = path / "task.yaml"
    fields = Fields(file, _yaml(file))
    instruction = fields.text("instruction")
    if not instruction:
        fields.wrong("instruction", "a text")
    if (parser := fields.text("parser_name", "pytest")) != "pytest":
        raise TaskFolderError(f"{file}: parser_name {parser!r} is not known here; pytest is")
    tests, script = path / "tests", path / "run-tests.sh"
    if not tests.is_dir():
        raise TaskFolderError(f"there is no {tests}, which grades the task")
    env: dict[str, str] = {}
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (path / name).is_file():
            env = _require_one_service(path / name)
    verifier = Verifier(
        tests=tests,
        script="run-tests.sh" if script.is_file() else "",
        seconds=fields.some_seconds("max_test_timeout_sec", 60.0),
        env={**env, "TEST_DIR": "/tests"},
        writes_reward=False,
    )
    solution = path / "solution.sh"
    step = Step(
        name="",
        instruction=instruction,
        verifier=verifier,
        solution=solution if solution.is_file() else None,
        agent_seconds=fields.some_seconds("max_agent_timeout_sec", 360.0),
    )
    known = ("instruction", "parser_name", "max_agent_timeout_sec", "max_test_timeout_sec")
    return TaskFolder(
        path=path,
        name=path.name,
        kind="tb",
        steps=(step,),
        context=path,
        dockerfile="Dockerfile" if (path / "Dockerfile").is_file() else "",
        env={**env, "TEST_DIR": "/tests"},
        metadata={key: value for key, value in fields.data.items() if key not in known},
    )


def _yaml(file: Path) -> Any:
    with extra("envs", "Reading task.yaml and docker-compose.yaml"):
        import yaml
    try:
        return yaml.safe_load(read_text(file))
    except yaml.YAMLError as error:
        raise TaskFolderError(f"{file} is no YAML: {error}") from error


def _require_one_service(file: Path) -> dict[str, str]:
    """The variables of the only service, without those that a runner of containers fills in.

    Raises:
        TaskFolderError: if there are several.
    """
    services = Fields(file, _yaml(file) or {}).table("services")
    if len(services.data) > 1:
        names = ", ".join(map(str, services.data))
        raise TaskFolderError(f"{file}: it has the services {names}; a machine here is one service")
    found: dict[str, str] = {}
    for each in services.data:
        service = services.table(each)
        given = service.data.get("environment") or {}
        if not isinstance(given, dict | list):
            service.wrong("environment", "a table or a list of variables")
        pairs = given.items() if isinstance(given, dict) else (str(item).partition("=")[::2] for item in given)
        found |= {str(key): str(value) for key, value in pairs if "${" not in str(value)}
    return found
