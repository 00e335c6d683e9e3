"""``inferx env``: what is installed and what was compiled, for bug reports."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "torch", "numpy", "tokenizers", "safetensors", "gguf", "jinja2", "huggingface_hub", "msgspec", "pyzmq",
    "pydantic", "fastapi", "starlette", "uvicorn", "prometheus-client", "transformers",
)  # fmt: skip


def env() -> None:
    """Print versions, the compiled module's features, and the machine."""
    from inferx import __version__

    _section("inferx", [("version", __version__), ("python", platform.python_version())])
    _section("machine", _machine())
    _section("compiled module", _build_info())
    _section("packages", [(name, _version(name)) for name in PACKAGES])


def _section(title: str, rows: list[tuple[str, str]]) -> None:
    print(title)
    for name, value in rows:
        print(f"  {name:<20} {value}")


def _machine() -> list[tuple[str, str]]:
    return [
        ("system", platform.platform()),
        ("cpu", _cpu_name()),
        ("cores usable", str(len(os.sched_getaffinity(0)))),
        ("memory", _memory()),
        *_gpus(),
    ]


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / (1 << 30):.1f} GiB"


def _gpus() -> list[tuple[str, str]]:
    # A report of what is wrong must not fail because of it.
    try:
        import torch

        if not torch.cuda.is_available():
            built = torch.version.cuda
            return [("gpu", "none" if built else "none (torch is built without CUDA)")]
        rows = []
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            size = f"{gpu.total_memory / (1 << 30):.1f} GiB"
            rows.append((f"gpu {index}", f"{gpu.name}, {size}, compute capability {gpu.major}.{gpu.minor}"))
        return rows
    except Exception as error:
        return [("gpu", f"not usable: {type(error).__name__}: {error}")]


def _build_info() -> list[tuple[str, str]]:
    # A report of what is wrong must not fail because of it.
    try:
        from inferx import ops

        return [(name, str(value)) for name, value in ops.build_info().items()]
    except Exception as error:
        return [("not usable", f"{type(error).__name__}: {error}")]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
