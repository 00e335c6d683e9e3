"""What was compiled, how it is chosen and linked, and what importing it does to a process."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from op_checks import run_python

import inferx
from inferx import _C, ops

ROOT = Path(__file__).resolve().parents[2]
X86 = os.uname().machine in ("x86_64", "AMD64")


def test_build_info() -> None:
    info = ops.build_info()
    assert info["version"] == inferx.__version__ == importlib.metadata.version("inferx")
    assert info["simd_targets"] == (["base", "v3", "v4", "v4vnni"] if X86 else ["base"])
    assert info["simd_target"] in info["simd_targets"]
    assert info["openmp"] >= 201511
    assert info["cxx_standard"] >= 201703
    assert info["compiler"].split()[0] in ("gcc", "clang")
    assert info["pybind11"].count(".") == 2
    assert info["tensor_access"] in ("dlpack", "attributes")
    if info["cuda"]:
        assert info["cuda_architectures"]
        assert int(info["cuda_version"].split(".")[0]) >= 12
    else:
        assert info["cuda_architectures"] == []
        assert info["cuda_version"] is None


def run_module(expression: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Evaluates something of the compiled module alone: without torch a process starts in no time."""
    code = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("inferx._C", {_C.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.{expression})
"""
    return run_python(code, **environment)


@pytest.mark.parametrize("cap", ["base", "v3", "v4", "v4vnni", ""])
def test_cpu_isa_is_capped(cap: str) -> None:
    order = ["base", "v3", "v4", "v4vnni"]
    best = order.index(run_module("simd_target()", INFERX_CPU_ISA="").stdout.strip())
    result = run_module("simd_target()", INFERX_CPU_ISA=cap)
    assert result.returncode == 0, result.stderr
    assert order.index(result.stdout.strip()) == min(order.index(cap) if cap else best, best)


def test_unknown_cpu_isa() -> None:
    result = run_module("simd_target()", INFERX_CPU_ISA="avx2")
    assert result.returncode == 1
    assert "ValueError: INFERX_CPU_ISA: expected base, v3, v4 or v4vnni, got 'avx2'" in result.stderr


def test_threads() -> None:
    before = ops.get_num_threads()
    assert before >= 1
    try:
        ops.set_num_threads(3)
        assert ops.get_num_threads() == 3
        for wrong in (0, -2):
            with pytest.raises(ValueError, match=f"count: expected a positive number, got {wrong}"):
                ops.set_num_threads(wrong)
        assert ops.get_num_threads() == 3
    finally:
        ops.set_num_threads(before)
    assert run_module("get_num_threads()", OMP_NUM_THREADS="1").stdout.strip() == "1"


def test_gomp_spin_count_is_set_only_when_it_can_matter(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")  # importing the real one takes seconds
    show = "print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"

    def run(imports: str, **wanted: str) -> str:
        code = f"""
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
    os.environ.pop(name, None)
os.environ.update({wanted!r})
import {imports}
{show}
"""
        result = run_python(code)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    assert run("inferx") == "2000 None"
    assert run("torch, inferx") == "None None"
    assert run("inferx", GOMP_SPINCOUNT="7") == "7 None"
    assert run("inferx", OMP_WAIT_POLICY="passive") == "None passive"


def test_import_is_light_and_brings_one_openmp_runtime() -> None:
    code = """
import sys, inferx.ops
import torch
inferx.ops.rms_norm(torch.ones(100, 1000), torch.ones(1000), 1e-5)
torch.ones(1000, 1000).exp()
maps = set(open("/proc/self/maps").read().split())
print(len([path for path in maps if "libgomp" in path or "libomp" in path or "libiomp" in path]))
print([name for name in ("transformers", "fastapi", "inferx.llm", "inferx.engine") if name in sys.modules])
"""
    result = run_python(code, OMP_NUM_THREADS="2")
    assert result.stdout.split() == ["1", "[]"], result.stdout + result.stderr


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = inferx.nothing


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf")
def test_module_links_to_neither_torch_nor_a_driver() -> None:
    listing = subprocess.run(
        ["readelf", "-d", _C.__file__], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in listing.splitlines() if "NEEDED" in line]
    assert "libgomp.so.1" in needed or not X86
    for library in needed:
        assert not any(part in library for part in ("torch", "cuda", "c10", "python")), needed


def isa_objects() -> list[Path]:
    return sorted((ROOT / "build").glob("*/CMakeFiles/inferx_cpu_*.dir/csrc/cpu/isa/**/*.o"))


@pytest.mark.skipif(not shutil.which("nm") or not isa_objects(), reason="needs nm and a build folder")
def test_isa_objects_hold_no_inline_functions() -> None:
    """An inline function's one surviving copy might have been compiled for a better CPU than this one."""
    for path in isa_objects():
        listing = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        weak = [line for line in listing.splitlines() if line[17:18] in "WVu"]
        assert [line for line in weak if "DW.ref.__gxx_personality_v0" not in line] == [], path


def test_cuda_object_is_there_when_a_compiler_was() -> None:
    """Without a driver the static runtime must say so; nothing may crash."""
    if ops.build_info()["cuda"]:
        if torch.cuda.is_available():
            assert _C.cuda_device_count() >= 1
        else:
            with pytest.raises(RuntimeError, match=r"^CUDA: "):
                _C.cuda_device_count()
        assert b"copy_blocks_kernel" in Path(_C.__file__).read_bytes()
    else:
        with pytest.raises(RuntimeError, match="CUDA: this build of inferx has none"):
            _C.cuda_device_count()
