"""What was compiled, and how many threads the CPU ops use."""

from __future__ import annotations

from typing import Any

from inferx import _C

__all__ = ["build_info", "get_num_threads", "set_num_threads"]


def build_info() -> dict[str, Any]:
    """What this build of inferx holds.

    Keys: ``version``; ``compiler``; ``cxx_standard``; ``cuda`` (bool), ``cuda_version`` (str or None)
    and ``cuda_architectures`` (list, as "90a-real"); ``simd_targets`` (compiled) and ``simd_target``
    (in use on this machine); ``openmp`` (the _OPENMP date); ``pybind11``; ``tensor_access`` ("dlpack"
    or, with torch < 2.10, "attributes").
    """
    info: dict[str, Any] = _C.build_info()
    return info


def set_num_threads(count: int) -> None:
    """Sets the number of threads of inferx's CPU ops in this process.

    Results do not depend on it.  torch's own ops keep torch's setting; where the two differ, the shared
    OpenMP runtime regroups its threads at each change, so set both alike (``torch.set_num_threads``).

    Raises:
        ValueError: ``count`` is not positive.
    """
    _C.set_num_threads(count)


def get_num_threads() -> int:
    """The number of threads of inferx's CPU ops: what was set, else OpenMP's own setting."""
    count: int = _C.get_num_threads()
    return count
