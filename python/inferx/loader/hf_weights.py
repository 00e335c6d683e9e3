"""Which safetensors files of a directory hold the weights, and that they fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from inferx.errors import LoadError
from inferx.loader.json_file import read_json
from inferx.loader.safetensors_file import SafetensorsFile

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Copies of the same weights in another layout, and parts that are no model.
_NOT_WEIGHTS = re.compile(r"(consolidated|adapter_|training_args|optimizer|scheduler)", re.IGNORECASE)
_SHARD = re.compile(r".*-(\d{5})-of-(\d{5})\.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def open_weights(directory: Path) -> dict[str, tuple[SafetensorsFile, str]]:
    """tensor name -> (file, name in it).  Every file's header is validated; nothing is read.

    LoadError for missing files, tensors that the index promises and no file has, and tensors in two files.
    """
    index: dict[str, str] | None = None
    if not (directory / SINGLE).is_file() and (directory / INDEX).is_file():
        index = _read_index(directory / INDEX)
        names = sorted(set(index.values()))
        for name in names:
            if not (directory / name).is_file():
                tensor = next(key for key, file in index.items() if file == name)
                raise LoadError(f"{directory / name}: missing, but {INDEX} puts {tensor} and others there")
    else:
        names = _weight_files(directory)
    tensors: dict[str, tuple[SafetensorsFile, str]] = {}
    for file in [SafetensorsFile(directory / name) for name in names]:
        for tensor in file.tensors:
            if tensor in tensors:
                raise LoadError(
                    f"{file.path}: tensor {tensor} occurs twice (also in {tensors[tensor][0].path.name})"
                )
            tensors[tensor] = (file, tensor)
    for tensor, name in (index or {}).items():
        if tensor not in tensors or tensors[tensor][0].path.name != name:
            raise LoadError(f"{directory / name}: tensor {tensor} is missing, but {INDEX} says it is there")
    if not tensors:
        raise LoadError(f"{directory}: the weight files hold no tensors")
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{path}: weight_map: expected a non-empty object, got {str(weight_map)[:100]}")
    for tensor, name in weight_map.items():
        # A plain name of this directory: an index must not reach other files.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise LoadError(
                f"{path}: weight_map: tensor {tensor}: expected a safetensors file name, got {name!r}"
            )
    return weight_map


def _weight_files(directory: Path) -> list[str]:
    """Without an index: model.safetensors, or the only candidate, or a complete set of numbered shards."""
    if (directory / SINGLE).is_file():
        return [SINGLE]
    found = sorted(path.name for path in directory.glob("*.safetensors") if path.is_file())
    names = [name for name in found if not _NOT_WEIGHTS.match(name)]
    if len(names) == 1 and not _SHARD.fullmatch(names[0]):
        return names
    shards: list[Any] = [_SHARD.fullmatch(name) for name in names]
    if names and all(shards):
        total = int(shards[0].group(2))
        present = {int(match.group(1)) for match in shards}
        missing = sorted(set(range(1, total + 1)) - present)
        if missing:
            raise LoadError(f"{directory}: shard {missing[0]} of {total} is missing")
        return names
    if names:
        raise LoadError(f"{directory}: several safetensors files ({', '.join(names[:4])} ...) but no {INDEX}")
    if found:
        raise LoadError(
            f"{directory}: only {', '.join(found)}: expected {SINGLE} or {INDEX} in Hugging Face layout"
        )
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        raise LoadError(
            f"{directory}: the weights are pickle files ({pickles[0]} ...), which run code when opened "
            "and are never loaded; convert them to safetensors"
        )
    raise LoadError(f"{directory}: no weights: expected {SINGLE} or {INDEX}")
