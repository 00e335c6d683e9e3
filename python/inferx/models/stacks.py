"""Weights of many equal matrices: the experts of a layer, the heads of latent attention.

Matrix by matrix: beside the stack, memory holds one tensor of the checkpoint (and the file's own pages).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from inferx import ops
from inferx.errors import LoadError
from inferx.layers.mla import HeadMatrices
from inferx.layers.moe import Experts
from inferx.loader.checkpoint import RawTensor, TensorInfo
from inferx.models import dense

if TYPE_CHECKING:
    from inferx.models.weights import WeightPlan


def experts(
    plan: WeightPlan,
    prefix: str,
    num_experts: int,
    intermediate: int,
    hidden: int,
    *,
    top_k: int,
    bias: bool,
) -> Experts:
    """See ``WeightPlan.experts``.  The tensors of one part (gate, up, down) are of one type, or LoadError."""
    shapes = {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
    parts: dict[str, list[TensorInfo]] = {}
    biases: dict[str, list[TensorInfo]] = {part: [] for part in shapes}
    for part, shape in shapes.items():
        names = [f"{prefix}.{e}.{part}_proj" for e in range(num_experts)]
        parts[part] = [plan.declare(f"{name}.weight", shape) for name in names]
        if bias:
            biases[part] = [plan.declare(f"{name}.bias", shape[:1]) for name in names]
    per_expert = 3 * intermediate * hidden + (2 * intermediate + hidden if bias else 0)
    plan.note_idle((num_experts - top_k) * per_expert)
    layer = Experts()

    def fill() -> None:
        layer.w13 = _stack(plan, [parts["gate"], parts["up"]])
        layer.w2 = _stack(plan, [parts["down"]])
        if bias:
            layer.w13_bias = _bias_stack(plan, [biases["gate"], biases["up"]])
            layer.w2_bias = _bias_stack(plan, [biases["down"]])

    if not plan.placement.dense:
        for infos in parts.values():
            _check_one_type(plan, infos)
    plan.add_step(fill)
    return layer


def _check_one_type(plan: WeightPlan, infos: Sequence[TensorInfo]) -> None:
    first = infos[0]
    for info in infos:
        if plan.target(info) != plan.target(first):
            raise LoadError(
                f"{info.file}: tensor {info.name} is {info.dtype}, but {first.name} is {first.dtype}; the "
                "experts of a layer have to be of one type"
            )


def _stack(plan: WeightPlan, parts: Sequence[Sequence[TensorInfo]]) -> ops.PackedExperts | torch.Tensor:
    """[E, N, K]: the parts' rows under one another."""
    count, (rows, columns) = len(parts[0]), parts[0][0].shape
    if plan.placement.dense:
        target = plan.placement.empty(count, len(parts) * rows, columns)
        for e in range(count):
            for piece, infos in zip(target[e].split(rows), parts, strict=True):
                dense.fill(piece, plan.read(infos[e].name))
        return plan.count(target)
    shape = (count, len(parts) * rows, columns)
    packed = _packed(shape, [plan.target(infos[0]) for infos in parts], parts[0][0])
    for e in range(count):
        for part, infos in enumerate(parts):
            raw = plan.read(infos[e].name)
            _pack(packed, e, part, plan.converted(raw), raw.info)
    return plan.count(packed)


def _bias_stack(plan: WeightPlan, parts: Sequence[Sequence[TensorInfo]]) -> torch.Tensor:
    rows = [
        torch.cat([plan.read_vector(info.name) for info in of_expert])
        for of_expert in zip(*parts, strict=True)
    ]
    return plan.count(torch.stack(rows).to(plan.placement.device, plan.placement.dtype))


def latent_up(
    plan: WeightPlan, prefix: str, num_heads: int, rank: int, nope: int, value: int
) -> tuple[HeadMatrices, HeadMatrices]:
    """See ``WeightPlan.latent_up``."""
    w_uk, w_uv = HeadMatrices(), HeadMatrices()
    if plan.has(f"{prefix}.k_b_proj.weight"):
        keys = plan.declare(f"{prefix}.k_b_proj.weight", (num_heads * rank, nope))
        values = plan.declare(f"{prefix}.v_b_proj.weight", (num_heads * value, rank))

        def fill() -> None:
            w_uk.weight = _heads(plan, plan.read(keys.name), num_heads, slice(0, rank))
            w_uv.weight = _heads(plan, plan.read(values.name), num_heads, slice(0, value))
    else:
        both = plan.declare(f"{prefix}.kv_b_proj.weight", (num_heads * (nope + value), rank))

        def fill() -> None:
            raw = plan.read(both.name)
            w_uk.weight = _heads(plan, raw, num_heads, slice(0, nope), transposed=True)
            w_uv.weight = _heads(plan, raw, num_heads, slice(nope, nope + value))

    plan.add_step(fill)
    return w_uk, w_uv


def transposed_type(dtype: str) -> str:
    """What a matrix of ``dtype`` becomes when it is transposed: blocks of quantised values lie along rows."""
    return dtype if dtype in ("F32", "F16", "BF16") else "F32"


def _heads(
    plan: WeightPlan, raw: RawTensor, num_heads: int, rows: slice, *, transposed: bool = False
) -> ops.PackedExperts | torch.Tensor:
    """[heads, N, K]: those rows of each head of the tensor."""
    info = raw.info
    per_head, columns = info.shape[0] // num_heads, info.shape[1]
    height = rows.stop - rows.start
    if plan.placement.dense:
        whole = plan.placement.empty(*info.shape)
        dense.fill(whole, raw)
        heads = whole.view(num_heads, per_head, columns)[:, rows]
        return plan.count((heads.transpose(1, 2) if transposed else heads).contiguous())
    data, dtype = plan.converted(raw), plan.target(info)
    shape = (num_heads, columns, height) if transposed else (num_heads, height, columns)
    packed = _packed(shape, [transposed_type(dtype) if transposed else dtype], info)
    for head in range(num_heads):
        part = data[head * per_head + rows.start : head * per_head + rows.stop]
        if transposed:
            part = dense.dequantized(part, info, (height, columns)) if info.quantised else part
            part = part.t().contiguous()
        _pack(packed, head, 0, part, info)
    return plan.count(packed)


def _packed(shape: tuple[int, int, int], dtypes: Sequence[str], info: TensorInfo) -> ops.PackedExperts:
    try:
        return ops.PackedExperts(shape, dtypes)
    except ValueError as error:
        raise LoadError(f"{info.file}: tensor {info.name}: {error}") from error


def _pack(packed: ops.PackedExperts, index: int, part: int, data: torch.Tensor, info: TensorInfo) -> None:
    try:
        packed.pack(index, part, data)
    except ValueError as error:
        raise LoadError(f"{info.file}: tensor {info.name}: {error}") from error
