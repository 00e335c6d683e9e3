"""rotary_embedding: float64, transformers' arithmetic bit for bit, layouts, partial rotation, errors."""

from __future__ import annotations

import pytest
import torch
from op_checks import FLOATS, assert_close, assert_same_bits
from torch import Tensor

from inferx import ops

MAX_POSITION = 300


def cos_sin_cache(rot_dim: int, positions: int = MAX_POSITION) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, rot_dim, 2).double() / max(rot_dim, 1))
    angles = torch.arange(positions).double()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float()


def reference(positions: Tensor, x: Tensor, cache: Tensor, is_neox: bool, dtype: torch.dtype) -> Tensor:
    """x [T, H, D], computed in ``dtype``."""
    rot_dim = cache.shape[1]
    cos, sin = cache[positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
    turned, rest = x[..., :rot_dim].to(dtype), x[..., rot_dim:].to(dtype)
    if is_neox:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, rest], dim=-1)


SHAPES = [  # tokens, query heads, key heads, head size, rot_dim
    (0, 2, 1, 64, 64),
    (1, 9, 3, 64, 64),
    (5, 14, 2, 64, 64),
    (7, 4, 4, 80, 80),
    (3, 2, 1, 96, 96),
    (3, 3, 1, 128, 128),
    (3, 1, 1, 256, 256),
    (4, 3, 2, 96, 72),  # partial, as Phi-3
    (4, 3, 2, 80, 20),
    (4, 2, 1, 6, 2),
    (4, 2, 1, 33, 10),  # odd head size
    (2, 2, 1, 64, 0),
    (200, 2, 1, 24, 22),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(shape: tuple[int, ...], is_neox: bool, dtype: torch.dtype) -> None:
    tokens, q_heads, k_heads, head_size, rot_dim = shape
    cache = cos_sin_cache(rot_dim)
    positions = torch.randint(0, MAX_POSITION, (tokens,))
    query = torch.randn(tokens, q_heads, head_size).to(dtype)
    key = torch.randn(tokens, k_heads, head_size).to(dtype)
    q, k, p, c = query.clone(), key.clone(), positions.clone(), cache.clone()
    ops.rotary_embedding(positions, q, k, head_size, cache, is_neox)
    for after, before in ((q, query), (k, key)):
        exact = reference(positions, before, cache, is_neox, torch.float64)
        # Two products of size |x| may cancel, so the error is against the pair, not the result.
        assert_close(after, exact, float32_eps=2, floor=4.0)
        assert_same_bits(after, reference(positions, before, cache, is_neox, torch.float32).to(dtype))
        assert_same_bits(after[..., rot_dim:], before[..., rot_dim:])
    assert torch.equal(p, positions)
    assert torch.equal(c, cache)


def test_transformers_bits() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    tokens, heads, head_size = 11, 3, 64
    positions = torch.randint(0, MAX_POSITION, (tokens,))
    cache = cos_sin_cache(head_size)
    query, key = torch.randn(tokens, heads, head_size), torch.randn(tokens, 1, head_size)
    cos, sin = (torch.cat([half, half], dim=-1)[None] for half in cache[positions].chunk(2, dim=-1))
    q, k = llama.apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], cos, sin)
    ops.rotary_embedding(positions, query, key, head_size, cache)
    assert_same_bits(query, q[0].transpose(0, 1))
    assert_same_bits(key, k[0].transpose(0, 1))


@pytest.mark.parametrize("is_neox", [True, False])
def test_two_dimensions_key_none_and_slices_of_a_fused_qkv(is_neox: bool) -> None:
    tokens, q_heads, k_heads, d = 6, 4, 2, 40
    cache, positions = cos_sin_cache(d), torch.randint(0, MAX_POSITION, (6,))
    qkv = torch.randn(tokens, (q_heads + 2 * k_heads) * d)
    before = qkv.clone()
    q, k, v = before.split([q_heads * d, k_heads * d, k_heads * d], dim=-1)
    expected_q = reference(positions, q.view(tokens, q_heads, d), cache, is_neox, torch.float32).flatten(1)
    expected_k = reference(positions, k.view(tokens, k_heads, d), cache, is_neox, torch.float32).flatten(1)

    ops.rotary_embedding(positions, qkv[:, : q_heads * d], None, d, cache, is_neox)
    assert_same_bits(qkv, torch.cat([expected_q, k, v], dim=-1))
    qkv.copy_(before)
    q_view, k_view, _ = qkv.split([q_heads * d, k_heads * d, k_heads * d], dim=-1)
    ops.rotary_embedding(positions, q_view, k_view.view(tokens, k_heads, d), d, cache, is_neox)
    assert_same_bits(qkv, torch.cat([expected_q, expected_k, v], dim=-1))


