"""cp.async, mbarriers and bulk copies: legal pipelines in every schedule, and one broken rule at a time."""

from __future__ import annotations

import pytest
import torch


def ints(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-999, 999, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


# ---- cp.async ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async_fills_with_zeros(simt, size: int) -> None:
    data = torch.randint(1, 255, (128, size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    valid = torch.arange(128, dtype=torch.int32) % (size + 1)
    out = torch.empty(128, size, dtype=torch.uint8)
    simt.run("cp_async", inputs=[data, valid], outputs=[out], numbers=[size], block=(128,))
    want = torch.where(torch.arange(size)[None] < valid[:, None], data, 0)
    assert torch.equal(out, want)


def expected_ring(data: torch.Tensor) -> torch.Tensor:
    return data.view(-1, 128).roll(-1, 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_cp_async_ring(simt, steps: int) -> None:
    data = ints(steps, 128)
    out = torch.empty_like(data)
    simt.run("cp_async_ring", inputs=[data], outputs=[out], numbers=[steps, 0], block=(128,))
    assert torch.equal(out, expected_ring(data))


def test_copies_left_in_flight_that_nobody_reads(simt) -> None:
    data = ints(9, 128)
    out = torch.zeros_like(data)
    simt.run("cp_async_ring", inputs=[data], outputs=[out], numbers=[9, 5], block=(128,))
    assert torch.equal(out[0], expected_ring(data)[0])


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (1, "missing wait"),
        (2, "missing wait"),
        (3, "missing wait|data race|uninitialised"),
        (4, "data race|still filling"),
    ],
    ids=["one group too few", "no wait", "no barrier after the wait", "load into the tile in use"],
)
def test_planted_bug_in_a_cp_async_ring(simt, bug: int, message: str) -> None:
    data = ints(9, 128)
    simt.fails_or_differs(
        message,
        expected_ring(data),
        "cp_async_ring",
        inputs=[data],
        outputs=[torch.empty_like(data)],
        numbers=[9, bug],
        block=(128,),
    )


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (1, "shared address is not 16-byte aligned"),
        (2, "global address .* is not 16-byte aligned"),
        (3, "17 source bytes of 16"),
        (4, "out of bounds"),
        (5, "out of bounds"),
        (6, "not an address in shared memory"),
    ],
)
def test_bad_arguments_of_cp_async(simt, bug: int, message: str) -> None:
    simt.fails(
        message,
        "bad_cp_async",
        inputs=[torch.zeros(64, dtype=torch.uint8)],
        outputs=[torch.zeros(16, dtype=torch.int32)],
        numbers=[bug],
        block=(1,),
    )


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_cp_async_arrives_on_an_mbarrier(simt, steps: int) -> None:
    data = ints(steps, 32)
    out = torch.empty_like(data)
    simt.run("cp_async_mbarrier", inputs=[data], outputs=[out], numbers=[steps, 0], block=(64,))
    assert torch.equal(out, data.flip(1))


@pytest.mark.parametrize(
    ("bug", "message"),
    [(1, "data race|still filling|more than"), (2, "missing wait")],
    ids=["slot not waited for", "arrival without the copies"],
)
def test_planted_bug_in_cp_async_with_mbarrier(simt, bug: int, message: str) -> None:
    data = ints(7, 32)
    simt.fails_or_differs(
        message,
        data.flip(1),
        "cp_async_mbarrier",
        inputs=[data],
        outputs=[torch.empty_like(data)],
        numbers=[7, bug],
        block=(64,),
    )


# ---- mbarriers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_mbarriers_alone_order_two_warps(simt, rounds: int) -> None:
    out = torch.empty(32, dtype=torch.int32)
    simt.run("mbarrier", outputs=[out], numbers=[rounds, 0], block=(64,))
    # warp 0 writes lane l at 31 - l, then both add 1 a round; the last word is warp 1's
    assert torch.equal(out, torch.arange(31, -1, -1, dtype=torch.int32) + 2 * rounds - 1)


