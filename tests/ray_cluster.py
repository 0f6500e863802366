"""A real Ray cluster on this machine. Modules that import this are skipped without Ray."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'rollenv[ray]'")
if " " in sys.executable:
    pytest.skip(f"Ray starts no worker below a path with spaces: {sys.executable}", allow_module_level=True)
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from ray.cluster_utils import Cluster  # noqa: E402

MEMORY = 80 * 2**20


def search_path(module):
    """PYTHONPATH of actors that import a test module, and what it imports."""
    return os.pathsep.join([*map(str, Path(module).parents[:2]), os.environ.get("PYTHONPATH", "")])


@contextlib.contextmanager
def local_cluster(cpus):
    head = {"num_cpus": cpus, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextlib.contextmanager
def another_node(cluster):
    node = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    try:
        yield node
    finally:
        if node in cluster.list_all_nodes():
            cluster.remove_node(node)
