"""The sampling ops on the CPU against a reference in integers, float64 and what is known of distributions."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_checks import FLOATS, assert_same_bits, check_on_instruction_set
from tests.kernels import sampling_reference as reference
from torch import Tensor

from inferx import ops


def random_logits(seed: int, rows: int, vocab: int, step: float | None = None) -> Tensor:
    """Normal logits; with ``step`` rounded to its multiples, which makes many equal."""
    x = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    return x if step is None else (x / step).round() * step


def weights_of(z: Tensor) -> list[int]:
    """The weights of z beside a maximum of 0, exactly: taken from the log-normaliser of [0, z]."""
    rows = torch.stack([torch.zeros_like(z), z], 1)
    logprobs = ops.token_logprobs(rows, torch.zeros(len(z), dtype=torch.int64))[1][:, 0]
    # The sum is below 2^43, so float64 holds it with room to spare.
    return [round((math.exp(-p) - 1) * reference.ONE) for p in logprobs.tolist()]


# ---- weights


def test_weights_are_the_exponential() -> None:
    """Within 1 ulp of float64's over every binade, from 1 down to the last weight that is not 0."""
    fractions = torch.rand(200, generator=torch.Generator().manual_seed(0)) + 1
    z = torch.cat([-(fractions * 2.0**e) for e in range(-30, 5)])
    z = z[z >= -29.1]
    for value, weight in zip(z.double().tolist(), weights_of(z), strict=True):
        exact = math.exp(value) * reference.ONE
        ulp = 2.0 ** (math.frexp(exact)[1] - 24)
        assert abs(weight - exact) <= ulp + 1


def test_weights_equal_the_reference_to_the_bit() -> None:
    z = -torch.rand(3000, generator=torch.Generator().manual_seed(1)) * 30
    z[:4] = torch.tensor([-0.0, -1e-45, -1e-10, -29.2])
    assert weights_of(z) == reference.weights(z.numpy())


def test_weights_never_rise_along_the_order() -> None:
    """Around the seams of the range reduction, where an approximation is likely to."""
    for n in range(42):
        seam = torch.tensor(-(n + 0.5) * math.log(2), dtype=torch.float32).view(torch.int32)
        z = (seam + torch.arange(-300, 300, dtype=torch.int32)).view(torch.float32)
        found = weights_of(z)
        assert found == sorted(found, reverse=True)
    assert weights_of(torch.zeros(1)) == [reference.ONE]


# ---- sampling


def check(x: Tensor, num_ids: int | None = None, **options: list[Any]) -> None:
    types = {
        "temperature": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float64,
        "min_p": torch.float64,
    }
    tensors = {name: torch.tensor(v, dtype=types.get(name, torch.int64)) for name, v in options.items()}
    ids, status = ops.sample_tokens(x, **tensors, num_ids=num_ids)
    for r, row in enumerate(x.float().numpy()):
        own = {name: tensor[r].item() for name, tensor in tensors.items()}
        expected = reference.sample(row, num_ids or x.shape[1], **own)
        assert (int(ids[r]), int(status[r])) == expected, (r, own)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 7, 511, 513, 1500]),
    st.sampled_from([None, 0.25, 2.0, 1000.0]),
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1e-30, 0.1, 1.0, 1.7, 100.0, 1e38]),
            st.sampled_from([-1, 0, 1, 2, 40, 700, 1200, 2**31 - 1]),
            st.one_of(st.sampled_from([1e-9, 0.5, 0.9, 1.0]), st.floats(1e-6, 1.0)),
            st.one_of(st.sampled_from([0.0, 0.0, 0.01, 1.0]), st.floats(0.0, 1.0)),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(0, 2**40),
            st.integers(0, 200),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_sampling_is_the_reference(
    seed: int, vocab: int, step: float | None, options: list[tuple[Any, ...]]
) -> None:
    x = random_logits(seed, len(options), vocab, step)
    x[:, : vocab // 3] = -math.inf
    x[:, -1] = 0.0
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "step", "index")
    check(x, **{name: list(values) for name, values in zip(names, zip(*options, strict=True), strict=True)})


