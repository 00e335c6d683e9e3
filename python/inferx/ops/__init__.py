"""The kernels, one function per op.  Importing this also defines ``torch.ops.inferx.*``.

Ops are for inference: they do not record gradients.  They read memory as it is: views with a pending
negation or conjugation (``torch._neg_view``, ``x.conj().imag``) are to be resolved first.  Like torch's own
CPU ops they run on OpenMP threads, which a forked child does not have: start processes with spawn.
"""

from __future__ import annotations

from inferx.ops.activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from inferx.ops.attention import merge_attn_states, paged_attention
from inferx.ops.cache import (
    copy_blocks,
    gather_blocks,
    reshape_and_cache_flash,
    rope_and_cache,
    scatter_blocks,
    swap_blocks,
)
from inferx.ops.cascade import cascade_attention
from inferx.ops.embedding import embedding
from inferx.ops.experts import PackedExperts, batched_linear, pack_experts, packed_experts_nbytes
from inferx.ops.fused_moe import fused_moe
from inferx.ops.info import build_info, get_num_threads, set_num_threads
from inferx.ops.linear import AnyWeight, DenseWeight, PackedWeight, linear, pack_weight, packed_nbytes
from inferx.ops.mla import concat_and_cache_mla, mla_attention
from inferx.ops.norm import fused_add_rms_norm, rms_norm
from inferx.ops.rotary import rotary_embedding
from inferx.ops.routing import (
    grouped_topk,
    moe_align_block_size,
    moe_sum,
    topk_sigmoid,
    topk_softmax,
)
from inferx.ops.sampling import (
    SampleStatus,
    apply_logits_processors,
    apply_token_bitmask,
    sample_tokens,
    take_largest,
    token_logprobs,
)
from inferx.ops.step_program import Codes, Columns, StepInput, StepProgram

__all__ = [
    "AnyWeight",
    "Codes",
    "Columns",
    "DenseWeight",
    "PackedExperts",
    "PackedWeight",
    "SampleStatus",
    "StepInput",
    "StepProgram",
    "apply_logits_processors",
    "apply_token_bitmask",
    "batched_linear",
    "build_info",
    "cascade_attention",
    "concat_and_cache_mla",
    "copy_blocks",
    "embedding",
    "fused_add_rms_norm",
    "fused_moe",
    "gather_blocks",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "get_num_threads",
    "grouped_topk",
    "linear",
    "merge_attn_states",
    "mla_attention",
    "moe_align_block_size",
    "moe_sum",
    "pack_experts",
    "pack_weight",
    "packed_experts_nbytes",
    "packed_nbytes",
    "paged_attention",
    "reshape_and_cache_flash",
    "rms_norm",
    "rope_and_cache",
    "rotary_embedding",
    "sample_tokens",
    "scatter_blocks",
    "set_num_threads",
    "silu_and_mul",
    "swap_blocks",
    "take_largest",
    "token_logprobs",
    "topk_sigmoid",
    "topk_softmax",
]
