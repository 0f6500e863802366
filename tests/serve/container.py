"""The image of ``deploy/Dockerfile``, built and run on a Docker engine of the tests' own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import httpx
import pytest
import yaml

from rollenv.serve.auth import new_token

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"

#: Releases of Debian whose Python is the one that runs the tests, so that its wheels fit.
RELEASES = {(3, 11): "bookworm", (3, 13): "trixie"}

IMAGE, BASE, NETWORK, TRAINING = "rollenv-test-server", "rollenv-test-base", "rollenv-test", "rollenv-test-training"


def build(client, folder):
    """Build the image without a registry: on a Debian of debootstrap's, from wheels that pip gets here."""
    release = RELEASES.get(sys.version_info[:2])
    if not release or not shutil.which("debootstrap"):
        pytest.skip("the base image needs debootstrap, and the Python of a release of Debian")
    debian, context = folder / "debian", folder / "context"
    command = ["debootstrap", "--variant=minbase", "--include=python3-venv,tini", release, str(debian)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"debootstrap: {made.stdout[-300:]}")
    packed = subprocess.run(["tar", "-C", debian, "-c", "."], check=True, capture_output=True).stdout
    client.import_image_from_data(packed, repository=BASE)
    subprocess.run(["git", "clone", "--quiet", ROOT, context], check=True)
    for name in ("Dockerfile", "seccomp.json"):  # as they are in the working tree
        shutil.copy(ROOT / "deploy" / name, context / "deploy" / name)
    (context / "tokens.toml").write_text("SECRET")
    wheels = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", context / "wheels"]
    subprocess.run([*wheels, f"{ROOT}[serve]", "setuptools>=77", "wheel"], check=True, capture_output=True)
    for wheel in (context / "wheels").glob("rollenv-*"):
        wheel.unlink()
    arguments = {"BASE": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/source/wheels"}
    told = list(client.build(str(context), IMAGE, dockerfile="deploy/Dockerfile", buildargs=arguments, decode=True))
    assert "error" not in told[-1], "".join(line.get("stream", "") for line in told[-40:])


def build_training(client, folder):
    """Build the training image on the base of :func:`build`, with the CPU build of torch that is installed here."""
    context = folder / "context"
    subprocess.run(["git", "clone", "--quiet", ROOT, context], check=True)
    shutil.copy(ROOT / "deploy" / "Dockerfile.train", context / "deploy")
    torch = importlib.metadata.version("torch")
    wheels = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", context / "wheels"]
    own = "PIP_FIND_LINKS" in os.environ  # where its wheel lies, else PyTorch's index is asked
    index = [] if own else ["--retries=1", "--extra-index-url=https://download.pytorch.org/whl/cpu"]
    asked = [f"{ROOT}[train]", f"torch=={torch}", "setuptools>=77", "wheel"]
    got = subprocess.run([*wheels, *index, *asked], capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"no wheels of torch {torch}: {got.stderr[-300:]}")
    for wheel in (context / "wheels").glob("rollenv-*"):
        wheel.unlink()
    arguments = {"BASE": BASE, "EXTRAS": "train", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/source/wheels"}
    told = list(
        client.build(str(context), TRAINING, dockerfile="deploy/Dockerfile.train", buildargs=arguments, decode=True)
    )
    assert "error" not in told[-1], "".join(line.get("stream", "") for line in told[-40:])


def ended(client, command, work):
    """What a container of the training image printed, whose command ended well.

    Args:
        work: the folder of its runs.
    """
    host = client.create_host_config(
        binds={str(work): {"bind": "/work", "mode": "rw"}},
        cap_drop=["ALL"],
        read_only=True,
        network_mode="none",
        security_opt=["no-new-privileges"],
        tmpfs={"/tmp": ""},
    )
    made = client.create_container(TRAINING, command, entrypoint=["tini", "--"], host_config=host)["Id"]
    try:
        client.start(made)
        code = client.wait(made, timeout=500)["StatusCode"]
        said = client.logs(made).decode()
        assert code == 0, said[-3000:]
        return said
    finally:
        client.remove_container(made, force=True)


class Container:
    """A server in a container, with the settings of compose.yaml.

    Args:
        client: of the engine.
        folder: for the file of tokens.
        seccomp: with compose's profile, or else with Docker's own.
        unconfined: with all of /proc shown, as compose does, or else without what Docker hides.
    """

    def __init__(self, client, folder, *, seccomp=True, unconfined=True):
        self.client = client
        self.token, lines = new_token("ann", ["environments", "sandboxes", "admin"])
        tokens = folder / "tokens.toml"
        tokens.write_text(lines)
        service = yaml.safe_load(COMPOSE.read_text())["services"]["rollenv"]
        security = [text for text in service["security_opt"] if not text.startswith(("seccomp:", "systempaths="))]
        assert "systempaths=unconfined" in service["security_opt"]
        if seccomp:
            security.append(f"seccomp={(ROOT / 'deploy' / 'seccomp.json').read_text()}")
        host = client.create_host_config(
            binds={str(tokens): {"bind": "/run/secrets/tokens", "mode": "ro"}},
            cap_drop=service["cap_drop"],
            mem_limit=service["mem_limit"],
            network_mode=NETWORK,
            pids_limit=service["pids_limit"],
            read_only=service["read_only"],
            security_opt=[text.replace("no-new-privileges:true", "no-new-privileges") for text in security],
            tmpfs=dict(text.split(":", 1) for text in service["tmpfs"]),
        )
        if unconfined:  # which clients of Docker say in these words
            host |= {"MaskedPaths": [], "ReadonlyPaths": []}
        often = {"test": service["healthcheck"]["test"], "interval": 2 * 10**9, "timeout": 30 * 10**9}
        self.id = client.create_container(IMAGE, service["command"], host_config=host, healthcheck=often)["Id"]
        client.start(self.id)
        self.host = self.about()["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
        self.address = f"{self.host}:8800"
        self.http = httpx.Client(
            base_url=f"http://{self.address}", headers={"Authorization": f"Bearer {self.token}"}, timeout=60
        )
        self.wait(lambda: self.get("livez") == 200, 60)

    def about(self):
        return self.client.inspect_container(self.id)

    def get(self, path):
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return 0

    def wait(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.client.logs(self.id).decode()[-2000:]
            assert self.about()["State"]["Running"], self.client.logs(self.id).decode()[-2000:]
            time.sleep(0.2)

    def printed(self, *command):
        return self.client.exec_start(self.client.exec_create(self.id, list(command))["Id"]).decode()

    def remove(self):
        self.http.close()
        with contextlib.suppress(Exception):
            self.client.remove_container(self.id, force=True)


def files_of(client, image):
    """The paths of every file of an image."""
    container = client.create_container(image, ["none"])["Id"]
    try:
        packed = io.BytesIO(b"".join(client.export(container)))
    finally:
        client.remove_container(container)
    with tarfile.open(fileobj=packed) as tar:
        return tar.getnames()
