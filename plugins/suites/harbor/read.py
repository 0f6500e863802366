"""Readers of task folders in Harbor's format (task.toml 1.0 to 1.4) and in Terminal-Bench 1's (task.yaml)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollenv.core.needs import extra
from rollenv.plugins.suites.harbor.folder import (
    Artifact,
    CollectStep,
    Fields,
    Healthcheck,
    TaskFolder,
    TaskFolderError,
    TaskStep,
    Verifier,
    read_text,
)

#: Entries of a Terminal-Bench folder that are hidden from its image, unless the Dockerfile names them.
_ANSWERS = ("solution.sh", "solution.yaml", "tests", "run-tests.sh", "task.yaml")
#: The supported versions of task.toml.
VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")


def read_task(path: Path) -> TaskFolder:
    """Read a task folder of either format.

    Raises:
        TaskFolderError: it is not a valid task folder.
    """
    if (path / "task.toml").is_file():
        return read_harbor(path)
    if (path / "task.yaml").is_file():
        return read_terminal_bench(path)
    raise TaskFolderError(
        f"{path} is not a task folder: it has neither task.toml (Harbor) nor task.yaml (Terminal-Bench)"
    )


def find_tasks(path: Path) -> list[Path]:
    """Return the folder itself, or the task folders in it (at any depth), sorted."""
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
    """Read a folder with a task.toml."""
    file = path / "task.toml"
    try:
        fields = Fields(file, tomllib.loads(read_text(file)))
    except tomllib.TOMLDecodeError as error:
        raise TaskFolderError(f"{file} is not TOML: {error}") from error
    version = str(fields.data.get("schema_version", fields.data.get("version", "1.0")))
    if version not in VERSIONS:
        raise TaskFolderError(f"{file}: version {version!r} is not known; {VERSIONS[0]} to {VERSIONS[-1]} are")
    environment, agent = fields.table("environment"), fields.table("agent")
    if (system := environment.text("os", "linux")) != "linux":
        raise TaskFolderError(f"{file}: environment.os is {system!r}; only linux can be run here")
    context, service = path / "environment", dict[str, Any]()
    compose = next((n for n in ("docker-compose.yaml", "docker-compose.yml") if (context / n).is_file()), "")
    if compose:
        service = _only_service(context / compose)
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
        image=environment.text("docker_image") or service.get("image", ""),
        env=service.get("env", {}) | environment.variables("env"),
        build_seconds=environment.some_seconds("build_timeout_sec", 600.0),
        memory_mb=environment.megabytes("memory_mb", "memory"),
        storage_mb=environment.megabytes("storage_mb", "storage"),
        workdir=_workdir(environment) or service.get("workdir", ""),
        healthcheck=_healthcheck(environment),
        solution_env=fields.table("solution").variables("env"),
        **_network(environment, agent),
        final_only=strategy == "final",
        metadata=dict(fields.table("metadata").data),
    )


def _network(environment: Fields, agent: Fields) -> dict[str, Any]:
    """Return the agent's network; its own table takes precedence over the environment's."""
    table = agent if "network_mode" in agent.data else environment
    default = "no-network" if environment.data.get("allow_internet") is False else "public"
    mode, hosts = table.text("network_mode") or default, table.data.get("allowed_hosts") or []
    if mode not in ("public", "no-network", "allowlist"):
        table.wrong("network_mode", "public, no-network or allowlist")
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        table.wrong("allowed_hosts", "a list of texts")
    return {"network_mode": mode, "allowed_hosts": tuple(hosts)}


def _steps(path: Path, fields: Fields) -> Iterable[TaskStep]:
    listed = fields.tables("steps")
    if not listed:
        yield _step(path, fields, fields, "")
        return
    for each in listed:
        name = each.text("name")
        if not name or "/" in name or name == ".." or not (path / "steps" / name).is_dir():
            raise TaskFolderError(f"{fields.file}: the step {name!r} has no folder {path / 'steps' / name}")
        yield _step(path / "steps" / name, fields, each, name)


def _step(folder: Path, task: Fields, own: Fields, name: str) -> TaskStep:
    solutions, setup = (folder / "solution", task.file.parent / "solution"), folder / "workdir"
    return TaskStep(
        name=name,
        instruction=read_text(folder / "instruction.md"),
        verifier=_verifier(folder, task, own),
        solution=next((each for each in solutions if (each / "solve.sh").is_file()), None),
        user=_user(own.table("agent")) or _user(task.table("agent")),
        agent_seconds=own.table("agent").seconds("timeout_sec", task.table("agent").seconds("timeout_sec", None)),
        setup=setup if setup.is_dir() else None,
        min_reward=own.numbers("min_reward"),
        healthcheck=_healthcheck(own) if own is not task else None,
        artifacts=tuple(each for table in _levels(task, own) for each in _artifacts(table)),
    )


def _levels(task: Fields, step: Fields) -> tuple[Fields, ...]:
    """Return the task's table, and a step's if there is one."""
    return (task,) if step is task else (task, step)


def _verifier(folder: Path, task: Fields, own: Fields) -> Verifier:
    """Read a verifier; a step's settings are added to the task's or override them."""
    tables = [each.table("verifier") for each in _levels(task, own)]
    mode, image, env, collect = "shared", "", dict[str, str](), list[CollectStep]()
    for table in tables:
        mode = table.text("environment_mode") or ("separate" if "environment" in table.data else mode)
        if mode not in ("shared", "separate"):
            table.wrong("environment_mode", "shared or separate")
        env |= table.variables("env")
        image = table.table("environment").text("docker_image") or image
        collect += [
            CollectStep(_command(each), each.some_seconds("timeout_sec", 60.0), _user(each))
            for each in table.tables("collect")
            if each.text("service", "main") == "main"
        ]
    merged = Fields(task.file, {key: value for table in tables for key, value in table.data.items()}, "verifier")
    verifier = Verifier(
        tests=tuple(each for each in dict.fromkeys((task.file.parent / "tests", folder / "tests")) if each.is_dir()),
        seconds=merged.some_seconds("timeout_sec", 600.0),
        env=merged.table("environment").variables("env") | env if mode == "separate" else env,
        user=_user(merged),
        separate=mode == "separate",
        image=image,
        collect=tuple(collect),
    )
    if verifier.find("test.sh") is None:
        raise TaskFolderError(f"there is no {folder / 'tests/test.sh'}, which grades the task")
    return verifier


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
        given = {"source": each} if isinstance(each, str) else each
        if not isinstance(given, dict) or not isinstance(given.get("source"), str):
            fields.wrong("artifacts", "a list of paths, or of tables with a source")
        elif given.get("service", "main") == "main":
            source = f"/{given['source'].lstrip('/')}"
            target = str(given.get("destination") or "")  # a relative one refers to the results, not to a machine
            excluded = tuple(map(str, given.get("exclude") or ()))
            yield Artifact(source, target if target.startswith("/") else source, excluded)


# -- Terminal-Bench 1 ------------------------------------------------------------------------------------------------


def read_terminal_bench(path: Path) -> TaskFolder:
    """Read a folder with a task.yaml. Without a Dockerfile, the image is the host's system with its files in /app."""
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
    service: dict[str, Any] = {}
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (path / name).is_file():
            service = _only_service(path / name)
    env = service.get("env", {}) | {"TEST_DIR": "/tests"}
    dockerfile = path / "Dockerfile"
    text = read_text(dockerfile) if dockerfile.is_file() else ""
    verifier = Verifier(
        tests=(tests,),
        script="run-tests.sh" if script.is_file() else "",
        seconds=fields.some_seconds("max_test_timeout_sec", 60.0),
        env=env,
        writes_reward=False,
    )
    solution = path / "solution.sh"
    step = TaskStep(
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
        ignored=tuple(each for each in _ANSWERS if not re.search(rf"^(COPY|ADD)\b.* (\./)?{each}\b", text, re.M)),
        dockerfile=dockerfile.name if dockerfile.is_file() else "",
        image=service.get("image", ""),
        env=env,
        workdir=service.get("workdir", ""),
        metadata={key: value for key, value in fields.data.items() if key not in known},
    )