@pytest.mark.parametrize(
    "options", [{}, {"top_p": [0.9]}, {"top_k": [1200], "top_p": [0.95]}, {"top_k": [50]}]
)
def test_a_real_width(options: dict[str, list[Any]]) -> None:
    check(random_logits(5, 1, 32000), seed=[9], **options)


@pytest.mark.parametrize("top_k", [0, 3])
def test_padding_is_out_of_reach(top_k: int) -> None:
    x = random_logits(2, 30, 130)
    x[:, 100:] += 50.0
    check(x, num_ids=100, seed=list(range(30)), top_k=[top_k] * 30)


def test_degenerate_rows_fail_alone() -> None:
    """Case C03: ids in range, one-hot and +inf certain, broken rows named, neighbours untouched."""
    vocab = 32000
    x = random_logits(1, 8, vocab)
    x[0] = 0.0
    x[0, 1] = 1e9
    x[1] = math.nan
    x[2] = -math.inf
    x[3, 77] = math.inf
    x[4, [5, 9]] = 1e4
    for seed in range(3):
        options = {
            "top_k": torch.full((8,), 2**30, dtype=torch.int32),
            "top_p": torch.ones(8, dtype=torch.float64),
            "seed": torch.arange(8) + seed,
        }
        ids, status = ops.sample_tokens(x, **options)
        assert status.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
        assert ids[:4].tolist() == [1, 0, 0, 77]
        assert int(ids[4]) in (5, 9)
        for r in range(5, 8):
            own = {name: value[r : r + 1] for name, value in options.items()}
            assert ops.sample_tokens(x[r : r + 1], **own)[0].tolist() == [ids[r]]


@pytest.mark.parametrize("vocab", [30, 600])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (29, 1.0), (1100, 1.0), (0, 1 - 2**-53)])
def test_a_draw_on_a_boundary(vocab: int, top_k: int, top_p: float) -> None:
    """It belongs to the token behind, the unit before to the one before: nothing is missing from any sum."""
    tried = 0
    for seed in range(20):
        for back in (0, 1):
            try:
                row, count = reference.boundary_row(seed, vocab, back)
            except ValueError:
                continue
            ids, _ = ops.sample_tokens(
                torch.from_numpy(row)[None],
                top_k=torch.tensor([top_k], dtype=torch.int32),
                top_p=torch.tensor([top_p], dtype=torch.float64),
                seed=torch.tensor([seed]),
            )
            assert ids.tolist() == [count - 1 if back else vocab - 1]
            tried += 1
    assert tried > 10


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.1}, {"temperature": 2.5}])
def test_tokens_are_as_frequent_as_their_weights(options: dict[str, float]) -> None:
    vocab, draws = 30, 4000
    x = random_logits(7, 1, vocab)[0] / 4
    own = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **options}
    weights = reference.kept_weights(x.numpy(), **own)  # type: ignore[arg-type]
    types = {"temperature": torch.float32, "top_k": torch.int32}
    tensors = {k: torch.full((draws,), v, dtype=types.get(k, torch.float64)) for k, v in options.items()}
    ids, _ = ops.sample_tokens(x.expand(draws, -1), **tensors, seed=torch.arange(draws))
    counts = Counter(ids.tolist())
    assert set(counts) <= {t for t, w in enumerate(weights) if w}
    expected = {t: w / sum(weights) * draws for t, w in enumerate(weights) if w / sum(weights) * draws >= 5}
    statistic = sum((counts[t] - e) ** 2 / e for t, e in expected.items())
    freedom = max(1, len(expected) - 1)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("top_p", [-0.0, -1e-9, -1.0, -1e30, -math.inf, math.inf, math.nan])
