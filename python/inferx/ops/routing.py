"""Mixture of experts around the experts: who gets a token, in which order, and the sum of what they say.

The router's logits become weights and ids of experts in one pass, as in the sparsely gated layer of Shazeer
et al. (2017): Mixtral, Qwen and OLMoE take the best of a softmax, DeepSeek-V2 (2024) the best within the best
groups of experts, DeepSeek-V3 (2024) scores by a sigmoid and chooses with a bias that balances the load
without weighing.  CPU and device share the arithmetic (csrc/moe_routing_math.h): the same experts, the same
bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferx.ops._lib import check_number, check_tensor, is_compiling, kernels_for, register

__all__ = ["grouped_topk", "moe_align_block_size", "moe_sum", "topk_sigmoid", "topk_softmax"]

_topk_softmax = register(
    "topk_softmax(Tensor(a!) topk_weights, Tensor(b!) topk_ids, Tensor gating_output, bool renormalize, "
    "Tensor? e_score_correction_bias, float routed_scaling_factor) -> ()"
)
_topk_sigmoid = register(
    "topk_sigmoid(Tensor(a!) topk_weights, Tensor(b!) topk_ids, Tensor gating_output, bool renormalize, "
    "Tensor? e_score_correction_bias, float routed_scaling_factor) -> ()"
)
_grouped_topk = register(
    "grouped_topk(Tensor(a!) topk_weights, Tensor(b!) topk_ids, Tensor gating_output, int num_expert_group, "
    "int topk_group, bool renormalize, str scoring_func, Tensor? e_score_correction_bias, "
    "float routed_scaling_factor) -> ()"
)
_moe_align_block_size = register(
    "moe_align_block_size(Tensor(a!) sorted_token_ids, Tensor(b!) expert_ids, "
    "Tensor(c!) num_tokens_post_padded, Tensor topk_ids, int num_experts, int block_size) -> ()"
)
_moe_sum = register("moe_sum(Tensor(a!) out, Tensor input) -> ()")

Routing = tuple[Tensor, Tensor]

# As in csrc/moe_routing_params.h and csrc/moe_align_params.h.
_MAX_TOP_K = 32
_MAX_GROUPS = 32
_MAX_EXPERTS = 512


def _outputs(op: str, gating_output: Tensor, top_k: int, out: Routing | None) -> Routing:
    check_tensor(op, "gating_output", gating_output, 2)
    check_number(op, "top_k", top_k, _MAX_TOP_K)
    shape = (gating_output.shape[0], top_k)
    if out is None:
        device = gating_output.device
        return (
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.int32, device=device),
        )
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(
            f"{op}: out: expected a pair of tensors (topk_weights, topk_ids) or None, got {_kind(out)}"
        )
    for name, tensor in zip(("out[0]", "out[1]"), out, strict=True):
        check_tensor(op, name, tensor)
        if tensor.shape != shape:
            raise ValueError(f"{op}: {name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    return out[0], out[1]


def _kind(out: object) -> str:
    return f"a {type(out).__name__} of {len(out)}" if isinstance(out, (tuple, list)) else str(type(out))


def topk_softmax(
    gating_output: Tensor,
    top_k: int,
    *,
    renormalize: bool = False,
    e_score_correction_bias: Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    out: Routing | None = None,
) -> Routing:
    """The best experts of each token by ``softmax(gating_output)`` over all experts.

    Args:
        gating_output: the router's logits ``[T, E]``, float32, float16 or bfloat16, contiguous last
            dimension; 1 <= E <= 512.
        top_k: experts per token, 1 to min(E, 32).
        renormalize: divide the weights by their sum.  That is a softmax over the chosen logits.
        e_score_correction_bias: float32 ``[E]``, added to the scores that choose, not to the weights.
        routed_scaling_factor: multiplies the weights in the end; finite.
        out: (topk_weights, topk_ids) to write to, contiguous.

    Returns:
        ``topk_weights`` float32 [T, top_k] and ``topk_ids`` int32 [T, top_k], best first by the score that
        chooses (without a bias: by the logits); of equal ones the lower id first.  Ids of a row are always
        distinct.  Logits of +inf share all of the weight, and equal ones (also -inf) have equal weights.  A
        row with a NaN has NaN weights.  Weights whose sum is 0 stay 0 when renormalised.  A row's bits depend
        on that row alone, and are the same on CPU and device.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong, top_k is out of its range, or memory overlaps.
        TypeError: top_k is no int, or out no pair of tensors.
    """
    weights, ids = _outputs("topk_softmax", gating_output, top_k, out)
    call = _topk_softmax if is_compiling() else kernels_for(gating_output).topk_softmax
    call(weights, ids, gating_output, renormalize, e_score_correction_bias, routed_scaling_factor)
    return weights, ids


def topk_sigmoid(
    gating_output: Tensor,
    top_k: int,
    *,
    renormalize: bool = False,
    e_score_correction_bias: Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    out: Routing | None = None,
) -> Routing:
    """:func:`topk_softmax` with ``sigmoid(gating_output)`` as the score of each expert by itself."""
    weights, ids = _outputs("topk_sigmoid", gating_output, top_k, out)
    call = _topk_sigmoid if is_compiling() else kernels_for(gating_output).topk_sigmoid
    call(weights, ids, gating_output, renormalize, e_score_correction_bias, routed_scaling_factor)
    return weights, ids


def grouped_topk(
    gating_output: Tensor,
    top_k: int,
    *,
    num_expert_group: int,
    topk_group: int,
    renormalize: bool,
    scoring_func: str = "softmax",
    e_score_correction_bias: Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    out: Routing | None = None,
) -> Routing:
    """The best experts within each token's best groups of neighbouring experts.

    A group's score is that of its best expert (DeepSeek-V2), or, with a bias, the sum of its two best biased
    scores (DeepSeek-V3); of equal groups the lower one is taken.  The rest is :func:`topk_softmax`.

    Args:
        num_expert_group: groups, 1 to 32; they divide E evenly.
        topk_group: groups to choose from, 1 to num_expert_group; they have to hold top_k experts.
        scoring_func: "softmax" (over all experts, whatever their group) or "sigmoid".

    Raises:
        ValueError, TypeError: as there, and for groups that do not fit.
    """
    op = "grouped_topk"
    check_number(op, "num_expert_group", num_expert_group, _MAX_GROUPS, " groups that divide the experts")
    check_number(op, "topk_group", topk_group, num_expert_group, ", num_expert_group")
    weights, ids = _outputs(op, gating_output, top_k, out)
    call = _grouped_topk if is_compiling() else kernels_for(gating_output).grouped_topk
    call(
        weights,
        ids,
        gating_output,
        num_expert_group,
        topk_group,
        renormalize,
        scoring_func,
        e_score_correction_bias,
        routed_scaling_factor,
    )
    return weights, ids


def moe_align_block_size(
    topk_ids: Tensor, block_size: int, num_experts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorts token-expert pairs by expert, so that every block of ``block_size`` of them has one expert.

    Args:
        topk_ids: int32 ``[T, k]``, contiguous.  Pairs whose id is not in [0, num_experts) are left out.
        block_size: at least 1; the padded pairs must be fewer than 2**31.
        num_experts: 1 to 512.

    Returns:
        ``sorted_token_ids`` int32 [P]: the numbers t * k + j of the pairs, by rising expert and within an
        expert by rising number; each expert's are padded to whole blocks with T * k.
        ``expert_ids`` int32 [ceil(P / block_size)]: the expert of each block.
        ``num_tokens_post_padded`` int32 [1]: how many of the P are in use.  Behind them stand T * k and -1.
        P = T k + min(T k, num_experts) (block_size - 1) is what the pairs can need at most, so that nothing
        waits for the device.

    Raises:
        ValueError: a shape, dtype or stride is wrong, or a size is out of its range.
        TypeError: a size is no int.
    """
    op = "moe_align_block_size"
    check_tensor(op, "topk_ids", topk_ids)
    check_number(op, "block_size", block_size, 2**31 - 1)
    check_number(op, "num_experts", num_experts, _MAX_EXPERTS)
    pairs = topk_ids.numel()
    most = pairs + min(pairs, num_experts) * (block_size - 1)
    if most >= 2**31:
        raise ValueError(f"{op}: topk_ids: expected pairs that pad to less than 2**31, got {most}")
    sizes = (most, -(-most // block_size), 1)
    sorted_ids, expert_ids, count = (
        torch.empty(size, dtype=torch.int32, device=topk_ids.device) for size in sizes
    )
    call = _moe_align_block_size if is_compiling() else kernels_for(topk_ids).moe_align_block_size
    call(sorted_ids, expert_ids, count, topk_ids, num_experts, block_size)
    return sorted_ids, expert_ids, count


def moe_sum(input: Tensor, out: Tensor | None = None) -> Tensor:
    """The sum over dimension 1: what a token's experts contribute.

    Args:
        input: ``[T, k, H]``, float32, float16 or bfloat16; any strides with a contiguous last dimension.
        out: ``[T, H]`` of input's dtype, apart from it in memory.  Allocated when None.

    Returns:
        ``out``: summed in float32 in order of k, and rounded once.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong, or memory overlaps.
    """
    if out is None:
        check_tensor("moe_sum", "input", input, 3)
        out = torch.empty((input.shape[0], input.shape[-1]), dtype=input.dtype, device=input.device)
    (_moe_sum if is_compiling() else kernels_for(input).moe_sum)(out, input)
    return out