def _yaml(file: Path) -> Any:
    with extra("envs", "Reading task.yaml and docker-compose.yaml"):
        import yaml
    try:
        return yaml.safe_load(read_text(file))
    except yaml.YAMLError as error:
        raise TaskFolderError(f"{file} is not YAML: {error}") from error


def _only_service(file: Path) -> dict[str, Any]:
    """Return ``env``, ``image`` and ``workdir`` of the only service, without variables for Terminal-Bench's runner."""
    services = Fields(file, _yaml(file) or {}).table("services")
    if len(services.data) > 1:
        names = ", ".join(map(str, services.data))
        raise TaskFolderError(f"{file}: it has the services {names}; a machine here is one service")
    found: dict[str, Any] = {}
    for each in services.data:
        service = services.table(each)
        given = service.data.get("environment") or {}
        if not isinstance(given, dict | list):
            service.wrong("environment", "a table or a list of variables")
        pairs = given.items() if isinstance(given, dict) else (str(item).partition("=")[::2] for item in given)
        found["env"] = {str(key): str(value) for key, value in pairs if "${" not in str(value)}
        image = "" if "build" in service.data else service.text("image")
        texts = {"image": image, "workdir": service.text("working_dir")}
        found |= {name: text for name, text in texts.items() if "${" not in text}
    return found