def test_other_strides() -> None:
    d, cache = 16, cos_sin_cache(16)
    positions = torch.randint(0, MAX_POSITION, (10,))[::2]
    query = torch.randn(3, 5, d).transpose(0, 1)  # head-major
    expected = reference(positions, query, cache, True, torch.float32)
    ops.rotary_embedding(positions, query, None, d, cache)
    assert_same_bits(query.contiguous(), expected)

    wide_cache = torch.randn(MAX_POSITION, d + 5)[:, 2 : 2 + d]
    wide_cache.copy_(cache)
    query = torch.randn(5, 3, d)
    expected = reference(positions, query, cache, True, torch.float32)
    ops.rotary_embedding(positions, query, None, d, wide_cache)
    assert_same_bits(query, expected)

    same = torch.tensor([7]).expand(5)  # one position for all
    query = torch.randn(5, 3, d)
    expected = reference(same, query, cache, True, torch.float32)
    ops.rotary_embedding(same, query, None, d, cache)
    assert_same_bits(query, expected)


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_token_does_not_depend_on_its_batch_or_threads(dtype: torch.dtype, is_neox: bool) -> None:
    d, cache, positions = 36, cos_sin_cache(36), torch.randint(0, MAX_POSITION, (120,))
    query = torch.randn(120, 8, d).to(dtype)
    together = query.clone()
    ops.rotary_embedding(positions, together, None, d, cache, is_neox)
    for token in range(0, 120, 17):
        alone = query[token : token + 1].clone()
        ops.rotary_embedding(positions[token : token + 1], alone, None, d, cache, is_neox)
        assert_same_bits(alone, together[token : token + 1])
    before = ops.get_num_threads()
    try:
        for threads in (1, 2, 3):
            ops.set_num_threads(threads)
            again = query.clone()
            ops.rotary_embedding(positions, again, None, d, cache, is_neox)
            assert_same_bits(again, together)
    finally:
        ops.set_num_threads(before)


def test_offsets_beyond_2_31_elements() -> None:
    far = 2**31 + 17  # elements between the two tokens; only their pages are ever touched
    query = torch.empty(far + 64, dtype=torch.float16).as_strided((2, 64), (far, 1))
    query.copy_(torch.randn(2, 64))
    positions, cache = torch.tensor([3, 200]), cos_sin_cache(32)
    expected = reference(positions, query.view(2, 2, 32), cache, True, torch.float32).half()
    ops.rotary_embedding(positions, query, None, 32, cache)
    assert_same_bits(query.reshape(2, 2, 32), expected)


@pytest.mark.parametrize("bad", [-1, MAX_POSITION, 2**40])
def test_positions_out_of_range_change_nothing(bad: int) -> None:
    query = torch.randn(3, 2, 16)
    before = query.clone()
    with pytest.raises(IndexError, match=rf"positions\[2\]: expected 0 <= position < {MAX_POSITION} .*{bad}"):
        ops.rotary_embedding(torch.tensor([0, 1, bad]), query, None, 16, cos_sin_cache(16))
    assert torch.equal(query, before)


def test_wrong_arguments() -> None:
    p, q, k, c = torch.arange(3), torch.randn(3, 2, 16), torch.randn(3, 1, 16), cos_sin_cache(16)
    cases = [
        ((p[:2], q, k, 16, c), r"query: expected shape \[T=2, heads, 16\], got \[3, 2, 16\]"),
        ((p, q, k[:2], 16, c), r"key: expected shape \[T=3, heads, 16\], got \[2, 1, 16\]"),
        ((p.int(), q, k, 16, c), "positions: expected dtype int64, got int32"),
        ((p[None], q, k, 16, c), r"positions: expected shape \[T\], got \[1, 3\]"),
        ((p, q, k, 8, c), r"query: expected shape \[T=3, heads, 8\], got \[3, 2, 16\]"),
        ((p, q.flatten(1), k, 12, c), "query: expected a last dimension that is a multiple of head_size=12"),
        ((p, q.flatten(), k, 16, c), "query: expected shape"),
        ((p, q, k, 0, c), "head_size: expected a positive number, got 0"),
        ((p, q, k.half(), 16, c), "key: expected dtype float32 as query, got float16"),
        ((p, q.double(), k, 16, c), "query: expected dtype float32 or .*, got float64"),
        ((p, q, k, 16, c.half()), "cos_sin_cache: expected dtype float32, got float16"),
        (
            (p, q, k, 16, cos_sin_cache(18)),
            r"cos_sin_cache: expected an even rot_dim of at most head_size=16",
        ),
        ((p, q, k, 16, c[:, :15]), r"cos_sin_cache: expected an even rot_dim"),
        ((p, q, k, 16, c[0]), r"cos_sin_cache: expected shape \[P, rot_dim\]"),
        ((p, q, k, 16, c.t().contiguous().t()), "cos_sin_cache: expected a contiguous last dimension"),
        ((p, q.transpose(1, 2).contiguous().transpose(1, 2), k, 16, c), "query: expected a contiguous last"),
        ((p, q[:1].expand(3, 2, 16), k, 16, c), "query: expected memory of its own"),
        ((p, q, q, 16, c), "key: expected memory apart from that of query"),
    ]
    before = q.clone()
    for arguments, message in cases:
        with pytest.raises(ValueError, match=f"^rotary_embedding: {message}"):
            ops.rotary_embedding(*arguments)
    with pytest.raises(TypeError, match=r"key: expected a torch.Tensor or None, got .*int"):
        ops.rotary_embedding(p, q, 3, 16, c)  # type: ignore[arg-type]
    assert torch.equal(q, before)
