"""Reading a GGUF file defensively.

The whole header (metadata and tensor table) is walked once with every count, length and offset checked
against the file size before it is used, so that a truncated or hostile file gives a ``LoadError`` and never
a crash, an endless loop or a huge allocation.  Tensor data stays in a private mapping of the file.

Layout: https://github.com/ggml-org/ggml, docs/gguf.md.  Type ids and block sizes come from the ``gguf``
package.
"""

from __future__ import annotations

import math
import mmap
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from inferx.errors import LoadError
from inferx.loader.mapped import map_file, release_pages, tensor_at, unmap

SUPPORTED_VERSIONS = (2, 3)
# One value per element; everything else supported is a block format read as raw bytes.
FLOAT_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BLOCK_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4")

# Bounds far above any real file, so that damaged counts are refused before memory is spent on them.
MAX_METADATA_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 1 << 24
MAX_STRINGS = 1 << 22
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

_SCALARS: dict[int, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
# Where array's type codes differ from struct's.
_ARRAY_CODES = {"<?": "B"}
_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class GGUFTensor:
    """shape: row-major (GGUF stores dimensions fastest first).  offset: bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


class GGUFFile:
    """metadata: key -> int, float, bool, str, list[str] or array.array (flags as 0 and 1).  tensors: in
    file order."""

    def __init__(self, path: Path) -> None:
        """LoadError when the file is not a complete, consistent GGUF file of a supported version."""
        self.path = path
        self._map = map_file(path)
        walker = _Walker(self._map, path)
        tensor_count, key_count = walker.preamble()
        self.metadata: dict[str, Any] = walker.metadata(key_count)
        infos = walker.tensor_infos(tensor_count)
        data_start = _align(walker.position, _alignment(self.metadata, path))
        self.tensors: dict[str, GGUFTensor] = {
            info.name: info for info in _place_tensors(infos, data_start, len(self._map), path)
        }

    def read(self, name: str) -> torch.Tensor:
        """Float tensors in their shape; block formats as uint8 ``[rows, bytes per row]``.  A view of the
        mapping."""
        info = self.tensors[name]
        dtype = FLOAT_DTYPES.get(info.dtype)
        if dtype is not None:
            return tensor_at(self._map, info.offset, info.shape, dtype)
        rows = math.prod(info.shape[:-1])
        return tensor_at(self._map, info.offset, (rows, info.nbytes // rows), torch.uint8)

    def release(self) -> None:
        """Forget lists of strings in ``metadata``, which are vocabularies, and the mapping's pages."""
        self.metadata = {key: value for key, value in self.metadata.items() if not isinstance(value, list)}
        release_pages(self._map)

    def close(self) -> None:
        unmap(self._map)


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _alignment(metadata: dict[str, Any], path: Path) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise LoadError(
            f"{path}: general.alignment must be a power of two from 8 to {MAX_ALIGNMENT}, got {value}"
        )
    return value


def _byte_size(name: str, shape: tuple[int, ...], type_id: int, path: Path) -> tuple[str, int]:
    """(type name, bytes) of a tensor; LoadError for types nobody here can multiply with."""
    supported = (*FLOAT_DTYPES, *BLOCK_TYPES)
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise LoadError(f"{path}: tensor {name}: unknown tensor type {type_id}") from None
    if kind.name not in supported:
        raise LoadError(
            f"{path}: tensor {name}: type {kind.name} is not supported (supported: {', '.join(supported)})"
        )
    block, size = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise LoadError(
            f"{path}: tensor {name}: rows of {shape[-1]} elements are no multiple of {kind.name}'s {block}"
        )
    return kind.name, math.prod(shape) // block * size


def _place_tensors(
    infos: list[tuple[str, tuple[int, ...], int, int]], data_start: int, file_size: int, path: Path
) -> list[GGUFTensor]:
    """Turns offsets into places in the file; LoadError when a tensor leaves the file or overlaps another."""
    tensors = []
    for name, shape, type_id, offset in infos:
        dtype, nbytes = _byte_size(name, shape, type_id, path)
        begin = data_start + offset
        if begin + nbytes > file_size:
            raise LoadError(
                f"{path}: tensor {name}: needs bytes {begin} to {begin + nbytes}, "
                f"but the file ends at {file_size} (truncated?)"
            )
        if begin % 4:
            raise LoadError(f"{path}: tensor {name}: offset {offset} is not aligned")
        tensors.append(GGUFTensor(name, shape, dtype, begin, nbytes))
    previous: GGUFTensor | None = None
    for tensor in sorted(tensors, key=lambda item: item.offset):
        if previous is not None and previous.offset + previous.nbytes > tensor.offset:
            raise LoadError(f"{path}: tensors {previous.name} and {tensor.name} overlap")
        previous = tensor
    return tensors


class _Walker:
    """A bounded cursor over the header."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._end = len(data)
        self._path = path
        self._strings_left = MAX_STRINGS
        self.position = 0

    def _fail(self, what: str) -> LoadError:
        return LoadError(f"{self._path}: {what} (at byte {self.position} of {self._end})")

    def _take(self, layout: struct.Struct, what: str) -> Any:
        if self.position + layout.size > self._end:
            raise self._fail(f"the file ends inside {what}")
        (value,) = layout.unpack_from(self._data, self.position)
        self.position += layout.size
        return value

    def _string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self._take(_UINT64, what)
        if length > limit or self.position + length > self._end:
            raise self._fail(f"{what} has an impossible length of {length} bytes")
        raw = self._data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._fail(f"{what} is not valid UTF-8") from None

    def _strings(self, count: int, what: str) -> list[str]:
        """As ``_string``, many times: vocabularies have hundreds of thousands."""
        data, end, position = self._data, self._end, self.position
        length_at = _UINT64.unpack_from
        found: list[str] = []
        for _ in range(count):
            start = position + 8
            if start > end:
                self.position = position
                raise self._fail(f"the file ends inside {what}")
            (length,) = length_at(data, position)
            stop = start + length
            if length > MAX_STRING_BYTES or stop > end:
                self.position = start
                raise self._fail(f"{what} has an impossible length of {length} bytes")
            try:
                found.append(data[start:stop].decode("utf-8"))
            except UnicodeDecodeError:
                self.position = stop
                raise self._fail(f"{what} is not valid UTF-8") from None
            position = stop
        self.position = position
        return found

    def preamble(self) -> tuple[int, int]:
        """(tensor count, metadata key count)."""
        magic = self._data[:4]
        if magic != b"GGUF":
            raise LoadError(f"{self._path}: not a GGUF file (it starts with {magic!r})")
        self.position = 4
        version = self._take(_UINT32, "the version")
        if version & 0xFFFF == 0:
            raise LoadError(f"{self._path}: this is a big-endian GGUF file, which is not supported")
        if version not in SUPPORTED_VERSIONS:
            raise LoadError(f"{self._path}: GGUF version {version} is not supported (supported: 2 and 3)")
        tensor_count = self._take(_UINT64, "the tensor count")
        key_count = self._take(_UINT64, "the metadata count")
        # The smallest tensor entry takes 32 bytes, the smallest metadata entry 13.
        if tensor_count > min(MAX_TENSORS, self._end // 32):
            raise self._fail(f"impossible tensor count {tensor_count}")
        if key_count > min(MAX_METADATA_KEYS, self._end // 13):
            raise self._fail(f"impossible metadata count {key_count}")
        return tensor_count, key_count

    def metadata(self, count: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for _ in range(count):
            key = self._string("a metadata key", MAX_KEY_BYTES)
            if key in result:
                raise self._fail(f"metadata key {key!r} occurs twice")
            result[key] = self._value(key, self._take(_UINT32, f"metadata {key!r}"))
        return result

    def _value(self, key: str, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self._string(f"metadata {key!r}")
        if kind == GGUFValueType.ARRAY:
            return self._array(key)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self._fail(f"metadata {key!r} has the unknown value type {kind}")
        return self._take(layout, f"metadata {key!r}")

    def _array(self, key: str) -> Any:
        kind = self._take(_UINT32, f"metadata {key!r}")
        count = self._take(_UINT64, f"metadata {key!r}")
        if kind == GGUFValueType.STRING:
            self._strings_left -= count
            if self._strings_left < 0 or count * 8 > self._end - self.position:
                raise self._fail(f"metadata {key!r} has an impossible count of {count} strings")
            return self._strings(count, f"an entry of metadata {key!r}")
        layout = _SCALARS.get(kind)
        if layout is None:  # arrays of arrays exist on paper only
            raise self._fail(f"metadata {key!r} is an array of the unsupported value type {kind}")
        nbytes = count * layout.size
        if nbytes > self._end - self.position or count > MAX_STRINGS:
            raise self._fail(f"metadata {key!r} has an impossible count of {count} values")
        # array, not numpy: comparing or testing a value of the wrong kind must not raise.
        values = array(_ARRAY_CODES.get(layout.format, layout.format[1]))
        values.frombytes(self._data[self.position : self.position + nbytes])
        self.position += nbytes
        return values

    def tensor_infos(self, count: int) -> list[tuple[str, tuple[int, ...], int, int]]:
        """(name, shape, type id, offset in the data section) of each tensor."""
        infos = []
        names: set[str] = set()
        for _ in range(count):
            name = self._string("a tensor name", MAX_KEY_BYTES)
            if name in names:
                raise self._fail(f"tensor {name} occurs twice")
            names.add(name)
            what = f"the entry of tensor {name}"
            dimensions = self._take(_UINT32, what)
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise self._fail(f"tensor {name} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
            shape = tuple(self._take(_UINT64, what) for _ in range(dimensions))[::-1]
            if 0 in shape:
                raise self._fail(f"tensor {name} has the empty shape {list(shape)}")
            infos.append((name, shape, self._take(_UINT32, what), self._take(_UINT64, what)))
        return infos
