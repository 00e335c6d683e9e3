"""The sampling kernels' CUDA source: bit for bit the CPU backend's, which equals a reference in integers
(tests/ops/test_sampling.py)."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import sampling_reference as reference
import torch
from harness import Device
from op_checks import FLOATS, assert_same_bits
from torch import Tensor

from inferx import ops

Options = dict[str, Tensor]
# Its row has a token far down, which every pass has to count.
BOUNDARY_SEED = 5


def random_logits(seed: int, rows: int, vocab: int, step: float | None = None) -> Tensor:
    """Normal logits; with ``step`` rounded to its multiples, which makes many equal."""
    x = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    return x if step is None else (x / step).round() * step


def random_options(rng: random.Random, rows: int) -> Options:
    def choose(values: list[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor([rng.choice(values) for _ in range(rows)], dtype=dtype)

    return {
        "temperature": choose([0.0, 1e-30, 0.3, 1.0, 1.0, 1.7, 50.0, 1e38, -1.0], torch.float32),
        "top_k": choose([-1, 0, 1, 2, 40, 1024, 1500, 2**31 - 1], torch.int32),
        "top_p": choose([1e-9, 0.3, 0.9, 0.999999, 1.0, 1.0, 2.0], torch.float64),
        "min_p": choose([0.0, 0.0, 0.01, 0.5, 1.0], torch.float64),
        "seed": choose([0, 1, -1, 2**63 - 1, rng.getrandbits(62)], torch.int64),
        "step": choose([0, 1, 2**33], torch.int64),
        "index": choose([0, 1, 7], torch.int64),
    }


def check_sample(device: Device, x: Tensor, options: Options, num_ids: int | None = None) -> None:
    """The device's tokens and statuses are the CPU's, and in range."""
    expected = ops.sample_tokens(x, **options, num_ids=num_ids)
    with device:
        on_device = {name: device.put(value) for name, value in options.items()}
        ids, status = ops.sample_tokens(device.put(x), **on_device, num_ids=num_ids)
    assert_same_bits(ids.cpu(), expected[0])
    assert_same_bits(status.cpu(), expected[1])
    assert bool(((ids.cpu() >= 0) & (ids.cpu() < (num_ids or x.shape[1]))).all())


def check_logprobs(device: Device, x: Tensor, tokens: Tensor, num_top: int, **options: Any) -> None:
    expected = ops.token_logprobs(x, tokens, num_top, **options)
    with device:
        rows = options.pop("rows", None)
        rows = None if rows is None else device.put(rows)
        actual = ops.token_logprobs(device.put(x), device.put(tokens), num_top, rows=rows, **options)
    for got, want in zip(actual, expected, strict=True):
        assert_same_bits(got.cpu(), want)


@pytest.mark.parametrize("vocab", [1, 2, 7, 511, 513, 1600])
@pytest.mark.parametrize("step", [None, 0.5])
def test_same_tokens_as_the_cpu(device: Device, vocab: int, step: float | None) -> None:
    rng = random.Random(vocab)
    x = random_logits(vocab, 8, vocab, step)
    check_sample(device, x, random_options(rng, 8))
    check_sample(device, x, random_options(rng, 8), num_ids=(vocab + 1) // 2)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 30},
        {"top_k": 1024, "top_p": 0.5},
        {"top_k": 1500},
        {"top_k": 1500, "top_p": 0.9},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 0.999, "min_p": 0.3},
        {"min_p": 0.4},
        {"top_k": 2500, "top_p": 0.9999, "min_p": 0.3},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["flat", "tied", "equal", "peaked"])
def test_more_left_than_are_sorted_at_once(device: Device, options: dict[str, float], kind: str) -> None:
    """Rows where thousands remain, and where thousands are equal at the very place of the cut."""
    vocab = 3000
    x = random_logits(1, 1, vocab) / 16
    if kind == "tied":
        x = x.round() / 2
    elif kind == "equal":
        x = torch.full((1, vocab), 3.0)
        x[0, [0, 77]] = 3.5
    elif kind == "peaked":
        x = x * 40
    dtypes = {"top_k": torch.int32}
    tensors = {
        name: torch.tensor([v], dtype=dtypes.get(name, torch.float64)).expand(2).contiguous()
        for name, v in options.items()
    }
    check_sample(device, x.expand(2, -1), {**tensors, "seed": torch.tensor([5, 6])})


@pytest.mark.parametrize("top_k", [0, 5, 1200])
def test_a_top_p_outside_of_its_range(device: Device, top_k: int) -> None:
    top_p = torch.tensor([-0.0, -1e-9, -1.0, -1e30, -math.inf, math.inf, math.nan], dtype=torch.float64)
    options = {
        "top_k": torch.full(top_p.shape, top_k, dtype=torch.int32),
        "top_p": top_p,
        "seed": torch.arange(7),
    }
    check_sample(device, random_logits(2, 7, 1500), options)


def test_heavy_ties(device: Device) -> None:
    """Narrowing the bin of the cut, over tied values and over tied ids."""
    x = torch.cat([torch.full((1, 2100), 1.0), torch.full((1, 2100), 1.0) - torch.rand(1, 2100) * 1e-3])
    options = {
        "top_k": torch.tensor([1030, 0], dtype=torch.int32),
        "top_p": torch.tensor([1.0, 0.6], dtype=torch.float64),
        "seed": torch.tensor([1, 2]),
    }
    check_sample(device, x, options)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_wide_vocabulary(device: Device, top_p: float) -> None:
    if device.name == "simt-checked":
        pytest.skip("only size is new here")
    options = {"top_p": torch.tensor([top_p], dtype=torch.float64), "seed": torch.tensor([3])}
    check_sample(device, random_logits(2, 1, 32000) / 4, options)


@pytest.mark.parametrize("vocab", [30, 600])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (29, 1.0), (1100, 1.0), (0, 1 - 2**-53)])
def test_a_draw_on_a_boundary(device: Device, vocab: int, top_k: int, top_p: float) -> None:
    """It belongs to the token behind, the unit before to the one before: nothing is missing from any sum."""
    for back in (0, 1):
        row, count = reference.boundary_row(BOUNDARY_SEED, vocab, back)
        options = {
            "top_k": torch.tensor([top_k], dtype=torch.int32),
            "top_p": torch.tensor([top_p], dtype=torch.float64),
            "seed": torch.tensor([BOUNDARY_SEED]),
        }
        with device:
            on_device = {name: device.put(value) for name, value in options.items()}
            ids, _ = ops.sample_tokens(device.put(torch.from_numpy(row)[None]), **on_device)
        assert ids.tolist() == [count - 1 if back else vocab - 1]


def degenerate(vocab: int) -> Tensor:
    """One row each: one-hot, NaN, all -inf, one +inf, two +inf, equal maxima, subnormal steps, one NaN, the
    largest range, a single finite value, only what num_ids leaves out."""
    x = torch.zeros(11, vocab)
    x[0, 1] = 1e9
    x[1] = math.nan
    x[2] = -math.inf
    x[3] = random_logits(0, 1, vocab)[0]
    x[3, 2] = math.inf
    x[4, [1, 3]] = math.inf
    x[5, [2, 3]] = 4.0
    x[6] = torch.arange(vocab) * 1e-45
    x[7, vocab - 1] = math.nan
    x[8, 0::2], x[8, 1::2] = 3e38, -3e38
    x[9] = -math.inf
    x[9, 3] = -5.0
    x[10] = -math.inf
    x[10, vocab - 1] = 1.0
    return x


@pytest.mark.parametrize("vocab", [5, 600])
@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1.0, math.inf])
def test_degenerate_rows(device: Device, vocab: int, temperature: float) -> None:
    """A broken row says so; its neighbours are what they are alone."""
    x = degenerate(vocab)
    for k, p in [(2**30, 1.0), (2, 0.5)]:
        options = {
            "temperature": torch.full((11,), temperature),
            "top_k": torch.full((11,), k, dtype=torch.int32),
            "top_p": torch.full((11,), p, dtype=torch.float64),
        }
        check_sample(device, x, options, num_ids=vocab - 1)
    status = ops.sample_tokens(x, num_ids=vocab - 1)[1]
    assert status.tolist() == [0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 3]
    check_logprobs(device, x, torch.full((11,), 3), min(4, vocab - 1), num_ids=vocab - 1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_types_and_strides(device: Device, dtype: torch.dtype, offset: int) -> None:
    """16-bit logits, rows at any alignment, every other row, one row expanded."""
    wide = random_logits(3, 6, 77 + offset).to(dtype)
    options = random_options(random.Random(4), 3)
    for x in (wide[::2, offset:], wide[:1, offset:].expand(3, -1)):
        expected = ops.sample_tokens(x.float().contiguous(), **options)
        with device:
            on_device = {name: device.put(value) for name, value in options.items()}
            base = device.put(wide)
            view = base[::2, offset:] if x.stride(0) else base[:1, offset:].expand(3, -1)
            ids, _ = ops.sample_tokens(view, **on_device)
        assert_same_bits(ids.cpu(), expected[0])


def test_no_rows(device: Device) -> None:
    with device:
        x = device.put(torch.zeros(0, 9))
        ids, status = ops.sample_tokens(x)
        assert ids.shape == status.shape == (0,)
        ids, logprobs, _ = ops.token_logprobs(x, device.put(torch.zeros(0, dtype=torch.int64)), 2)
        assert ids.shape == logprobs.shape == (0, 3)
        ops.apply_logits_processors(x)


@pytest.mark.parametrize("vocab", [1, 2, 7, 513])
@pytest.mark.parametrize("step", [None, 2.0])
def test_logprobs(device: Device, vocab: int, step: float | None) -> None:
    x = random_logits(vocab, 5, vocab, step)
    x[1, : vocab // 2] = -math.inf
    tokens = torch.randint(0, vocab, (5,), generator=torch.Generator().manual_seed(1))
    tokens[2], tokens[3] = -1, vocab
    num_ids = max(1, vocab - 3)
    for num_top in (0, 1, 20, 256):
        check_logprobs(device, x, tokens, min(num_top, num_ids), num_ids=num_ids)
    rows = torch.tensor([4, 4, 0, -1, 5])
    check_logprobs(device, x.bfloat16(), tokens, min(2, num_ids), num_ids=num_ids, rows=rows)


@pytest.mark.parametrize("kind", ["equal", "mostly -inf", "spread"])
def test_logprobs_where_many_are_equal(device: Device, kind: str) -> None:
    vocab = 2200
    x = torch.zeros(1, vocab)
    if kind == "mostly -inf":
        x[0, 100:] = -math.inf
    elif kind == "spread":
        x[0, 5:] = -1e30 * torch.rand(vocab - 5)
    check_logprobs(device, x, torch.tensor([4]), 200)


def ragged(rng: random.Random, rows: int, high: int, ordered: bool = False) -> tuple[Tensor, Tensor]:
    """Offsets and ids of lists of 0 to 9 different ids, some outside the vocabulary."""
    lists = [rng.sample(range(-2, high), rng.choice([0, 1, 9])) for _ in range(rows)]
    lists = [sorted(entry) if ordered else entry for entry in lists]
    ends = torch.tensor([0, *(len(entry) for entry in lists)]).cumsum(0)
    return ends, torch.tensor([i for entry in lists for i in entry], dtype=torch.int32)


@pytest.mark.parametrize("vocab", [11, 300])
def test_processors(device: Device, vocab: int) -> None:
    rng, rows = random.Random(vocab), 6
    x = random_logits(5, rows, vocab + 3)[:, : vocab + 2]
    x[0, 3], x[1, 2], x[2, 4] = -math.inf, math.inf, 0.0
    arguments: Options = {}
    for name in ("allowed", "banned", "bias", "seen"):
        arguments[f"{name}_offsets"], arguments[f"{name}_ids"] = ragged(
            rng, rows, vocab + 2, name == "allowed"
        )
    arguments["bias"] = torch.randn(len(arguments["bias_ids"])) * 50
    counts = torch.randint(0, 4, (len(arguments["seen_ids"]),), generator=torch.Generator().manual_seed(0))
    arguments["seen_counts"] = counts.to(torch.int32)
    for name in ("repetition", "frequency", "presence"):
        arguments[f"{name}_penalty"] = torch.rand(rows) * 2 + 0.1
    expected = x.clone()
    ops.apply_logits_processors(expected, num_ids=vocab, **arguments)
    assert not torch.equal(expected, x)
    with device:
        actual = device.put(x)
        on_device = {name: device.put(value) for name, value in arguments.items()}
        ops.apply_logits_processors(actual, num_ids=vocab, **on_device)
    assert_same_bits(actual.cpu(), expected)


@pytest.mark.parametrize(
    "bounds",
    [
        [-5, 400, 3],
        [2**40, 2**41, -1],
        [2**63 - 1, -(2**63), 2**63 - 1],
        [2**63 - 200, 2**63 - 1, 4],
        [-(2**63), 2**63 - 1, 2**63 - 2],
    ],
    ids=str,
)
def test_processors_stay_in_bounds(device: Device, bounds: list[int]) -> None:
    """Offsets and ids that make no sense touch nothing outside the rows."""
    with device:
        x = device.put(torch.zeros(2, 8))
        offsets = device.put(torch.tensor(bounds))
        ids = device.put(torch.tensor([-(2**31), 5, 7, 2**31 - 1], dtype=torch.int32))
        ops.apply_logits_processors(
            x, allowed_offsets=offsets, allowed_ids=ids, banned_offsets=offsets, banned_ids=ids
        )
    assert bool(((x == 0) | (x == -math.inf)).all())
