"""Choosing where to run, and in which types; what cannot be is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.test_memory import CONFIG

from inferx import ops
from inferx.engine import device as device_module
from inferx.engine.args import EngineArgs
from inferx.engine.device import Device, kv_cache_dtype, placement, resolve_device, runs_on
from inferx.errors import InvalidRequestError

CPU = Device("cpu", torch.device("cpu"))
CUDA = Device("cuda", torch.device("cuda", 0))
SIMT = Device("simt", torch.device("cpu"))


class FakeGpus:
    """What torch and the build say about GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, count: int, built: bool = True) -> None:
        info: dict[str, Any] = {
            **ops.build_info(),
            "cuda": built,
            "cuda_architectures": ["80-real", "90a-real"],
        }
        monkeypatch.setattr(ops, "build_info", lambda: info)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda index: (9, 0) if index < 2 else (7, 5)
        )
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")


def test_auto_takes_a_gpu_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpus(monkeypatch, count=0)
    assert resolve_device("auto") == CPU
    FakeGpus(monkeypatch, count=1)
    assert resolve_device("auto") == CUDA
    assert resolve_device("cpu") == CPU


def test_auto_without_kernels_is_the_cpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FakeGpus(monkeypatch, count=1, built=False)
    assert resolve_device("auto") == CPU
    assert "no CUDA kernels" in caplog.text


def test_cuda_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpus(monkeypatch, count=3)
    assert resolve_device("cuda").torch_device == torch.device("cuda", 0)
    assert resolve_device("cuda:1").torch_device == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)  # what the caller has chosen
    assert resolve_device("cuda").torch_device == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("name", "count", "built", "message"),
    [
        ("cuda", 0, True, "device: expected an NVIDIA GPU for 'cuda'"),
        ("cuda:1", 0, True, "device: expected an NVIDIA GPU for 'cuda:1'"),
        ("cuda", 1, False, "device: 'cuda' needs CUDA kernels.*INFERX_CUDA=ON"),
        ("cuda:3", 3, True, "device must be from cuda:0 to cuda:2, got 'cuda:3'"),
        ("cuda:2", 3, True, r"GPU 2.*compute capability 7\.5.*80-real, 90a-real"),
    ],
)
def test_gpus_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int, built: bool, message: str
) -> None:
    FakeGpus(monkeypatch, count=count, built=built)
    with pytest.raises(InvalidRequestError, match=message) as caught:
        resolve_device(name)
    assert caught.value.param == "device"


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 0), ["80-real"], True),
        ((8, 6), ["80-real"], True),
        ((8, 0), ["86-real"], False),
        ((9, 0), ["80-real"], False),
        ((9, 0), ["90a-real"], True),
        ((10, 0), ["90a-real"], False),
        ((10, 0), ["90"], True),
        ((12, 0), ["80-real", "100f-real", "120-real"], True),
        ((10, 3), ["100f-real"], True),
        ((12, 1), ["100f-real"], False),
        ((7, 5), ["80", "90a-real"], False),
        ((8, 0), [], False),
    ],
)
def test_which_code_runs_on_which_gpu(
    capability: tuple[int, int], architectures: list[str], runs: bool
) -> None:
    assert runs_on(capability, architectures) is runs


