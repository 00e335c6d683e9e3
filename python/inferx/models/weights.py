"""From a checkpoint to weights in memory: declare what the model needs, check it all, then read it once.

A model asks a ``WeightPlan`` for its layers.  Each request is checked against the checkpoint's index at once
(a missing or wrongly shaped tensor ends the load before anything is read), and ``load`` then streams one
tensor at a time into the layers, so the peak is the weights plus the tensors of one layer object.  On a
device the host holds less than that: ``dense`` converts a tensor piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

import torch

from inferx import ops
from inferx.errors import LoadError
from inferx.layers.attention import KVScales
from inferx.layers.linear import AnyLinear, Linear, MergedLinear
from inferx.layers.mla import HeadMatrices
from inferx.layers.moe import Experts
from inferx.layers.norm import RMSNorm
from inferx.layers.placement import CPU, Placement
from inferx.layers.vector import Vector
from inferx.loader.block_scales import check_scales
from inferx.loader.checkpoint import Checkpoint, RawTensor, TensorInfo
from inferx.models import dense, stacks
from inferx.ops import AnyWeight, DenseWeight, PackedWeight

Progress = Callable[[int], None]


class _InMemory(Protocol):
    @property
    def nbytes(self) -> int: ...


Counted = TypeVar("Counted", bound=_InMemory)

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
# Rows of gate and up together, from which on the CPU takes both at once.
GATED_MULTIPLE = 64


@dataclass(frozen=True)
class ParameterCount:
    """total: elements of all weights, which take the memory.  active: of those that one token computes with:
    everything but the experts that its router does not choose.  The embedding table and the head count in
    whole in both, as in the figures that models are published with, and once where they are one."""

    total: int
    active: int


class Matrix:
    """A weight that more than one layer may use (an embedding table tied to the output head)."""

    __slots__ = ("int8", "weight")

    weight: AnyWeight
    int8: bool  # as a linear layer: see Linear


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
        self._scratch = torch.empty(0, dtype=torch.uint8)  # for matrices that are packed together
        self._total = self._idle = 0  # parameters
        self.source = checkpoint.path
        self.weight_bytes = 0  # of the weights in memory, complete after load()

    def linear(
        self,
        names: str | Sequence[str],
        sizes: int | Sequence[int],
        in_features: int,
        *,
        bias: bool = False,
        gated: bool = False,
    ) -> AnyLinear:
        """One layer over ``NAME.weight`` [size, in_features] (and ``NAME.bias``) of each name, in order.

        gated: the names are a gate and what it is multiplied with.
        """
        names = [names] if isinstance(names, str) else list(names)
        sizes = [sizes] if isinstance(sizes, int) else list(sizes)
        infos = [
            self.declare(f"{name}.weight", (size, in_features))
            for name, size in zip(names, sizes, strict=True)
        ]
        if bias:
            for name, size in zip(names, sizes, strict=True):
                self.declare(f"{name}.bias", (size,))
        groups = [list(group) for _, group in groupby(range(len(names)), key=lambda i: self.target(infos[i]))]
        if len(groups) == 1:
            layer = Linear()
            self._add_fill(layer, names, bias, gated)
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
        self.declare(name, (rows, columns))
        target = Matrix()

        def fill() -> None:
            target.weight = self._weight([name])
            target.int8 = self._takes_int8(target.weight)

        self.add_step(fill)
        return target

    def float32(self, name: str, rows: int, columns: int) -> Linear:
        """``NAME.weight`` [rows, columns] for float32 inputs, on a device too."""
        self.declare(f"{name}.weight", (rows, columns))
        layer = Linear()

        def fill() -> None:
            if not self.placement.dense:
                layer.weight = self._weight([f"{name}.weight"])
                return
            target = torch.empty(rows, columns, device=self.placement.device)
            dense.fill(target, self.read(f"{name}.weight"))
            layer.weight = self.count(DenseWeight(target))

        self.add_step(fill)
        return layer

    def vector(self, name: str, size: int) -> Vector:
        """``name`` [size] as float32."""
        self.declare(name, (size,))
        vector = Vector()

        def fill() -> None:
            vector.values = self.count(self.read_vector(name).to(self.placement.device))

        self.add_step(fill)
        return vector

    def experts(
        self, prefix: str, num_experts: int, intermediate: int, hidden: int, *, top_k: int, bias: bool = False
    ) -> Experts:
        """``PREFIX.{e}.{gate,up,down}_proj`` of all experts as two stacks; top_k of them work on a token."""
        return stacks.experts(self, prefix, num_experts, intermediate, hidden, top_k=top_k, bias=bias)

    def latent_up(
        self, prefix: str, num_heads: int, rank: int, nope: int, value: int
    ) -> tuple[HeadMatrices, HeadMatrices]:
        """W_UK, transposed, and W_UV of latent attention: from ``PREFIX.kv_b_proj``, or from
        ``PREFIX.k_b_proj`` and ``v_b_proj``."""
        return stacks.latent_up(self, prefix, num_heads, rank, nope, value)

    def norm(self, name: str, size: int, eps: float, offset: float = 0.0) -> RMSNorm:
        """The RMSNorm that multiplies by ``offset + name`` [size]."""
        self.declare(name, (size,))
        norm = RMSNorm(eps)

        def fill() -> None:
            weight = self.read_vector(name)
            if offset:
                weight += offset
            norm.weight = self.count(weight.to(self.placement.device))

        self.add_step(fill)
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

    def has(self, name: str) -> bool:
        return name in self._checkpoint.tensors

    def ignore(self, name: str) -> None:
        """The tensor may be there and is not needed."""
        self._declared.add(name)

    def load(self) -> None:
        """Read everything declared.  LoadError when the checkpoint holds tensors that nobody declared, other
        than empty ones (transformers saves shared experts of size 0)."""
        unknown = [
            name
            for name, info in self._checkpoint.tensors.items()
            if name not in self._declared and not name.endswith(IGNORED_SUFFIXES) and 0 not in info.shape
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
        self._scratch = torch.empty(0, dtype=torch.uint8)

    @property
    def parameters(self) -> ParameterCount:
        """Of everything declared."""
        return ParameterCount(self._total, self._total - self._idle)

    # -- For those who declare layers ------------------------------------------------------------------------

    def declare(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor will be read.  LoadError when the checkpoint has none of this shape."""
        info = self._checkpoint.tensors.get(name)
        if info is None:
            raise LoadError(f"{self.source}: tensor {name} is missing")
        if tuple(info.shape) != shape:
            raise LoadError(
                f"{info.file}: tensor {name} has shape {list(info.shape)}, "
                f"the configuration implies {list(shape)}"
            )
        self._declared.add(name)
        self.add_parameters(shape)
        return info

    def add_parameters(self, shape: tuple[int, ...]) -> None:
        self._total += math.prod(shape)

    def note_idle(self, count: int) -> None:
        """That many of the declared parameters do not work on a token."""
        self._idle += count

    def add_step(self, step: Callable[[], None]) -> None:
        """To be run by ``load``, in the order of declaration."""
        self._steps.append(step)

    def count(self, weight: Counted) -> Counted:
        """A weight that is in memory now."""
        self.weight_bytes += weight.nbytes
        return weight

    def target(self, info: TensorInfo) -> str:
        """The type that the tensor is packed from; on a device all have one."""
        if self.placement.dense:
            return "dense"
        return info.dtype if info.quantised or self._dtype == "auto" else DTYPES[self._dtype][0]

    def read_vector(self, name: str) -> torch.Tensor:
        """A copy of its own, float32."""
        raw = self.read(name)
        if raw.info.quantised:
            raise LoadError(
                f"{raw.info.file}: tensor {name} is {raw.info.dtype}, expected an unquantised vector"
            )
        return raw.data.to(torch.float32, copy=True)

    def read(self, name: str) -> RawTensor:
        raw = self._checkpoint.read(name)
        if raw.info.quantised:
            check_scales(raw)
        elif raw.data.numel():
            # Both of them are NaN where one value is; and it takes no memory.
            low, high = raw.data.aminmax()
            if not math.isfinite(low) or not math.isfinite(high):
                raise LoadError(
                    f"{raw.info.file}: tensor {name}: expected finite values, got {low:.4g} to {high:.4g}"
                )
        self._bytes_read += raw.data.nbytes
        if self._progress is not None:
            self._progress(self._bytes_read)
        return raw

    def converted(self, raw: RawTensor) -> torch.Tensor:
        """In the type of ``target``."""
        if self.target(raw.info) == raw.info.dtype:
            return raw.data
        return dense.converted(raw.data, DTYPES[self._dtype][1], raw.info)

    # -----------------------------------------------------------------------------------------------------

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
            values = self.read_vector(name).flatten()
            if not bool((values.isfinite() & (values > 0)).all()):
                raise LoadError(f"{info.file}: tensor {name}: expected scales above 0, got {values.tolist()}")
            setattr(scales, attribute, values.to(self.placement.device))

        self.add_step(fill)

    def _add_fill(self, layer: Linear, names: list[str], bias: bool, gated: bool = False) -> None:
        self.add_step(lambda: self._fill(layer, names, bias, gated))

    def _fill(self, layer: Linear, names: list[str], bias: bool, gated: bool) -> None:
        layer.weight = self._weight([f"{name}.weight" for name in names], gated)
        layer.int8 = self._takes_int8(layer.weight)
        if bias:
            vectors = [self.read_vector(f"{name}.bias") for name in names]
            layer.bias = self.count(torch.cat(vectors).to(self.placement.device, self.placement.dtype))

    def _takes_int8(self, weight: AnyWeight) -> bool:
        return self.placement.int8 and weight.dtype not in {name for name, _ in DTYPES.values()}

    def _weight(self, names: list[str], gated: bool = False) -> AnyWeight:
        return self.count(self._dense(names) if self.placement.dense else self._pack(names, gated))

    def _dense(self, names: list[str]) -> DenseWeight:
        """The matrices under one another, each read when its turn comes."""
        infos = [self._checkpoint.tensors[name] for name in names]
        rows = [info.shape[0] for info in infos]
        target = self.placement.empty(sum(rows), infos[0].shape[1])
        for name, part in zip(names, target.split(rows), strict=True):
            dense.fill(part, self.read(name))
        return DenseWeight(target)

    def _pack(self, names: list[str], gated: bool) -> PackedWeight:
        raws = [self.read(name) for name in names]
        tensors = [self.converted(raw) for raw in raws]
        data = tensors[0] if len(tensors) == 1 else self._under_one_another(tensors)
        rows = sum(raw.info.shape[0] for raw in raws)
        try:
            shape = (rows, raws[0].info.shape[1])
            alternate = gated and rows % GATED_MULTIPLE == 0
            return ops.pack_weight(data, self.target(raws[0].info), shape, halves_alternate=alternate)
        except ValueError as error:
            raise LoadError(f"{raws[0].info.file}: tensor {', '.join(names)}: {error}") from error

    def _under_one_another(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Matrices of one width and type as one, in memory that the next ones reuse: fresh pages cost more
        than the copy."""
        nbytes = sum(tensor.nbytes for tensor in tensors)
        if self._scratch.nbytes < nbytes:
            self._scratch = torch.empty(nbytes, dtype=torch.uint8)
        shape = (sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1])
        return torch.cat(tensors, out=self._scratch[:nbytes].view(tensors[0].dtype).view(shape))
