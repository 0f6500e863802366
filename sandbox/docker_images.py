"""Images of a Docker engine as root file systems of machines."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollenv.needs import extra
from rollenv.sandbox.docker import connected
from rollenv.sandbox.errors import SandboxError
from rollenv.sandbox.images import Image
from rollenv.sandbox.layers import made, store, unpack, whole


def docker_image(name: str, *, base_url: str | None = None) -> Image | None:
    """An image that a Docker engine has, with its environment, folder, user and shell; None if it has none.

    Its files are exported once, into the cache. Nothing of it runs in the engine, and nothing is pulled.

    Args:
        name: of the image, with or without a tag, or its id.
        base_url: of the engine; by default what the environment says.

    Raises:
        SandboxError: there is no engine, or it could not export the image.
        MissingExtra: without the docker SDK.
    """
    with extra("docker", "Images of Docker"):
        import docker.errors
    try:
        with contextlib.closing(connected(base_url)) as client:
            try:
                about = client.inspect_image(name)
            except docker.errors.ImageNotFound:
                return None
            target = store() / "roots" / about["Id"].removeprefix("sha256:")
            with made(target) as folder:
                if folder is not None:
                    _export(client, about["Id"], folder)
    except (docker.errors.DockerException, tarfile.TarError, OSError) as error:
        raise SandboxError(f"the image {name!r} could not be taken from Docker: {error}") from error
    return _configured(Image.folder(target), about.get("Config") or {})


def _export(client: Any, image: str, folder: Any) -> None:
    container = client.create_container(image, ["/nothing"], network_disabled=True)["Id"]
    try:
        with tempfile.TemporaryFile() as file:
            for piece in client.export(container):
                file.write(piece)
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                unpack(whole(archive), folder)
    finally:
        client.remove_container(container, force=True, v=True)


def _configured(image: Image, config: Mapping[str, Any]) -> Image:
    env = dict(each.split("=", 1) for each in config.get("Env") or [] if "=" in each)
    return replace(
        image,
        env=env,
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "root",
        shell=tuple(config.get("Shell") or image.shell),
    )
