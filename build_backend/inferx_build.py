"""PEP 517 backend: scikit-build-core, plus a CUDA compiler from the package index when one is wanted.

The environment variable INFERX_CUDA says what is built:

    AUTO (default)  the machine's nvcc if there is one; else the index's nvcc if an NVIDIA driver is
                    present; else CPU only
    ON              CUDA always, with the index's nvcc when the machine has none
    OFF             CPU only

A static entry in `build-system.requires` would make CPU users download the compiler too, so the
requirement is computed here.  This file may import nothing but scikit-build-core: it also has to work
on machines without a network.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# The metapackage pins all parts to one release; nvidia-cuda-nvcc alone takes newer headers and runtime.
CUDA_REQUIRES = ["cuda-toolkit[nvcc,cudart,cccl]==13.0.*"]

Settings = Any  # dict[str, str | list[str]] or None


def _mode() -> str:
    mode = os.environ.get("INFERX_CUDA", "AUTO").upper()
    if mode not in ("AUTO", "ON", "OFF"):
        raise SystemExit(f"INFERX_CUDA: expected AUTO, ON or OFF, got {mode!r}")
    return mode


def _system_nvcc() -> str | None:
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [
        os.environ.get("CUDACXX"),
        shutil.which("nvcc"),
        *(os.path.join(home, "bin", "nvcc") for home in homes),
        "/usr/local/cuda/bin/nvcc",
    ]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _wants_index_nvcc() -> bool:
    mode = _mode()
    if mode == "OFF" or sys.platform != "linux" or _system_nvcc():
        return False
    return mode == "ON" or _has_driver()


def _index_cuda_root() -> Path | None:
    bases = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    roots = (Path(base or ".") / "nvidia" / "cu13" for base in bases)
    return next((root for root in roots if (root / "bin" / "nvcc").is_file()), None)


def _point_cmake_at_nvcc() -> None:
    if _mode() == "OFF":
        return
    if nvcc := _system_nvcc():
        os.environ.setdefault("CUDACXX", nvcc)
    elif root := _index_cuda_root():
        os.environ["CUDACXX"] = str(root / "bin" / "nvcc")
        # The index's wheels have lib/ where nvcc looks in lib64/; this lets gcc find cudart_static.
        paths = [str(root / "lib"), os.environ.get("LIBRARY_PATH")]
        os.environ["LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    extra = CUDA_REQUIRES if _wants_index_nvcc() else []
    return [*_backend.get_requires_for_build_wheel(config_settings), *extra]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    extra = CUDA_REQUIRES if _wants_index_nvcc() else []
    return [*_backend.get_requires_for_build_editable(config_settings), *extra]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    _point_cmake_at_nvcc()
    return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    _point_cmake_at_nvcc()
    return _backend.build_editable(wheel_directory, config_settings, metadata_directory)


prepare_metadata_for_build_wheel = _backend.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _backend.prepare_metadata_for_build_editable
