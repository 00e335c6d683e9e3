"""What a step program refuses to record, and that its buffers share memory only where they may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from inferx import ops
from inferx.ops import Codes, Columns, StepInput, StepProgram

HIDDEN = 64


def weight(n: int, k: int, dtype: str = "F32") -> ops.PackedWeight:
    if dtype == "F32":
        return ops.pack_weight(torch.randn(n, k), dtype, (n, k))
    return ops.pack_weight(torch.zeros(n, k // 32 * 34, dtype=torch.uint8), "Q8_0", (n, k))


def norm_weight(size: int = HIDDEN) -> torch.Tensor:
    return torch.ones(size)


def codes_of(step: StepProgram) -> Codes:
    return step.take_codes(HIDDEN)


WRONG: dict[str, tuple[Callable[[StepProgram, Columns], object], str]] = {
    "embedding-width": (lambda s, x: s.embedding(weight(9, 32), x), "embedding: out: expected 32 columns"),
    "no-buffer": (lambda s, x: s.zero(Columns(7, 0, 4)), "zero: x: expected .*inside of a buffer"),
    "negative-buffer": (lambda s, x: s.zero(Columns(-1, 0, 4)), "inside of a buffer"),
    "beyond-the-buffer": (lambda s, x: s.zero(Columns(0, 1, HIDDEN)), "inside of a buffer"),
    "far-beyond": (lambda s, x: s.zero(Columns(0, 2**62, 2**62)), "inside of a buffer"),
    "no-columns": (lambda s, x: s.zero(Columns(0, 0, 0)), "inside of a buffer"),
    "norm-weight": (lambda s, x: s.norm(x, norm_weight(48), 1e-5, x), "norm: weight: expected a size that"),
    "norm-eps": (lambda s, x: s.norm(x, norm_weight(), -1.0, x), "norm: eps"),
    "norm-dtype": (lambda s, x: s.norm(x, norm_weight().half(), 1e-5, x), "norm: weight: .*float32"),
    "norm-overlap": (
        lambda s, x: s.norm(Columns(x.buffer, 0, 32), norm_weight(32), 1e-5, Columns(x.buffer, 16, 32)),
        "norm: out: shares columns",
    ),
    "add-norm-residual": (
        lambda s, x: s.add_norm(x, x, norm_weight(), 1e-5, {False}),
        "add_norm: out: shares columns",
    ),
    "codes-of-odd-width": (lambda s, x: s.take_codes(40), "k: expected a positive multiple of 32"),
    "quantize-width": (
        lambda s, x: s.input(Columns(x.buffer, 0, 32), {True}) and s._program.quantize(x, 0),
        "quantize: out: expected a quantised buffer of width 64",
    ),
    "linear-input": (
        lambda s, x: s.linear(StepInput(x, None), weight(8, 32), None, False, s.take(8)),
        "linear: x: expected 32 columns",
    ),
    "linear-output": (
        lambda s, x: s.linear(StepInput(x, None), weight(8, HIDDEN), None, False, s.take(9)),
        "linear: out: expected 8 columns",
    ),
    "linear-bias": (
        lambda s, x: s.linear(StepInput(x, None), weight(8, HIDDEN), torch.ones(7), False, s.take(8)),
        "linear: bias",
    ),
    "linear-in-place": (
        lambda s, x: s.linear(StepInput(x, None), weight(HIDDEN, HIDDEN), None, False, x),
        "linear: out: shares columns",
    ),
    "int8-of-floats": (
        lambda s, x: s.linear(StepInput(None, codes_of(s)), weight(8, HIDDEN), None, True, s.take(8)),
        "linear_int8: weight: expected a block-quantised type, got F32",
    ),
    "activation": (lambda s, x: s.activate_and_mul("relu", x, s.take(32)), "activation: expected silu"),
    "activation-width": (lambda s, x: s.activate_and_mul("silu", x, s.take(31)), "x: expected 62 columns"),
    "gate-up-rows": (
        lambda s, x: s._program.gate_up_int8(
            codes_of(s).buffer, weight(96, HIDDEN, "Q8_0").handle, None, "silu", 0
        ),
        "gate_up_int8: weight: expected rows that are a multiple of 64",
    ),
    "clamp": (lambda s, x: s.clamp(x, 0.0), "clamp: limit"),
    "rotary-head": (
        lambda s, x: s.rope_and_cache(*s.take(48).split([16, 16, 16]), 12, 0, 0),
        "rope_and_cache: head_dim",
    ),
    "rotary-number": (
        lambda s, x: s.rope_and_cache(*s.take(48).split([16, 16, 16]), 8, -1, 0),
        "rope_and_cache: rotary",
    ),
    "attention-heads": (
        lambda s, x: s.attention(x, s.take(HIDDEN), 16, 3, 0, 1.0),
        "attention: query: expected a number of heads",
    ),
    "attention-head-dim": (lambda s, x: s.attention(x, s.take(HIDDEN), 4, 1, 0, 1.0), "multiple of 8"),
    "attention-scale": (
        lambda s, x: s.attention(x, s.take(HIDDEN), 16, 1, 0, float("inf")),
        "attention: scale",
    ),
    "attention-window": (lambda s, x: s.attention(x, s.take(HIDDEN), 16, 1, 0, 1.0, window=-1), "window"),
    "attention-softcap": (
        lambda s, x: s.attention(x, s.take(HIDDEN), 16, 1, 0, 1.0, softcap=-2.0),
        "softcap",
    ),
    "attention-sinks": (
        lambda s, x: s.attention(x, s.take(HIDDEN), 16, 1, 0, 1.0, sinks=torch.ones(3)),
        "attention: sinks",
    ),
    "attention-layer": (lambda s, x: s.attention(x, s.take(HIDDEN), 16, 1, -1, 1.0), "attention: layer"),
    "head-width": (lambda s, x: s.head(weight(9, 32)), "head: weight"),
    "head-int8": (lambda s, x: s.head(weight(9, HIDDEN), int8=True), "head: weight: .*block-quantised"),
}


HUGE = {
    "buffer": lambda s, x: s._program.add_buffer(2**62, 0),
    "slot": lambda s, x: s._program.add_buffer(64, 2**40),
    "codes": lambda s, x: s._program.add_quantized(2**62, 0),
    "rotary": lambda s, x: s.rope_and_cache(*s.take(48).split([16, 16, 16]), 8, 2**40, 0),
    "layer": lambda s, x: s.attention(x, s.take(HIDDEN), 16, 1, 2**40, 1.0),
}


@pytest.mark.parametrize("name", HUGE)
def test_sizes_are_bounded(name: str) -> None:
    step = StepProgram(HIDDEN)
    with pytest.raises(ValueError, match=r"expected (at most|0 to)"):
        HUGE[name](step, step.take(HIDDEN))


def test_logits_overlap_nothing_and_come_with_their_rows() -> None:
    table = weight(20, HIDDEN)
    step = StepProgram(HIDDEN)
    step.embedding(table, step.out)
    step.head(table)
    memory = torch.zeros(128)
    ids = memory.view(torch.int64)[:2]
    none = torch.empty(0, 0, dtype=torch.int32)
    lists = (torch.zeros(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32))
    arguments = (torch.empty(2, HIDDEN), ids, [], torch.full((2,), -1), none, *lists, [])
    rows = torch.tensor([1])
    with pytest.raises(ValueError, match="logits: expected memory apart from that of input_ids"):
        step.run(*arguments, rows, memory[:20].view(1, 20))
    with pytest.raises(ValueError, match="logits: expected together with logits_rows"):
        step.run(*arguments, None, memory[64:84].view(1, 20))
    step.run(*arguments, rows, memory[64:84].view(1, 20))
    assert torch.equal(memory[64:84], ops.linear(ops.embedding(ids[1:], table), table)[0])


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    record, message = WRONG[name]
    step = StepProgram(HIDDEN)
    with pytest.raises(ValueError, match=message):
        record(step, step.take(HIDDEN))


def test_layers_agree_on_their_cache() -> None:
    step = StepProgram(HIDDEN)
    x = step.take(HIDDEN)
    step.attention(x, step.out, 16, 2, 0, 1.0)
    with pytest.raises(ValueError, match="layer: expected the KV heads that its other ops have"):
        step.attention(x, step.out, 16, 4, 0, 1.0)


def test_buffers_in_use_are_apart() -> None:
    """Slots are handed on when they are given back, and not before."""
    step = StepProgram(HIDDEN)
    a, b, c = step.take(64), step.take_codes(64), step.take(8)
    slots = [step._slot_of[buffer] for buffer in (a, b, c)]
    assert len(set(slots)) == 3
    step.give_back(a, None, b)
    d = step.take(60)
    assert step._slot_of[d] == slots[0]  # the nearest in size
    assert step.take(64) != a
    step.give_back(c)
    assert step.take(8) == c


def test_ops_in_order() -> None:
    """A step without attention: what the ops do one by one."""
    torch.manual_seed(0)
    table, w, scale = weight(20, HIDDEN), weight(2 * 24, HIDDEN), norm_weight() + torch.rand(HIDDEN)
    bias = torch.randn(48)
    step = StepProgram(HIDDEN)
    residual, both, half = step.take(HIDDEN), step.take(48), step.take(24)
    step.embedding(table, step.out, scale=3.0)
    step.zero(residual)
    x = step.add_norm(step.out, residual, scale, 1e-5, {False})
    step.linear(x, w, bias, False, both)
    step.clamp(both, 0.75)
    step.activate_and_mul("gelu", both, half)
    step.linear(StepInput(half, None), weight_of := weight(HIDDEN, 24), None, False, step.out)
    ids = torch.tensor([3, 0, 19, 3])
    none = torch.empty(0, 0, dtype=torch.int32)
    for count in (4, 1, 0, 3):
        out = torch.empty(count, HIDDEN)
        lists = (torch.zeros(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32))
        step.run(out, ids[:count], [], torch.full((count,), -1), none, *lists, [])
        h = ops.embedding(ids[:count], table) * 3.0
        h = ops.rms_norm(h, scale, 1e-5)
        h = ops.gelu_and_mul(ops.linear(h, w, bias).clamp(-0.75, 0.75))
        assert torch.equal(out, ops.linear(h, weight_of))


def test_without_a_table_ids_are_free() -> None:
    step = StepProgram(HIDDEN)
    step.zero(step.out)
    out = torch.ones(2, HIDDEN)
    none = torch.empty(0, 0, dtype=torch.int32)
    lists = (torch.zeros(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32))
    step.run(out, torch.tensor([0, 2**40]), [], torch.full((2,), -1), none, *lists, [])
    assert not out.any()
