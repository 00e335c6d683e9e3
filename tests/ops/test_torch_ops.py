"""torch.ops.inferx.*: schemas, fake implementations, torch.compile."""

from __future__ import annotations

import pytest
import torch
from op_checks import assert_same_bits

from inferx import ops

CASES = {
    "rms_norm": lambda: (torch.empty(3, 8), torch.randn(3, 8), torch.randn(8), 1e-5),
    "fused_add_rms_norm": lambda: (torch.randn(3, 8), torch.randn(3, 8), torch.randn(8), 1e-5),
    "silu_and_mul": lambda: (torch.empty(3, 4), torch.randn(3, 8)),
    "gelu_and_mul": lambda: (torch.empty(3, 4), torch.randn(3, 8)),
    "gelu_tanh_and_mul": lambda: (torch.empty(3, 4), torch.randn(3, 8)),
    "rotary_embedding": lambda: (
        torch.arange(3),
        torch.randn(3, 2, 8),
        torch.randn(3, 1, 8),
        8,
        torch.randn(4, 8),
        True,
    ),
    "embedding": lambda: (torch.empty(3, 8), torch.tensor([1, 0, 1]), torch.randn(2, 8)),
    "reshape_and_cache_flash": lambda: (
        torch.randn(3, 2, 8),
        torch.randn(3, 2, 8),
        torch.zeros(4, 8, 2, 8),
        torch.zeros(4, 8, 2, 8),
        torch.tensor([0, -1, 9]),
    ),
    "paged_attention": lambda: (
        torch.empty(3, 4, 8),
        torch.empty(3, 4),
        torch.randn(3, 4, 8),
        torch.randn(4, 8, 2, 8),
        torch.randn(4, 8, 2, 8),
        torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        torch.tensor([0, 1, 3], dtype=torch.int32),
        torch.tensor([9, 2], dtype=torch.int32),
        0.3,
    ),
    "merge_attn_states": lambda: (
        torch.empty(3, 2, 8),
        torch.empty(3, 2),
        torch.randn(3, 2, 8),
        torch.randn(3, 2),
        torch.randn(3, 2, 8),
        torch.randn(3, 2),
    ),
    "copy_blocks": lambda: ([torch.randn(3, 4)], [torch.randn(3, 4)], torch.tensor([[0, 1]])),
}


@pytest.mark.parametrize("name", list(CASES))
def test_schema_and_fake(name: str) -> None:
    """opcheck finds mutations that the schema does not tell of, and fakes that disagree with the kernel."""
    overload = getattr(torch.ops.inferx, name).default
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(overload, CASES[name](), test_utils=checks)


def test_key_may_be_none() -> None:
    query = torch.randn(3, 2, 8)
    positions, cache = torch.arange(3), torch.randn(4, 8)
    expected = query.clone()
    ops.rotary_embedding(positions, expected, None, 8, cache)
    torch.ops.inferx.rotary_embedding(positions, query, None, 8, cache, True)
    assert_same_bits(query, expected)


def layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    ops.fused_add_rms_norm(x, residual, weight, 1e-5)
    hidden = ops.rms_norm(x, weight, 1e-5)
    ops.rotary_embedding(torch.arange(x.shape[0]), hidden, None, 8, cache)
    return ops.silu_and_mul(hidden) + ops.gelu_and_mul(hidden) + ops.gelu_tanh_and_mul(hidden)


def test_compiled_code_gives_the_same() -> None:
    x, residual, weight, cache = torch.randn(3, 16), torch.randn(3, 16), torch.randn(16), torch.randn(4, 8)
    eager_arguments, compiled_arguments = (
        [tensor.clone() for tensor in (x, residual, weight, cache)] for _ in range(2)
    )
    expected = layer(*eager_arguments)
    actual = torch.compile(layer, backend="aot_eager", fullgraph=True)(*compiled_arguments)
    assert_same_bits(actual, expected)
    for after, before in zip(compiled_arguments, eager_arguments, strict=True):
        assert_same_bits(after, before)
