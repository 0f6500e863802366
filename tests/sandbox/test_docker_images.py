"""Images of a Docker engine as machines."""

import pytest
from engine import IMAGE, connected

from rollenv.sandbox import Limits, Machine, SandboxError
from rollenv.sandbox.docker import docker_image
from rollenv.sandbox.image_builder import BuildError, build

pytestmark = pytest.mark.slow
SMALL = Limits(seconds=20, memory_mb=512, processes=64, disk_mb=64, files=5000)


@pytest.fixture(scope="module")
def client(docker_url):
    with connected(docker_url) as client:
        yield client


@pytest.fixture
def named(client, monkeypatch, tmp_path):
    """Makes an image with settings in the engine: its name."""
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    made = []

    def make(**settings):
        container = client.create_container(IMAGE, ["/bin/sh", "-c", "echo made > /box/made"])["Id"]
        client.start(container)
        client.wait(container)
        name = f"rollenv-test-{len(made)}"
        client.commit(container, name, conf=settings)
        client.remove_container(container)
        made.append(name)
        return name

    yield make
    for name in made:
        client.remove_image(name, force=True)


@pytest.mark.integration
def test_files_and_settings_are_taken(named, docker_url):
    image = docker_image(named(Env=["A=b c", "PATH=/bin"], WorkingDir="/box"), base_url=docker_url)
    with Machine.create(image, limits=SMALL) as machine:
        assert machine.run("pwd; cat made; echo $A").stdout.split() == ["/box", "made", "b", "c"]


@pytest.mark.integration
def test_the_engine_keeps_no_container(named, docker_url, client):
    before = {each["Id"] for each in client.containers(all=True)}
    docker_image(named(), base_url=docker_url)
    assert {each["Id"] for each in client.containers(all=True)} == before


@pytest.mark.smoke
def test_from_takes_an_image_of_the_engine(named, docker_url, tmp_path):
    name = named(WorkingDir="/box", Env=["A=1"])
    (tmp_path / "Dockerfile").write_text(f"FROM {name}\nRUN echo $A > built\n")

    def base(asked):
        return docker_image(asked, base_url=docker_url)

    with Machine.create(build(tmp_path, base=base, limits=SMALL), limits=SMALL) as machine:
        assert machine.run("cat /box/built /box/made").stdout == "1\nmade\n"
    (tmp_path / "Dockerfile").write_text("FROM no-such-image:1\n")
    with pytest.raises(BuildError, match="no-such-image"):
        build(tmp_path, base=base, limits=SMALL)


def test_an_engine_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(SandboxError, match="Docker"):
        docker_image("ubuntu", base_url=f"unix://{tmp_path}/none")
