"""Where an engine runs: the CPU, a GPU, or (for tests) the SIMT executor.

On "simt" everything is as on a GPU (dense weights, staged batches, device ops), but tensors are the CPU's and
the CUDA kernels' source is run by the executor: slow, and only for tests.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from inferx import ops
from inferx.errors import InvalidRequestError
from inferx.layers.placement import CPU, CPU_INT8, Placement
from inferx.loader.config import ModelConfig
from inferx.ops._lib import use_kernels

logger = logging.getLogger("inferx.engine")

SIMT_VARIABLE = "INFERX_SIMT_MODULE"

FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KV_DTYPES = {**FLOATS, "fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn}
# What "auto" makes of the checkpoint's type on a GPU, as vLLM does: float32 is halved.
_AUTO = {"float32": torch.bfloat16, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Their activations overflow float16.
_NO_FLOAT16 = ("gemma3",)


@dataclass(frozen=True)
class Device:
    """kernels: on "simt" the module whose ops run, elsewhere None."""

    kind: Literal["cpu", "cuda", "simt"]
    torch_device: torch.device
    kernels: Any = None

    @property
    def is_cpu(self) -> bool:
        """Whether the engine runs on the CPU's own ops and packed weights."""
        return self.kind == "cpu"

    def running(self) -> AbstractContextManager[Any]:
        """What the engine's work on tensors is to be wrapped in."""
        if self.kind == "simt":
            return use_kernels(self.kernels)
        if self.kind == "cuda":
            return torch.cuda.device(self.torch_device)
        return nullcontext()

    def synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch_device)


def resolve_device(name: str) -> Device:
    """The device that a valid ``EngineArgs.device`` names.  InvalidRequestError when it cannot be had."""
    if name == "cpu" or (name == "auto" and not _cuda_usable()):
        return Device("cpu", torch.device("cpu"))
    if name == "simt":
        return Device("simt", torch.device("cpu"), _simt_module(os.environ.get(SIMT_VARIABLE, "")))
    return _cuda(torch.device("cuda" if name == "auto" else name))


def _cuda_usable() -> bool:
    if not torch.cuda.is_available():
        return False
    if ops.build_info()["cuda"]:
        return True
    logger.warning("there is a GPU, but this build of inferx has no CUDA kernels: using the CPU")
    return False


def _cuda(device: torch.device) -> Device:
    if not torch.cuda.is_available():
        how = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds none"
        raise InvalidRequestError(f"device: expected an NVIDIA GPU for {str(device)!r}; {how}", "device")
    info = ops.build_info()
    if not info["cuda"]:
        raise InvalidRequestError(
            f"device: {str(device)!r} needs CUDA kernels, and this build of inferx has none: build it where "
            "nvcc is, or with INFERX_CUDA=ON",
            "device",
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    count = torch.cuda.device_count()
    if index >= count:
        raise InvalidRequestError(
            f"device must be from cuda:0 to cuda:{count - 1}, got 'cuda:{index}'", "device"
        )
    capability = torch.cuda.get_device_capability(index)
    if not runs_on(capability, info["cuda_architectures"]):
        raise InvalidRequestError(
            f"device: cuda:{index} ({torch.cuda.get_device_name(index)}) has compute capability "
            f"{capability[0]}.{capability[1]}; this build of inferx has kernels for "
            f"{', '.join(info['cuda_architectures'])}",
            "device",
        )
    return Device("cuda", torch.device("cuda", index))


def runs_on(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether code for ``architectures`` (in CMake's syntax: 80-real, 90a-real, 100) runs on the GPU.

    Machine code runs on its own major version from its minor version on; code for 90a and its like on that
    very version only; an entry without "-real" has PTX too, which later GPUs compile.
    """
    for entry in architectures:
        match = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", entry)
        if match is None:
            continue
        target = (int(match[1]), int(match[2]))
        if match[3]:
            fits = capability == target if match[3] == "a" else _same_major(capability, target)
        elif match[4] == "-real":
            fits = _same_major(capability, target)
        else:
            fits = capability >= target
        if fits:
            return True
    return False


def _same_major(capability: tuple[int, int], target: tuple[int, int]) -> bool:
    return capability[0] == target[0] and capability[1] >= target[1]


@cache
def _simt_module(path: str) -> Any:
    file = Path(path)
    if not path or not file.is_file():
        raise InvalidRequestError(
            f"device 'simt' is for inferx's own tests: it needs {SIMT_VARIABLE}, the path of a module that "
            f"tools/build_simt.sh has built, got {path!r}",
            "device",
        )
    spec = importlib.util.spec_from_file_location(file.name.partition(".")[0], file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def placement(
    device: Device, config: ModelConfig, dtype: str, activations: str = "float32", *, quantised: bool = False
) -> Placement:
    """Where activations lie, and their type; ``dtype`` and ``activations`` as in EngineArgs.

    quantised: some weights of the checkpoint are, so that int8 activations mean something.

    auto on a GPU: bfloat16, or float16 for checkpoints of that type.  On "simt": float32, so that answers
    can be compared with the CPU's.
    """
    if device.is_cpu:
        return CPU_INT8 if quantised and activations in ("auto", "int8") else CPU
    if activations == "int8":
        raise InvalidRequestError(
            "activations must be auto or float32 on a device, got 'int8'", "activations"
        )
    if dtype != "auto":
        return Placement(device.torch_device, FLOATS[dtype], dense=True)
    if device.kind == "simt":
        return Placement(device.torch_device, torch.float32, dense=True)
    chosen = _AUTO[config.dtype]
    if chosen == torch.float16 and config.architecture in _NO_FLOAT16:
        chosen = torch.bfloat16
    return Placement(device.torch_device, chosen, dense=True)


def kv_cache_dtype(
    device: Device, requested: str, activations: torch.dtype, *, latent: bool = False, int8: bool = False
) -> torch.dtype:
    """The type of the KV cache; InvalidRequestError where attention has no such combination.

    float32 activations go with every float cache; 16-bit ones with their own type and float8.  latent: the
    cache is of latent attention (MLA), which has no float8, and on a device the activations' type only.
    int8: activations are rounded to that before every product, so that half a cache's bits are no loss.
    """
    if requested == "auto":
        return torch.float16 if int8 else activations
    chosen = KV_DTYPES[requested]
    name = str(activations).removeprefix("torch.")
    names = list(FLOATS) if activations == torch.float32 else [name, "fp8", "fp8_e4m3"]
    if latent:
        names = list(FLOATS) if device.is_cpu else [name]
    if chosen in [KV_DTYPES[allowed] for allowed in names]:
        return chosen
    where = "on the CPU" if device.is_cpu else f"with {name} activations"
    if latent:
        where += " for a cache of latents (multi-head latent attention)"
    raise InvalidRequestError(
        f"kv_cache_dtype must be one of auto, {', '.join(names)} {where}, got {requested!r}", "kv_cache_dtype"
    )
