"""Reading a safetensors file defensively.

Layout: 8 bytes header length (little endian), a JSON header ``{name: {dtype, shape, data_offsets}}``, then
the data. The header is checked whole before any tensor is handed out: a mapped file that is shorter than
its header says would read as zeros or kill the process.  https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inferx.errors import LoadError
from inferx.loader.mapped import map_file, release_pages, tensor_at, unmap

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Bytes per element of every type the format knows; only those in DTYPES can be read as weights.
_ITEM_BYTES = {
    name: size
    for size, names in {
        8: "F64 I64 U64 C64",
        4: "F32 I32 U32",
        2: "F16 BF16 I16 U16",
        1: "F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I8 U8 BOOL",
    }.items()
    for name in names.split()
}
MAX_HEADER_BYTES = 100_000_000  # the format's own bound
MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class StoredTensor:
    """begin, end: bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """tensors: name -> where and what, in the order of the data."""

    def __init__(self, path: Path) -> None:
        """LoadError naming the tensor when header and file do not fit."""
        self.path = path
        self._map = map_file(path)
        size = len(self._map)
        if self._map[:24].startswith(b"version https://git-lfs"):
            raise LoadError(f"{path}: a Git LFS pointer, not the weights; fetch them with: git lfs pull")
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise LoadError(
                f"{path}: the header is said to take {length} bytes, but the file has {size} (truncated?)"
            )
        self.tensors = _parse_header(self._map[8 : 8 + length], 8 + length, size, path)

    def read(self, name: str) -> torch.Tensor:
        """A view of the mapping.  LoadError for element types that weights do not come in."""
        info = self.tensors[name]
        dtype = DTYPES.get(info.dtype)
        if dtype is None:
            raise LoadError(
                f"{self.path}: tensor {name}: dtype {info.dtype} is not supported "
                f"(supported: {', '.join(DTYPES)})"
            )
        return self._view(info, dtype)

    def read_bytes(self, name: str) -> torch.Tensor:
        """A view of the mapping of a U8 tensor, whose bytes are for the caller to understand."""
        assert self.tensors[name].dtype == "U8"
        return self._view(self.tensors[name], torch.uint8)

    def _view(self, info: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
        if 0 in info.shape:
            return torch.empty(info.shape, dtype=dtype)
        if info.begin % dtype.itemsize:  # old writers do not pad the header; an aligned copy is cheap
            raw = bytearray(self._map[info.begin : info.end])
            return torch.frombuffer(raw, dtype=dtype).reshape(info.shape)
        return tensor_at(self._map, info.begin, info.shape, dtype)

    def release(self) -> None:
        release_pages(self._map)

    def close(self) -> None:
        unmap(self._map)


def _parse_header(raw: bytes, data_start: int, file_size: int, path: Path) -> dict[str, StoredTensor]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise LoadError(f"{path}: {twice!r} occurs twice in the header")
        return result

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise LoadError(f"{path}: the header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _stored(name, entry, data_start, file_size, path) for name, entry in header.items()}
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))
    position, previous = data_start, ""
    for name, tensor in ordered.items():
        if tensor.begin < position:
            raise LoadError(f"{path}: tensors {previous} and {name} overlap")
        if tensor.begin > position:
            raise LoadError(
                f"{path}: {tensor.begin - position} bytes before tensor {name} belong to no tensor"
            )
        position, previous = tensor.end, name
    if position != file_size:
        raise LoadError(f"{path}: the tensors end at byte {position}, but the file at {file_size}")
    return ordered


def _stored(name: str, entry: Any, data_start: int, file_size: int, path: Path) -> StoredTensor:
    where = f"{path}: tensor {name}"

    def integers(key: str, limit: int) -> list[int]:
        value = entry.get(key)
        good = isinstance(value, list) and len(value) <= limit
        if not good or not all(type(n) is int and 0 <= n < 1 << 62 for n in value):
            raise LoadError(f"{where}: {key} must be a list of non-negative integers, got {str(value)[:100]}")
        return list(value)

    if not isinstance(entry, dict):
        raise LoadError(f"{where}: expected an object in the header, got {type(entry).__name__}")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise LoadError(f"{where}: unknown dtype {str(dtype)[:40]!r}")
    shape = integers("shape", MAX_DIMENSIONS)
    offsets = integers("data_offsets", 2)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoadError(f"{where}: data_offsets must be [begin, end], got {offsets}")
    begin, end = (data_start + offset for offset in offsets)
    if end > file_size:
        raise LoadError(
            f"{where}: needs bytes {begin} to {end}, but the file ends at {file_size} (truncated?)"
        )
    if math.prod(shape) * _ITEM_BYTES[dtype] != end - begin:
        raise LoadError(
            f"{where}: {dtype} of shape {shape} does not take the {end - begin} bytes it is given"
        )
    return StoredTensor(dtype, tuple(shape), begin, end)