@pytest.mark.parametrize("top_k", [0, 5, 1200])
@pytest.mark.parametrize("vocab", [7, 600, 1500])
def test_a_top_p_outside_of_its_range(top_p: float, top_k: int, vocab: int) -> None:
    check(random_logits(2, 2, vocab), top_p=[top_p] * 2, top_k=[top_k] * 2, seed=[1, 2])


def test_top_p_is_exact() -> None:
    """Four equal tokens: a share of 3/4 keeps three of them, the next float64 above it a fourth."""
    x = torch.zeros(2000, 4)
    seed = torch.arange(2000)
    for top_p, count in [(0.75, 3), (math.nextafter(0.75, 1), 4), (math.nextafter(0.75, 0), 3), (0.5, 2)]:
        ids, _ = ops.sample_tokens(x, top_p=torch.full((2000,), top_p, dtype=torch.float64), seed=seed)
        assert set(ids.tolist()) == set(range(count))


@pytest.mark.parametrize("vocab", [513, 3000])
def test_a_row_depends_on_nothing_else(vocab: int) -> None:
    rows = 12
    x = random_logits(11, rows, vocab)
    options = {
        "temperature": torch.linspace(0.1, 2.0, rows),
        "top_k": torch.tensor([0, 5, 1100] * 4, dtype=torch.int32),
        "top_p": torch.linspace(0.3, 1.0, rows, dtype=torch.float64),
        "seed": torch.arange(rows),
    }
    tokens = torch.arange(rows)

    def run(part: list[int]) -> list[tuple[Any, ...]]:
        own = {name: value[part] for name, value in options.items()}
        ids, _ = ops.sample_tokens(x[part], **own)
        top = ops.token_logprobs(x[part], tokens[part], 7)
        return list(zip(ids.tolist(), *(t.tolist() for t in top), strict=True))

    before = ops.get_num_threads()
    alone = [run([r])[0] for r in range(rows)]
    try:
        for threads in (1, 2, 3):
            ops.set_num_threads(threads)
            order = random.Random(threads).sample(range(rows), rows)
            assert run(order) == [alone[r] for r in order]
    finally:
        ops.set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATS)
def test_types_and_strides(dtype: torch.dtype) -> None:
    wide = random_logits(3, 8, 700).to(dtype)
    seed = torch.arange(4)
    for x in (wide[::2, 3:], wide[:1].expand(4, -1)):
        expected = ops.sample_tokens(x.float().contiguous(), seed=seed)
        for got, want in zip(ops.sample_tokens(x, seed=seed), expected, strict=True):
            assert_same_bits(got, want)
        tokens = torch.arange(4)
        exact = ops.token_logprobs(x.float().contiguous(), tokens, 3)
        for got, want in zip(ops.token_logprobs(x, tokens, 3), exact, strict=True):
            assert_same_bits(got, want)


# ---- log-probabilities


