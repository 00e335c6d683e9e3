"""The instructions that kernels were written for, looked for in their PTX by tools/kernel_report.py.

A kernel that silently falls back to something slower (element-wise loads for vectors, plain loads for
cp.async, arithmetic for tensor cores) computes the same, so no test of its results finds that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

VECTOR_LOAD = r"ld\.(global|param)(\.nc)?(\.\w+)*\.v4|ld(\.\w+)*\.v4"
VECTOR_STORE = r"st(\.\w+)*\.v4"
CP_ASYNC = r"cp\.async\.cg\.shared\.global"
LDMATRIX = r"ldmatrix\.sync\.aligned\.m8n8\.x4"
MMA = r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16\.bf16|f16\.f16)\.f32"

# By the beginning of a kernel's name: patterns of which each must be there.
REQUIRED: dict[str, tuple[str, ...]] = {
    "rms_norm_kernel": (VECTOR_LOAD, VECTOR_STORE),
    "fused_add_rms_norm_kernel": (VECTOR_LOAD, VECTOR_STORE),
    "activate_and_mul_kernel": (VECTOR_LOAD, VECTOR_STORE),
    "embedding_kernel<uint4": (VECTOR_LOAD, VECTOR_STORE),
    "merge_states_kernel": (VECTOR_LOAD, VECTOR_STORE),
    "moe_routing_kernel<float, 4": (VECTOR_LOAD,),
    "moe_routing_kernel<__nv_bfloat16, 8": (VECTOR_LOAD,),
    "moe_sum_kernel": (VECTOR_LOAD, VECTOR_STORE),
    "copy_blocks_kernel<16": (VECTOR_LOAD, VECTOR_STORE),
    "swap_blocks_kernel<16": (VECTOR_LOAD, VECTOR_STORE),
    "gather_blocks_kernel<16": (VECTOR_LOAD, VECTOR_STORE),
    "reshape_and_cache_kernel<__nv_bfloat16, __nv_bfloat16, 8": (VECTOR_LOAD, VECTOR_STORE),
    "concat_and_cache_mla_kernel<__nv_bfloat16, 8": (VECTOR_LOAD, VECTOR_STORE),
    "rope_and_cache_kernel<__nv_bfloat16, __nv_bfloat16, 8": (VECTOR_LOAD, VECTOR_STORE),
    "rotary_embedding_kernel<__nv_bfloat16, 8": (VECTOR_LOAD, VECTOR_STORE),
    "sample_tokens_kernel": (VECTOR_LOAD,),
    "apply_token_bitmask_kernel": (VECTOR_STORE,),
    "decode::attention_decode_kernel": (CP_ASYNC, LDMATRIX, MMA),
    "prefill::attention_prefill_kernel": (CP_ASYNC, LDMATRIX, MMA),
    "mla::mla_attention_mma_kernel": (CP_ASYNC, LDMATRIX, MMA),
    "moe_gemm::moe_gemm_kernel": (CP_ASYNC, LDMATRIX, MMA),
}

# In no kernel: double-precision arithmetic is 1/64 as fast on most cards, and local memory means that an
# array was indexed at run time.  Kernels that mean it are named.
FORBIDDEN = {
    "double precision": r"\b(add|mul|fma|div|sqrt)(\.rn)?\.f64",
    "local memory": r"\b(ld|st)\.local",
}
ALLOWED: dict[str, tuple[str, ...]] = {
    # The normaliser's logarithm and the exact products of top_p, once a row by one thread.
    "sample_tokens_kernel": ("double precision",),
    "token_logprobs_kernel": ("double precision",),
}


def stale_names(kernels: Iterable[str]) -> list[str]:
    """Names above that are the beginning of no kernel's: what they ask for is not looked at any more."""
    names = list(kernels)
    return [name for name in (*REQUIRED, *ALLOWED) if not any(k.startswith(name) for k in names)]


def problems_of(kernel: str, arch: str, ptx: str) -> list[str]:
    """What is missing from, or too much in, the PTX of one kernel."""
    del arch
    problems = []
    for prefix, patterns in REQUIRED.items():
        if kernel.startswith(prefix):
            problems += [f"no instruction matches {p}" for p in patterns if not re.search(p, ptx)]
    allowed = [what for prefix, names in ALLOWED.items() if kernel.startswith(prefix) for what in names]
    problems += [what for what, p in FORBIDDEN.items() if what not in allowed and re.search(p, ptx)]
    return problems