def test_simt_is_for_tests_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device_module._simt_module.cache_clear()
    for value in (None, "", str(tmp_path / "none.so")):
        if value is None:
            monkeypatch.delenv(device_module.SIMT_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(device_module.SIMT_VARIABLE, value)
        with pytest.raises(InvalidRequestError, match=r"for inferx's own tests.*INFERX_SIMT_MODULE"):
            resolve_device("simt")


@pytest.mark.parametrize(
    "name", ["GPU", "cuda:", "cuda:-1", "cuda:0,1", "", "CPU", "cuda:9999", "cuda:007", "cuda:200"]
)
def test_names_that_are_no_device(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="device must be auto, cpu, cuda or cuda:N") as caught:
        EngineArgs(device=name).validate()
    assert caught.value.param == "device"


@pytest.mark.parametrize(
    ("device", "checkpoint", "dtype", "expected"),
    [
        (CUDA, "float32", "auto", torch.bfloat16),
        (CUDA, "bfloat16", "auto", torch.bfloat16),
        (CUDA, "float16", "auto", torch.float16),
        (CUDA, "bfloat16", "float32", torch.float32),
        (CUDA, "bfloat16", "float16", torch.float16),
        (SIMT, "bfloat16", "auto", torch.float32),
        (SIMT, "float32", "bfloat16", torch.bfloat16),
        (CPU, "bfloat16", "bfloat16", torch.float32),
    ],
)
def test_activations(device: Device, checkpoint: str, dtype: str, expected: torch.dtype) -> None:
    config = CONFIG.__class__(**{**vars(CONFIG), "dtype": checkpoint})
    where = placement(device, config, dtype)
    assert where.dtype == expected
    assert where.dense is (device is not CPU)
    assert where.device == device.torch_device


def test_gemma_is_not_run_in_float16_unasked() -> None:
    config = CONFIG.__class__(**{**vars(CONFIG), "dtype": "float16", "architecture": "gemma3"})
    assert placement(CUDA, config, "auto").dtype == torch.bfloat16
    assert placement(CUDA, config, "float16").dtype == torch.float16


@pytest.mark.parametrize(
    ("device", "requested", "activations", "expected"),
    [
        (CPU, "auto", torch.float32, torch.float32),
        (CPU, "float16", torch.float32, torch.float16),
        (CUDA, "auto", torch.bfloat16, torch.bfloat16),
        (CUDA, "bfloat16", torch.bfloat16, torch.bfloat16),
        (CUDA, "fp8", torch.bfloat16, torch.float8_e4m3fn),
        (CUDA, "fp8_e4m3", torch.float16, torch.float8_e4m3fn),
        (CUDA, "bfloat16", torch.float32, torch.bfloat16),
        (CPU, "fp8", torch.float32, None),
        (CUDA, "fp8", torch.float32, None),
        (CUDA, "float32", torch.bfloat16, None),
        (CUDA, "float16", torch.bfloat16, None),
    ],
)
def test_kv_cache_types(
    device: Device, requested: str, activations: torch.dtype, expected: torch.dtype | None
) -> None:
    if expected is not None:
        assert kv_cache_dtype(device, requested, activations) == expected
        return
    with pytest.raises(InvalidRequestError, match=rf"kv_cache_dtype must be one of .*got '{requested}'"):
        kv_cache_dtype(device, requested, activations)


def test_kv_cache_types_of_latents() -> None:
    """Of latent attention: no float8, and on a device the activations' type."""
    assert kv_cache_dtype(CPU, "float16", torch.float32, latent=True) == torch.float16
    assert kv_cache_dtype(CUDA, "auto", torch.bfloat16, latent=True) == torch.bfloat16
    for device, requested, activations in (
        (CUDA, "fp8", torch.bfloat16),
        (CUDA, "bfloat16", torch.float32),
        (CPU, "fp8", torch.float32),
    ):
        with pytest.raises(InvalidRequestError, match=rf"latent attention\), got '{requested}'"):
            kv_cache_dtype(device, requested, activations, latent=True)


@pytest.mark.parametrize(
    ("options", "kind", "expected"),
    [
        ({}, "cpu", (64, 512)),
        ({}, "cuda", (256, 8192)),
        ({"max_num_seqs": 1000}, "cpu", (1000, 1000)),
        ({"max_num_batched_tokens": 32}, "cuda", (32, 32)),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 9}, "cuda", (8, 9)),
    ],
)
def test_limits_follow_from_the_device(options: dict[str, int], kind: str, expected: tuple[int, int]) -> None:
    args = EngineArgs(**options)
    args.validate()
    assert args.limits(kind) == expected


def test_limits_that_contradict_each_other() -> None:
    with pytest.raises(InvalidRequestError, match=r"max_num_batched_tokens \(8\) must be at least .*\(9\)"):
        EngineArgs(max_num_seqs=9, max_num_batched_tokens=8).validate()


@pytest.mark.parametrize("value", [0.0, -1.0, 1.01, float("nan"), float("inf")])
def test_gpu_memory_utilization_is_a_share(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="gpu_memory_utilization must be above 0"):
        EngineArgs(gpu_memory_utilization=value).validate()