@pytest.mark.parametrize("vocab", [1, 2, 7, 513, 5000])
@pytest.mark.parametrize("step", [None, 0.5, 100.0])
def test_logprobs(vocab: int, step: float | None) -> None:
    x = random_logits(vocab, 4, vocab, step) + torch.tensor([[-1000.0], [0.0], [50.0], [0.0]])
    x[1, : vocab // 2] = -math.inf
    num_ids = max(1, vocab - 2)
    tokens = torch.randint(0, vocab, (4,), generator=torch.Generator().manual_seed(2))
    for num_top in {0, 1, min(20, num_ids), min(256, num_ids)}:
        ids, logprobs, ranks = ops.token_logprobs(x, tokens, num_top, num_ids=num_ids)
        exact = torch.log_softmax(x.double(), -1).gather(1, ids)
        torch.testing.assert_close(logprobs, exact, rtol=0, atol=1e-6)
        for r in range(4):
            expected = reference.logprobs(x[r].numpy(), int(tokens[r]), num_top, num_ids)
            assert (ids[r].tolist(), int(ranks[r])) == (expected[0], expected[2])
            np.testing.assert_allclose(logprobs[r].numpy(), expected[1], rtol=1e-15, atol=1e-15)


def test_logprobs_of_selected_rows() -> None:
    x = random_logits(4, 3, 50)
    rows, tokens = torch.tensor([2, 0, 2, 3, -1]), torch.tensor([1, 50, 49, 1, 1])
    ids, logprobs, ranks = ops.token_logprobs(x, tokens, 2, rows=rows)
    whole = ops.token_logprobs(x, torch.tensor([1, 1, 49]), 2)
    assert_same_bits(logprobs[0, 1:], whole[1][2, 1:])
    assert_same_bits(logprobs[2], whole[1][2])
    assert ranks.tolist()[1::2] == [0, 0]  # no such token, no such row
    assert math.isnan(logprobs[1, 0])
    assert_same_bits(logprobs[1, 1:], whole[1][0, 1:])
    assert bool(logprobs[3:].isnan().all())
    assert ids[3:].tolist() == [[1, 0, 1], [1, 0, 1]]


# ---- processors


def test_processors_follow_their_order() -> None:
    """allowed, banned, bias, then the penalties, against float32 arithmetic written out."""
    x = torch.tensor([[1.0, -2.0, 3.0, 4.0, 5.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]])
    zero = torch.tensor([0, 0, 0])

    def ids(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    ops.apply_logits_processors(
        x,
        num_ids=5,
        allowed_offsets=torch.tensor([0, 3, 4]),
        allowed_ids=ids(0, 1, 2, -1),
        banned_offsets=torch.tensor([0, 1, 1]),
        banned_ids=ids(2),
        bias_offsets=torch.tensor([0, 2, 2]),
        bias_ids=ids(1, 2),
        bias=torch.tensor([-1.0, 7.0]),
        seen_offsets=torch.tensor([0, 2, 2]),
        seen_ids=ids(0, 1),
        seen_counts=ids(0, 3),
        repetition_penalty=torch.tensor([2.0, 1.0]),
        frequency_penalty=torch.tensor([0.25, 0.0]),
        presence_penalty=torch.tensor([0.5, 0.0]),
    )
    inf = math.inf
    assert x.tolist() == [[0.5, -7.25, -inf, -inf, -inf, 9.0], [-inf] * 5 + [9.0]]
    y = torch.ones(2, 3)
    ops.apply_logits_processors(y, banned_offsets=zero, banned_ids=ids())
    assert bool((y == 1).all())


# ---- arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 3, dtype=torch.float64)}, "logits: expected dtype"),
        ({"logits": torch.zeros(2, (1 << 20) + 1)}, "logits: expected 1 to 1048576 columns"),
        ({"logits": torch.zeros(3, 2).t()}, "logits"),
        ({"temperature": torch.ones(3)}, r"temperature: expected shape \[R=2\]"),
        ({"top_k": torch.ones(2)}, "top_k: expected dtype int32"),
        ({"top_p": torch.ones(2)}, "top_p: expected dtype float64"),
        ({"seed": torch.ones(4, dtype=torch.int64)[::2]}, "seed"),
        ({"num_ids": 4}, "num_ids: expected 1 to 3, got 4"),
        ({"num_ids": 0}, "num_ids: expected 1 to 3, got 0"),
    ],
    ids=str,
)
def test_wrong_arguments(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"logits": torch.zeros(2, 3), **change}
    with pytest.raises(ValueError, match=message):
        ops.sample_tokens(**arguments)


