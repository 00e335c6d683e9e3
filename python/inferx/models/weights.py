"""From a checkpoint to weights in memory: declare what the model needs, check it all, then read it once.

A model asks a ``WeightPlan`` for its layers.  Each request is checked against the checkpoint's index at once
(a missing or wrongly shaped tensor ends the load before anything is read), and ``load`` then streams one
tensor at a time into the layers, so the peak is the weights plus the tensors of one layer object.  On a
device the host holds less than that: ``dense`` converts a tensor piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from inferx import ops
from inferx.errors import LoadError
from inferx.layers.attention import KVScales
from inferx.layers.linear import AnyLinear, Linear, MergedLinear
from inferx.layers.norm import RMSNorm
from inferx.layers.placement import CPU, Placement
from inferx.loader.checkpoint import Checkpoint, RawTensor, TensorInfo
from inferx.models import dense
from inferx.ops import AnyWeight, DenseWeight, PackedWeight

Progress = Callable[[int], None]

DTYPES = {
    "float32": ("F32", torch.float32),
    "bfloat16": ("BF16", torch.bfloat16),
    "float16": ("F16", torch.float16),
}
# Tensors that carry nothing the model does not derive itself.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
# Where checkpoints keep the scales of a float8 KV cache, below self_attn.
K_SCALES = ("k_scale", "k_proj.k_scale", "k_proj.output_scale")
V_SCALES = ("v_scale", "v_proj.v_scale", "v_proj.output_scale")
MAX_NAMES_IN_MESSAGE = 5


class Matrix:
    """A weight that more than one layer may use (an embedding table tied to the output head)."""

    __slots__ = ("weight",)

    weight: AnyWeight


class WeightPlan:
    """What one model reads from one checkpoint.

    dtype: "auto" keeps every tensor's stored type; "float32", "bfloat16" and "float16" convert matrices that
    are not quantised.  Norm weights and biases are float32 always.
    progress: called with the bytes read so far (as stored) after each tensor.
    placement: a dense one holds all matrices and biases in its dtype, whatever ``dtype`` says, and norm
    weights in float32, which the ops take beside any type.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: str = "auto",
        progress: Progress | None = None,
        placement: Placement = CPU,
        float8_cache: bool = False,
    ) -> None:
        if dtype != "auto" and dtype not in DTYPES:
            raise LoadError(f"dtype: expected auto, {', '.join(DTYPES)}, got {dtype!r}")
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._progress = progress
        self.placement = placement
        self._float8_cache = float8_cache
        self._steps: list[Callable[[], None]] = []
        self._declared: set[str] = set()
        self._bytes_read = 0
        self.source = checkpoint.path
        self.weight_bytes = 0  # of the weights in memory, complete after load()

    def linear(
        self, names: str | Sequence[str], sizes: int | Sequence[int], in_features: int, *, bias: bool = False
    ) -> AnyLinear:
        """One layer over ``NAME.weight`` [size, in_features] (and ``NAME.bias``) of each name, in order."""
        names = [names] if isinstance(names, str) else list(names)
        sizes = [sizes] if isinstance(sizes, int) else list(sizes)
        infos = [
            self._declare(f"{name}.weight", (size, in_features))
            for name, size in zip(names, sizes, strict=True)
        ]
        if bias:
            for name, size in zip(names, sizes, strict=True):
                self._declare(f"{name}.bias", (size,))
        groups = [
            list(group) for _, group in groupby(range(len(names)), key=lambda i: self._target(infos[i]))
        ]
        if len(groups) == 1:
            layer = Linear()
            self._add_fill(layer, names, bias)
            return layer
        merged = MergedLinear([sum(sizes[i] for i in group) for group in groups])
        for piece, group in zip(merged.pieces, groups, strict=True):
            self._add_fill(piece, [names[i] for i in group], bias)
        return merged

    def single(self, name: str, out_features: int, in_features: int, *, bias: bool = False) -> Linear:
        """``linear`` for one name."""
        layer = self.linear(name, out_features, in_features, bias=bias)
        assert isinstance(layer, Linear)
        return layer

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """``name`` [rows, columns], by itself."""
        self._declare(name, (rows, columns))
        target = Matrix()

        def fill() -> None:
            target.weight = self._weight([name])

        self._steps.append(fill)
        return target

    def norm(self, name: str, size: int, eps: float, offset: float = 0.0) -> RMSNorm:
        """The RMSNorm that multiplies by ``offset + name`` [size]."""
        self._declare(name, (size,))
        norm = RMSNorm(eps)

        def fill() -> None:
            weight = self._vector(name)
            if offset:
                weight += offset
            norm.weight = weight.to(self.placement.device)
            self.weight_bytes += norm.weight.nbytes

        self._steps.append(fill)
        return norm

    def kv_scales(self, prefix: str, num_kv_heads: int) -> KVScales:
        """The scales of a layer's float8 cache; without any where the checkpoint has none, or they are of no
        use."""
        scales = KVScales()
        for attribute, names in (("key", K_SCALES), ("value", V_SCALES)):
            for name in (f"{prefix}.{name}" for name in names):
                if name in self._checkpoint.tensors:
                    self._add_scale(scales, attribute, name, num_kv_heads)
        return scales

    def is_copy(self, name: str, other: str) -> bool:
        """Whether ``name`` is missing, or holds what ``other`` holds."""
        tensors = self._checkpoint.tensors
        if name not in tensors:
            return True
        if other not in tensors or tensors[name].shape != tensors[other].shape:
            return False
        first, second = self._checkpoint.read(name), self._checkpoint.read(other)
        return first.data.dtype == second.data.dtype and torch.equal(first.data, second.data)

    def ignore(self, name: str) -> None:
        """The tensor may be there and is not needed."""
        self._declared.add(name)

    def load(self) -> None:
        """Read everything declared.  LoadError when the checkpoint holds tensors that nobody declared."""
        unknown = [
            name
            for name in self._checkpoint.tensors
            if name not in self._declared and not name.endswith(IGNORED_SUFFIXES)
        ]
        if unknown:
            shown = ", ".join(sorted(unknown)[:MAX_NAMES_IN_MESSAGE])
            hidden = len(unknown) - MAX_NAMES_IN_MESSAGE
            raise LoadError(
                f"{self.source}: {len(unknown)} tensors that a model of this configuration does not have: "
                f"{shown}" + (f" and {hidden} more" if hidden > 0 else "")
            )
        steps, self._steps = self._steps, []
        for step in steps:
            step()

    def _declare(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._checkpoint.tensors.get(name)
        if info is None:
            raise LoadError(f"{self.source}: tensor {name} is missing")
        if tuple(info.shape) != shape:
            raise LoadError(
                f"{info.file}: tensor {name} has shape {list(info.shape)}, "
                f"the configuration implies {list(shape)}"
            )
        self._declared.add(name)
        return info

    def _target(self, info: TensorInfo) -> str:
        """The type that the tensor is packed from; on a device all have one."""
        if self.placement.dense:
            return "dense"
        return info.dtype if info.quantised or self._dtype == "auto" else DTYPES[self._dtype][0]

    def _add_scale(self, scales: KVScales, attribute: str, name: str, num_kv_heads: int) -> None:
        info = self._checkpoint.tensors[name]
        if math.prod(info.shape) not in (1, num_kv_heads):
            raise LoadError(
                f"{info.file}: tensor {name} has shape {list(info.shape)}, expected one scale or "
                f"{num_kv_heads}, one per KV head"
            )
        self.ignore(name)
        if not self._float8_cache:
            return

        def fill() -> None:
            values = self._vector(name).flatten()
            if not bool((values.isfinite() & (values > 0)).all()):
                raise LoadError(f"{info.file}: tensor {name}: expected scales above 0, got {values.tolist()}")
            setattr(scales, attribute, values.to(self.placement.device))

        self._steps.append(fill)

    def _add_fill(self, layer: Linear, names: list[str], bias: bool) -> None:
        self._steps.append(lambda: self._fill(layer, names, bias))

    def _fill(self, layer: Linear, names: list[str], bias: bool) -> None:
        layer.weight = self._weight([f"{name}.weight" for name in names])
        if bias:
            vectors = [self._vector(f"{name}.bias") for name in names]
            layer.bias = torch.cat(vectors).to(self.placement.device, self.placement.dtype)
            self.weight_bytes += layer.bias.nbytes

    def _weight(self, names: list[str]) -> AnyWeight:
        weight = self._dense(names) if self.placement.dense else self._pack(names)
        self.weight_bytes += weight.nbytes
        return weight

    def _dense(self, names: list[str]) -> DenseWeight:
        """The matrices under one another, each read when its turn comes."""
        infos = [self._checkpoint.tensors[name] for name in names]
        rows = [info.shape[0] for info in infos]
        target = self.placement.empty(sum(rows), infos[0].shape[1])
        for name, part in zip(names, target.split(rows), strict=True):
            dense.fill(part, self._read(name))
        return DenseWeight(target)

    def _pack(self, names: list[str]) -> PackedWeight:
        raws = [self._read(name) for name in names]
        tensors = [self._convert(raw) for raw in raws]
        data = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        rows = sum(raw.info.shape[0] for raw in raws)
        try:
            return ops.pack_weight(data, self._target(raws[0].info), (rows, raws[0].info.shape[1]))
        except ValueError as error:
            raise LoadError(f"{raws[0].info.file}: tensor {', '.join(names)}: {error}") from error

    def _vector(self, name: str) -> torch.Tensor:
        raw = self._read(name)
        if raw.info.quantised:
            raise LoadError(
                f"{raw.info.file}: tensor {name} is {raw.info.dtype}, expected an unquantised vector"
            )
        return raw.data.to(torch.float32, copy=True)

    def _read(self, name: str) -> RawTensor:
        raw = self._checkpoint.read(name)
        self._bytes_read += raw.data.nbytes
        if self._progress is not None:
            self._progress(self._bytes_read)
        return raw

    def _convert(self, raw: RawTensor) -> torch.Tensor:
        if self._target(raw.info) == raw.info.dtype:
            return raw.data
        return dense.converted(raw.data, DTYPES[self._dtype][1], raw.info)
