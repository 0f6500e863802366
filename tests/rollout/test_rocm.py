"""The variables that hide AMD's GPUs, with simulated counts."""

from __future__ import annotations

import pytest

from rollenv.core.errors import UsageError

ray_calls = pytest.importorskip("rollenv.rollout.ray_calls")
amd = pytest.importorskip("ray._private.accelerators.amd_gpu")


@pytest.mark.parametrize(
    ("given", "hip"),
    [
        ({}, None),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, "0,1"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-4a,GPU-5b,GPU-6c"}, "0,1,2"),
        ({"ROCR_VISIBLE_DEVICES": ""}, ""),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"HIP_VISIBLE_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "4"}, "4"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
    ],
)
def test_ray_counts_the_gpus_that_are_left(monkeypatch, given, hip):
    environ = dict(given)
    ray_calls.agree_on_devices(environ)
    assert environ.get("HIP_VISIBLE_DEVICES") == hip
    assert {**environ, **given} == environ, "nothing that was set is changed"
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
        if name in environ:
            monkeypatch.setenv(name, environ[name])
    visible = amd.AMDGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    assert visible == (None if hip is None else [number for number in hip.split(",") if number])


def test_variables_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="unset CUDA_VISIBLE_DEVICES"):
        ray_calls.agree_on_devices({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"})
