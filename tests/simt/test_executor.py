"""What is legal gives its result in every schedule: threads, warps, barriers, atomics, memory."""

from __future__ import annotations

import pytest
import torch
from selftests import Simt


def ints(*shape: int, low: int = -999, high: int = 999, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("grid", "block"), [((1,), (1,)), ((3, 2, 4), (5, 3, 2)), ((2, 1, 3), (32, 4)), ((7,), (1024,))]
)
def test_indices(simt: Simt, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    gx, gy, gz = (*grid, 1, 1)[:3]
    bx, by, bz = (*block, 1, 1)[:3]
    out = torch.empty(gx * gy * gz * bx * by * bz, 8, dtype=torch.int64)
    simt.run("indices", outputs=[out], grid=grid, block=block)
    rows = iter(out.tolist())
    for b in range(gx * gy * gz):
        for t in range(bx * by * bz):
            thread = [t % bx, t // bx % by, t // bx // by]
            assert next(rows) == [*thread, b % gx, b // gx % gy, b // gx // gy, t % 32, 32]


def test_num_sms(simt: Simt) -> None:
    if not simt.is_simt:
        pytest.skip("the executor's option")
    out = zeros(1)
    for n in (1, 3, 132):
        simt.run("num_sms", outputs=[out], options={"num_sms": n})
        assert out.item() == n


def signed(x: int) -> int:
    return (x + (1 << 31)) % (1 << 32) - (1 << 31)


def test_collectives(simt: Simt) -> None:
    v = ints(32, low=-(2**20), high=2**20)
    out = zeros(29, 32)
    simt.run("collectives", inputs=[v], outputs=[out])
    x, lanes = v.tolist(), range(32)
    unsigned = [a % (1 << 32) for a in x]
    every = (1 << 32) - 1

    def fold(values: list[int], f) -> list[int]:
        total = values[0]
        for a in values[1:]:
            total = f(total, a)
        return [signed(total)] * 32

    def masks(key: list[int]) -> list[int]:
        return [signed(sum(1 << j for j in lanes if key[j] == key[i])) for i in lanes]

    expected = [
        [x[3]] * 32,
        [x[i // 8 * 8 + (i + 5) % 8] for i in lanes],
        [x[i - 2] if i >= 2 else x[i] for i in lanes],
        [x[i - 3] if i % 16 >= 3 else x[i] for i in lanes],
        [x[i + 2] if i + 2 < 32 else x[i] for i in lanes],
        [x[i + 3] if i % 16 + 3 < 16 else x[i] for i in lanes],
        [x[i ^ 5] for i in lanes],
        # CUDA: a lane of a later group keeps its own, of an earlier one is readable
        [x[i ^ 9] if (i ^ 9) < i // 8 * 8 + 8 else x[i] for i in lanes],
        [signed(sum(1 << i for i in lanes if x[i] > 0))] * 32,
        [3] * 32,
        [0] * 32,
        masks([a & 3 for a in x]),
        [0] * 32,
        [signed(every) + 1] * 32,
        fold(x, lambda a, b: a + b),
        [min(x)] * 32,
        [max(x)] * 32,
        [signed(min(unsigned))] * 32,
        [signed(max(unsigned))] * 32,
        fold(unsigned, lambda a, b: a & b),
        fold(unsigned, lambda a, b: a | b),
        fold(unsigned, lambda a, b: a ^ b),
        [x[i ^ 1] for i in lanes],
        [x[i ^ 1] for i in lanes],
        [i ^ 1 for i in lanes],
        [496] * 32,
        [i // 8 * 8 + 7 for i in lanes],
        [120 if i < 16 else i ^ 3 for i in lanes],
        [2 * i for i in lanes],
    ]
    for i, row in enumerate(expected):
        assert out[i].tolist() == row, i


@pytest.mark.parametrize("groups", [1, 2, 9, 16, 32])
def test_groups_of_a_warp_wait_side_by_side(simt: Simt, groups: int) -> None:
    out = zeros(64)
    simt.run("warp_groups", outputs=[out], numbers=[groups], block=(64,))
    sums = [sum(range(g, 32, groups)) for g in range(groups)]
    assert out.tolist() == [sums[t % 32 % groups] for t in range(64)]


def test_sixteen_bytes_may_be_aligned_to_eight(simt: Simt) -> None:
    out = torch.zeros(1 + 128, dtype=torch.float64)
    simt.run("structs_of_doubles", outputs=[out], block=(64,))
    assert out[1:].tolist() == [v for t in range(64) for v in (63 - t, 2)]


@pytest.mark.parametrize("block", [32, 100, 256])
def test_warp_word(simt: Simt, block: int) -> None:
    out = zeros(block)
    if block % 32:
        block = block // 32 * 32
    simt.run("warp_word", outputs=[out], numbers=[64], block=(block,))
    for t in range(block):
        round_ = max(i for i in range(64) if (i + 7) % 32 == t % 32)
        assert out[t] == round_ + 100 * (t // 32)


def test_lanes_hand_on_through_global_memory(simt: Simt) -> None:
    out = zeros(96)
    simt.run("through_global", outputs=[out], block=(96,))
    assert out.tolist() == [(t ^ 1) + 1000 for t in range(96)]


@pytest.mark.parametrize("block", [1, 50, 128, 1024])
def test_barrier_reductions(simt: Simt, block: int) -> None:
    out = zeros(block)
    simt.run("barrier_reductions", outputs=[out], block=(block,))
    count = len(range(0, block, 3))
    assert out.tolist() == [count + 10000 + 40000 * (block > 5)] * block


@pytest.mark.parametrize("arrive", [False, True], ids=["sync", "arrive"])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_named_barriers(simt: Simt, rounds: int, arrive: bool) -> None:
    out = zeros(rounds, 32)
    simt.run("named_barriers", outputs=[out], numbers=[rounds, arrive], block=(96,))
    assert out.tolist() == [[100 * i + 31 - lane for lane in range(32)] for i in range(rounds)]


@pytest.mark.parametrize("fence_by_one", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 13])
def test_last_block(simt: Simt, blocks: int, fence_by_one: bool) -> None:
    x = ints(blocks * 64)
    partial, counter, total = zeros(blocks * 64), zeros(1), zeros(1)
    for _ in range(2):  # it sets the counter back for the next launch
        total.zero_()
        outputs = [partial, counter, total]
        simt.run(
            "last_block", inputs=[x], outputs=outputs, numbers=[fence_by_one], grid=(blocks,), block=(64,)
        )
        assert (total.item(), counter.item()) == (2 * x.sum().item(), 0)


def test_last_block_on_many_cores() -> None:
    """Never reported, however the cores' atomics fall."""
    simt = Simt("checked")
    x = ints(24 * 64)
    for _ in range(400):
        outputs = [zeros(24 * 64), zeros(1), zeros(1)]
        options = {"threads": 8}
        simt.run(
            "last_block", inputs=[x], outputs=outputs, numbers=[0], grid=(24,), block=(64,), options=options
        )
        assert outputs[2].item() == 2 * x.sum().item()
    simt.module.configure({"threads": 0})


def test_integer_atomics(simt: Simt) -> None:
    v = ints(3 * 64)
    i, u, n = (
        ints(10, seed=1),
        torch.tensor([3, 5, 7, -1], dtype=torch.int32),
        torch.zeros(3, dtype=torch.int64),
    )
    before = i.tolist()
    simt.run("integer_atomics", inputs=[v], outputs=[i, u, n], grid=(3,), block=(64,))
    x = v.tolist()
    unsigned = [a % (1 << 32) for a in x]
    bits_and, bits_or, bits_xor = before[4:7]
    for a in x:
        bits_and, bits_or, bits_xor = bits_and & a, bits_or | a, bits_xor ^ a
    assert i[0] == before[0] + sum(x)
    assert i[1] == before[1] - sum(x)
    assert i[2] == max([before[2], *x])
    assert i[3] == min([before[3], *x])
    assert i[4:7].tolist() == [bits_and, bits_or, bits_xor]
    assert i[7] in x
    assert i[8] + i[7] == before[8] + before[7] + sum(x)  # what was exchanged, each once
    assert i[9] == max([before[9], *x])
    assert u[0] == (3 + 192) % 10
    assert u[1] == (5 - 192) % 10
    assert u[2].item() % (1 << 32) == max([7, *unsigned])
    assert u[3].item() % (1 << 32) == min([(1 << 32) - 1, *unsigned])
    total = sum(a << 20 for a in x)
    assert n.tolist() == [total, torch.tensor(max(a % (1 << 64) for a in x) - (1 << 64)).item(), 77]


def test_float_atomics(simt: Simt) -> None:
    out = [
        zeros(1, dtype=torch.float32),
        zeros(1, dtype=torch.float64),
        zeros(2, dtype=torch.float16),
        zeros(2, dtype=torch.bfloat16),
    ]
    simt.run("float_atomics", outputs=out, grid=(2,), block=(64,))
    assert [t.tolist() for t in out] == [[64.0], [32.0], [128.0, 256.0], [128.0, -128.0]]


def test_shared_atomics(simt: Simt) -> None:
    v, out = ints(300), zeros(16)
    simt.run("shared_atomics", inputs=[v], outputs=[out], block=(300,))
    assert torch.equal(out, torch.bincount(v & 15, minlength=16).int())


def test_shared_memory_of_functions(simt: Simt) -> None:
    out = zeros(128)
    simt.run("shared_in_functions", outputs=[out], block=(128,), shared=512)
    assert out.tolist() == [7 * (127 - t) for t in range(128)]


def test_vector_access(simt: Simt) -> None:
    data = torch.arange(48, dtype=torch.uint8)
    out = torch.zeros(48, dtype=torch.uint8)
    simt.run("vectors", inputs=[data], outputs=[out], block=(1,))
    assert torch.equal(out, data)


def test_constants_are_readable(simt: Simt) -> None:
    out = zeros(32)
    simt.run("table", inputs=[torch.arange(32, dtype=torch.int32)], outputs=[out])
    assert out.tolist() == [3, 1, 4, 1, 5, 9, 2, 6] * 4


VIEWS = {
    "one row": ((8,), (1,)),
    "every third": ((8,), (3,)),
    "rows": ((4, 6), (12, 1)),
    "transposed": ((6, 4), (1, 12)),
    "heads of a fused projection": ((3, 2, 4), (24, 4, 1)),
    "expanded": ((5, 6), (0, 1)),
    "overlapping rows": ((4, 6), (3, 1)),
    "three strides": ((2, 4, 3), (3, 40, 5)),
    "interleaved": ((3, 4), (5, 3)),
    "one element": ((1, 1), (7, 7)),
    "scalar": ((), ()),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_legal_to_the_element(simt: Simt, view: str) -> None:
    if not simt.checked:
        pytest.skip("seen by the executor's checked build")
    shape, strides = VIEWS[view]
    elements = {0}
    for size, stride in zip(shape, strides, strict=True):
        elements = {e + i * stride for e in elements for i in range(size)}
    memory = ints(max(elements) + 9)
    tensor = memory[4:].as_strided(shape, strides)
    for offset in range(-4, max(elements) + 5):
        for name, views in (
            ("read_at", {"inputs": [tensor], "outputs": [zeros(1)]}),
            ("write_at", {"outputs": [tensor]}),
        ):
            if name == "write_at" and view in ("expanded", "overlapping rows", "interleaved"):
                continue  # the fixture copies outputs back, which torch refuses for these
            arguments = {"numbers": [offset], "block": (1,)} | views
            if offset in elements:
                simt.run(name, **arguments)
                if name == "read_at":
                    assert arguments["outputs"][0] == memory[4 + offset]
            else:
                simt.fails("out of bounds", name, **arguments)


def test_several_views_of_one_buffer(simt: Simt) -> None:
    """Reads are legal in any of them; the rest of the buffer is not."""
    if not simt.checked:
        pytest.skip("seen by the executor's checked build")
    buffer = torch.arange(32, dtype=torch.int32)
    legal = [*range(8), *range(16, 24)]
    for offset in range(32):
        arguments = {
            "inputs": [buffer[:8], buffer[16:24]],
            "outputs": [zeros(1)],
            "numbers": [offset],
            "block": (1,),
        }
        try:
            simt.run("read_at", **arguments, in_place=True)
            found = True
        except RuntimeError as error:
            assert "out of bounds" in str(error)  # noqa: PT017
            found = False
        assert found == (offset in legal), offset


def test_an_output_may_be_an_input(simt: Simt) -> None:
    x = torch.arange(8, dtype=torch.int32)
    simt.run("read_at", inputs=[x], outputs=[x], numbers=[5], block=(1,), in_place=True)
    assert x[0] == 5