@pytest.mark.parametrize(
    ("bug", "message", "checked_only"),
    [
        (
            1,
            r"mbarrier 'turn' \[16 bytes\] at byte 0: 32 threads wait, phase 0 lacks 1 of 33 arrivals",
            False,
        ),
        (2, "more than 31 arrivals|data race|lacks|livelock", True),
        (3, "initialised twice", False),
        (4, "data race|no initialised mbarrier", True),
        (5, "data race|uninitialised", True),
        (6, "data race|uninitialised|no thread can go on", True),
        (7, "no initialised mbarrier", False),
        (8, "initialised twice", False),
        (9, "a count of 0 arrivals", False),
    ],
    ids=[
        "count too high",
        "count too low",
        "initialised twice",
        "no barrier after the init",
        "turn not waited for",
        "wrong parity",
        "used after inval",
        "initialised again while alive",
        "count of zero",
    ],
)
def test_planted_bug_with_mbarriers(simt, bug: int, message: str, checked_only: bool) -> None:
    out = torch.empty(32, dtype=torch.int32)
    simt.fails(message, "mbarrier", outputs=[out], numbers=[4, bug], block=(64,), checked_only=checked_only)


def test_a_deadlock_names_who_waits_where(simt) -> None:
    out = torch.empty(32, dtype=torch.int32)
    simt.fails(
        r"(?s)no thread can go on.*mbar_wait.*async_copies\.cu:\d+",
        "mbarrier",
        outputs=[out],
        numbers=[4, 1],
        block=(64,),
    )


# ---- bulk copies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_bulk_copies_in_and_out(simt, steps: int) -> None:
    data = ints(steps, 128)
    out = torch.empty_like(data)
    simt.run("bulk", inputs=[data], outputs=[out], numbers=[steps, 0], block=(64,))
    assert torch.equal(out, data + 1)


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (1, r"no mbar_fence_init\(\) after it"),
        (2, r"no thread can go on.*mbarrier 'full' .* lacks 0 of 1 arrivals and 16 bytes"),
        (3, r"no thread can go on.*got 16 bytes more than expected"),
        (4, "shared address is not 16-byte aligned"),
        (5, "510 bytes"),
        (11, "ended with this copy in flight"),
    ],
    ids=[
        "no fence after init",
        "expects too much",
        "expects too little",
        "misaligned",
        "odd size",
        "never waited for",
    ],
)
def test_planted_bug_in_bulk_copies(simt, bug: int, message: str) -> None:
    data = ints(3, 128)
    simt.fails(
        message, "bulk", inputs=[data], outputs=[torch.empty_like(data)], numbers=[3, bug], block=(64,)
    )


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (6, "still filling|uninitialised"),
        (7, "missing wait|uninitialised"),
        (8, r"with no fence_proxy_async after it"),
        (9, "data race|uninitialised|still filling"),
        (10, "data race"),
    ],
    ids=[
        "read in flight",
        "not waited for",
        "no proxy fence",
        "no barrier before the store",
        "source not waited for",
    ],
)
def test_planted_race_in_bulk_copies(simt, bug: int, message: str) -> None:
    data = ints(3, 128)
    simt.fails(
        message,
        "bulk",
        inputs=[data],
        outputs=[torch.empty_like(data)],
        numbers=[3, bug],
        block=(64,),
        checked_only=True,
    )


def test_a_bulk_store_reads_before_it_writes(simt) -> None:
    out, copy = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    simt.run("bulk_store", outputs=[out, copy], numbers=[0])
    assert out.tolist() == copy.tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("bug", "message", "checked_only"),
    [(1, "data race", True), (2, r"before bulk_wait_read\(\)", False)],
    ids=["source written too early", "never waited for"],
)
def test_planted_bug_in_a_bulk_store(simt, bug: int, message: str, checked_only: bool) -> None:
    out, copy = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    simt.fails(message, "bulk_store", outputs=[out, copy], numbers=[bug], checked_only=checked_only)