def test_wrong_arguments_of_the_others() -> None:
    x = torch.zeros(2, 3)
    tokens = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="num_top: expected 0 to 3"):
        ops.token_logprobs(x, tokens, 4)
    with pytest.raises(ValueError, match="token_ids"):
        ops.token_logprobs(x, tokens[:1])
    with pytest.raises(ValueError, match="banned_ids"):
        ops.apply_logits_processors(x, banned_offsets=torch.zeros(3, dtype=torch.int64))
    ids = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="bias"):
        ops.apply_logits_processors(x, bias_offsets=torch.tensor([0, 1, 1]), bias_ids=ids)
    with pytest.raises(ValueError, match="logits"):
        ops.apply_logits_processors(x[:1].expand(2, -1))


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_other_instruction_sets(isa: str) -> None:
    check_on_instruction_set(isa, ["test_sampling.py"], deselect="other_instruction_sets")


def test_reference_keeps_what_fractions_say() -> None:
    """The reference itself, on a row small enough to see: weights 4, 2, 1, 1 of 8."""
    x = np.log(np.array([4.0, 2.0, 1.0, 1.0], dtype=np.float32))
    kept = reference.kept_weights(x, 1.0, 0, 0.75, 0.0)
    assert [w > 0 for w in kept] == [
        True,
        kept[0] < Fraction(3, 4) * sum(reference.row_weights(x, 1.0)),
        False,
        False,
    ]
    assert [w > 0 for w in reference.kept_weights(x, 1.0, 3, 1.0, 0.3)] == [True, True, False, False]


@pytest.mark.parametrize("name", ["sample_tokens", "token_logprobs", "apply_logits_processors"])
def test_torch_ops(name: str) -> None:
    """torch.ops.inferx.*: the schema tells of every mutation, and the fakes fit."""
    x, ids, none = torch.randn(2, 5), torch.zeros(2, dtype=torch.int64), None
    arguments: dict[str, tuple[Any, ...]] = {
        "sample_tokens": (
            torch.empty(2, dtype=torch.int64),
            torch.empty(2, dtype=torch.int32),
            x,
            *[none] * 4,
            ids,
            none,
            none,
            5,
        ),
        "token_logprobs": (
            torch.empty(2, 3, dtype=torch.int64),
            torch.empty(2, 3, dtype=torch.float64),
            torch.empty(2, dtype=torch.int64),
            x,
            ids,
            none,
            5,
        ),
        "apply_logits_processors": (
            x,
            5,
            none,
            none,
            torch.tensor([0, 1, 1]),
            torch.tensor([2], dtype=torch.int32),
            *[none] * 9,
        ),
    }
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.inferx, name).default, arguments[name], test_utils=checks)


@pytest.mark.parametrize("dtype", FLOATS)
def test_take_largest_is_sampling_at_temperature_0(dtype: torch.dtype) -> None:
    logits = random_logits(3, 7, 1003, 0.5).to(dtype)
    logits[1] = -math.inf
    logits[2, 5] = math.nan
    logits[3, :900] = -math.inf
    expected, status = ops.sample_tokens(logits, torch.zeros(7), num_ids=900)
    ids, statuses = torch.full((7,), 77, dtype=torch.int64), torch.full((7,), 77, dtype=torch.int32)
    ops.take_largest(ids, statuses, logits, torch.zeros(7), 900)
    assert torch.equal(ids, expected)
    assert torch.equal(statuses, status)
    assert statuses.tolist() == [0, 2, 1, 3, 0, 0, 0]


def test_take_largest_refuses_memory_that_does_not_fit() -> None:
    logits, status, zeros = torch.zeros(3, 8), torch.zeros(3, dtype=torch.int32), torch.zeros(3)
    with pytest.raises(ValueError, match="token_ids"):
        ops.take_largest(torch.zeros(2, dtype=torch.int64), status, logits, zeros, 8)
    with pytest.raises(ValueError, match="temperature"):
        ops.take_largest(torch.zeros(3, dtype=torch.int64), status, logits, torch.zeros(2), 8)
    with pytest.raises(TypeError, match="logits"):
        ops.take_largest(torch.zeros(3, dtype=torch.int64), status, None, zeros, 8)  # type: ignore[arg-type]
