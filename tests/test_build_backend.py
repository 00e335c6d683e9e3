"""Which CUDA compiler a build takes: the machine's, the package index's, or none."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("scikit_build_core")
PATH = Path(__file__).resolve().parents[1] / "build_backend" / "inferx_build.py"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("INFERX_CUDA", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("inferx_build", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("mode", "nvcc", "driver", "from_index"),
    [
        (None, False, False, False),  # CPU only
        (None, False, True, True),
        (None, True, True, False),
        ("AUTO", False, True, True),
        ("ON", False, False, True),
        ("ON", True, False, False),
        ("OFF", False, True, False),
        ("off", False, True, False),
    ],
)
def test_build_requirements(
    backend: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    mode: str | None,
    nvcc: bool,
    driver: bool,
    from_index: bool,
) -> None:
    if mode:
        monkeypatch.setenv("INFERX_CUDA", mode)
    monkeypatch.setattr(backend, "_system_nvcc", lambda: "/some/nvcc" if nvcc else None)
    monkeypatch.setattr(backend, "_has_driver", lambda: driver)
    for requires in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable):
        found = requires()
        assert any(item.startswith("cuda-toolkit") for item in found) == from_index
        assert not any(item.startswith("torch") for item in found)


def test_wrong_mode(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERX_CUDA", "yes")
    with pytest.raises(SystemExit, match="INFERX_CUDA: expected AUTO, ON or OFF, got 'YES'"):
        backend.get_requires_for_build_wheel()


def test_compiler_from_the_index(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "nvidia" / "cu13"
    nvcc = root / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(backend, "_system_nvcc", lambda: None)
    monkeypatch.setenv("LIBRARY_PATH", "/already/there")
    monkeypatch.setenv("CUDACXX", "")
    backend._point_cmake_at_nvcc()
    assert os.environ["CUDACXX"] == str(nvcc)
    assert os.environ["LIBRARY_PATH"] == f"{root / 'lib'}:/already/there"
