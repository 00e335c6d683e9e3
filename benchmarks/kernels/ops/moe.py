"""Mixtures of experts: the experts' MLPs of a step, from routed tokens to their sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from benchmarks.kernels.case import DTYPE_NAMES, Call, Case, Cases, Target, Work
from torch import Tensor

from inferx import ops


@dataclass(frozen=True)
class Model:
    name: str
    experts: int
    top_k: int
    hidden: int
    width: int

    @property
    def weights(self) -> int:
        """Of one expert."""
        return 3 * self.hidden * self.width

    @property
    def scale(self) -> float:
        return self.hidden**-0.5


MODELS = {
    "cuda": [
        Model("Qwen3-30B-A3B", 128, 8, 2048, 768),
        Model("Mixtral-8x7B", 8, 2, 4096, 14336),
        Model("DeepSeek-V2-Lite", 64, 6, 2048, 1408),
    ],
    # A quarter of the experts, which is all the same to a step of few tokens.
    "cpu": [Model("Qwen3-30B-A3B/4", 32, 8, 2048, 768)],
}
TOKENS = {"cuda": [1, 8, 64, 512, 4096], "cpu": [1, 8, 64]}
# By the CPU's name of the type, what a weight takes; (block, bytes) of GGML's types.
PACKED = {"Q4_0": (32, 18), "Q8_0": (32, 34), "BF16": (1, 2)}


def cases(target: Target) -> Cases:
    kind = target.device.type
    for model in MODELS[kind][:1] if target.quick else MODELS[kind]:
        for tokens in target.pick(TOKENS[kind]):
            shape = f"{model.name} T={tokens}"
            if target.is_cuda:
                for dtype in target.dtypes:
                    yield Case(
                        "fused_moe",
                        f"{shape} {DTYPE_NAMES[dtype]}",
                        partial(on_device, target, model, tokens, dtype),
                        memory=model.experts * model.weights * dtype.itemsize,
                    )
            else:
                for packed in ("Q4_0",) if target.quick else PACKED:
                    yield Case(
                        "fused_moe", f"{shape} {packed}", partial(on_cpu, target, model, tokens, packed)
                    )


Routed = tuple[Tensor, Tensor, Tensor]  # x, weights, ids


def route(model: Model, tokens: int, device: torch.device) -> list[Routed]:
    """Uniform routing, another one in each set."""
    found = []
    for _ in range(16):
        chosen = torch.rand(tokens, model.experts, device=device).topk(model.top_k, dim=1)
        x = torch.randn(tokens, model.hidden, device=device)
        found.append((x, chosen.values.contiguous(), chosen.indices.to(torch.int32)))
    return found


def work(model: Model, sets: list[Routed], bytes_of_expert: float, calls: list[Call]) -> Work:
    """Bytes: the experts that a set touches, on average, and the tokens' rows in and out."""
    touched = sum(len(ids.unique()) for _, _, ids in sets) / len(sets)
    x, _, ids = sets[0]
    return Work(
        calls,
        touched * bytes_of_expert + 2 * x.nbytes,
        2.0 * ids.numel() * model.weights,
        tensor_cores=x.dtype != torch.float32,
    )


def on_device(target: Target, model: Model, tokens: int, dtype: torch.dtype) -> Work:
    size = (model.experts, 2 * model.width, model.hidden)
    w13 = torch.randn(size, device=target.device, dtype=dtype) * model.scale
    w2 = torch.randn(model.experts, model.hidden, model.width, device=target.device, dtype=dtype)
    sets = [(x.to(dtype), weights, ids) for x, weights, ids in route(model, tokens, target.device)]
    outs = [torch.empty_like(x) for x, _, _ in sets]
    calls: list[Call] = [
        partial(ops.fused_moe, x, w13, w2, weights, ids, out=out)
        for (x, weights, ids), out in zip(sets, outs, strict=True)
    ]
    result = work(model, sets, model.weights * dtype.itemsize, calls)
    result.peers["torch loop"] = [partial(loop_over_experts, x, w13, w2, *routed) for x, *routed in sets]
    return result


def on_cpu(target: Target, model: Model, tokens: int, packed: str) -> Work:
    w13 = random_experts(packed, (model.experts, 2 * model.width, model.hidden), parts=2)
    w2 = random_experts(packed, (model.experts, model.hidden, model.width), parts=1)
    sets = route(model, tokens, target.device)
    out = torch.empty(tokens, model.hidden)
    calls: list[Call] = [partial(ops.fused_moe, x, w13, w2, *routed, out=out) for x, *routed in sets]
    result = work(model, sets, (w13.nbytes + w2.nbytes) / model.experts, calls)
    if packed == "BF16":
        dense13, dense2 = (
            torch.stack([w.dequantize(e) for e in range(model.experts)]).bfloat16() for w in (w13, w2)
        )
        result.peers["torch loop"] = [
            partial(loop_over_experts, x.bfloat16(), dense13, dense2, *routed) for x, *routed in sets
        ]
    return result


def random_experts(packed: str, shape: tuple[int, int, int], parts: int) -> ops.PackedExperts:
    """Random bits; speed does not depend on the values."""
    block, size = PACKED[packed]
    e, n, k = shape
    if packed == "BF16":
        return ops.pack_experts((torch.randn(shape) * k**-0.5).bfloat16(), packed, shape, parts)
    data = torch.randint(0, 64, (e, n, k // block * size), dtype=torch.uint8)
    return ops.pack_experts(data, packed, shape, parts)


def loop_over_experts(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """What one writes without a grouped kernel: the touched experts one by one (asks the host which)."""
    out = torch.zeros_like(x)
    for e in ids.unique().tolist():
        tokens, choices = (ids == e).nonzero(as_tuple=True)
        gate, up = (x[tokens] @ w13[e].t()).chunk(2, dim=1)
        product = (torch.nn.functional.silu(gate) * up) @ w2[e].t()
        out.index_add_(0, tokens, product * weights[tokens, choices, None].to(x.dtype))
    return out
