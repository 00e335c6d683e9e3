"""Mixture of experts around the experts: routing, sorting by expert, the sum over a token's experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from benchmarks.kernels.case import DTYPE_NAMES, Case, Cases, Target, Work

from inferx import ops


@dataclass(frozen=True)
class Model:
    name: str
    experts: int
    top_k: int
    hidden: int
    grouped: bool = False


MODELS = [
    Model("Mixtral", 8, 2, 4096),
    Model("Qwen3-30B", 128, 8, 2048),
    Model("DeepSeek-V3", 256, 8, 7168, grouped=True),
]
TOKENS = {"cpu": [1, 16, 256, 1024], "cuda": [1, 16, 256, 4096]}
BLOCK_SIZES = {1: 16, 16: 16, 256: 32}  # of the expert product's tiles; larger steps: 64


def cases(target: Target) -> Cases:
    for model in MODELS:
        for tokens in target.pick(TOKENS[target.device.type]):
            shape = f"T={tokens} E={model.experts} k={model.top_k} {model.name}"
            yield Case(
                "grouped_topk" if model.grouped else "topk_softmax",
                shape,
                partial(route, target, tokens, model),
            )
            yield Case("moe_align_block_size", shape, partial(align, target, tokens, model))
            for dtype in target.dtypes:
                shape = f"T={tokens} k={model.top_k} H={model.hidden} {DTYPE_NAMES[dtype]}"
                nbytes = 4.0 * tokens * (model.top_k + 1) * model.hidden
                yield Case("moe_sum", shape, partial(moe_sum, target, tokens, model, dtype), nbytes)


def torch_softmax(x: torch.Tensor, top_k: int) -> torch.Tensor:
    weights, _ = x.softmax(-1).topk(top_k)
    return weights / weights.sum(-1, keepdim=True)


def torch_grouped(x: torch.Tensor, top_k: int, bias: torch.Tensor) -> torch.Tensor:
    """DeepSeek-V3's: 8 groups, of which 4."""
    scores = x.sigmoid()
    choosing = (scores + bias).unflatten(1, (8, -1))
    groups = choosing.topk(2).values.sum(-1).topk(4).indices
    mask = torch.ones_like(choosing, dtype=torch.bool)
    mask.scatter_(1, groups[..., None].expand(-1, -1, choosing.shape[-1]), value=False)
    ids = choosing.masked_fill(mask, -torch.inf).flatten(1).topk(top_k).indices
    weights = scores.gather(1, ids)
    return weights / weights.sum(-1, keepdim=True) * 2.5


def route(target: Target, tokens: int, model: Model) -> Work:
    nbytes = 4.0 * tokens * (model.experts + 2 * model.top_k)
    device = target.device
    sets = [torch.randn(tokens, model.experts, device=device) for _ in range(target.copies(nbytes))]
    if not model.grouped:
        calls = [partial(ops.topk_softmax, x, model.top_k, renormalize=True) for x in sets]
        return Work(calls, nbytes, peers={"torch": [partial(torch_softmax, x, model.top_k) for x in sets]})
    bias = torch.rand(model.experts, device=device)
    grouped = partial(
        ops.grouped_topk,
        top_k=model.top_k,
        num_expert_group=8,
        topk_group=4,
        renormalize=True,
        scoring_func="sigmoid",
        e_score_correction_bias=bias,
        routed_scaling_factor=2.5,
    )
    peers = [partial(torch_grouped, x, model.top_k, bias) for x in sets]
    return Work([partial(grouped, x) for x in sets], nbytes, peers={"torch": peers})


def align(target: Target, tokens: int, model: Model) -> Work:
    """The peer sorts and counts, and pads nothing."""
    block_size = BLOCK_SIZES.get(tokens, 64)
    pairs = tokens * model.top_k
    most = pairs + min(pairs, model.experts) * (block_size - 1)
    nbytes = 4.0 * (pairs + most + most / block_size)
    scores = torch.rand(tokens, model.experts, device=target.device)
    ids = scores.topk(model.top_k).indices.int()
    sets = [ids.clone() for _ in range(target.copies(nbytes))]
    calls = [partial(ops.moe_align_block_size, x, block_size, model.experts) for x in sets]

    def torch_align(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = x.flatten()
        return torch.argsort(flat, stable=True), torch.bincount(flat, minlength=model.experts)

    return Work(calls, nbytes, peers={"torch": [partial(torch_align, x) for x in sets]})


def moe_sum(target: Target, tokens: int, model: Model, dtype: torch.dtype) -> Work:
    nbytes = float(tokens * (model.top_k + 1) * model.hidden * dtype.itemsize)
    shape = (tokens, model.top_k, model.hidden)
    sets = [torch.randn(shape, device=target.device).to(dtype) for _ in range(target.copies(nbytes))]
    outs = [torch.empty(tokens, model.hidden, device=target.device, dtype=dtype) for _ in sets]
    calls = [partial(ops.moe_sum, x, out) for x, out in zip(sets, outs, strict=True)]
    peers = [partial(torch.sum, x, 1, out=out) for x, out in zip(sets, outs, strict=True)]
    return Work(calls, nbytes, operations=float(tokens * model.top_k * model.hidden), peers={"torch": peers})
