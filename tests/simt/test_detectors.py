"""Planted bugs (csrc/simt/selftest/detectors.cu): the checked build reports each one in every schedule, with
kernel, block, thread, and a line that is marked in the source; the fast build reports those that need no
check of each access."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from selftests import Simt

SOURCE = Path(__file__).parents[2] / "csrc" / "simt" / "selftest" / "detectors.cu"
MARKS = [
    (mark, number)
    for number, line in enumerate(SOURCE.read_text().splitlines(), 1)
    for mark in re.findall(r"// here: (\w+)", line)
]


def fails(simt: Simt, kernel: str, message: str, *, checked_only: bool = False, **changes: Any) -> None:
    """The kernel ends with this message at a marked line."""
    arguments: dict[str, Any] = {
        "inputs": [torch.arange(256, dtype=torch.int32)],
        "outputs": [torch.zeros(256, dtype=torch.int32)],
        "block": (128,),
    } | changes
    arguments.setdefault("numbers", [len(arguments["outputs"][0])])
    report = simt.fails(message, kernel, checked_only=checked_only, **arguments)
    lines = "|".join(str(number) for mark, number in MARKS if mark == kernel)
    assert lines, f"no line of {SOURCE} is marked for {kernel}"
    place = rf"{kernel} block \(\d+,\d+,\d+\) thread \(\d+,\d+,\d+\) at detectors\.cu:({lines}): "
    assert re.search(place, report), report
    assert re.search(r"\[order (forward|reverse|random, seed \d+)(, (seed \d+, )?preempt \d+)?\]$", report)


FOUND_BY_BOTH = [
    ("two_barriers", "barrier divergence: thread \\d+ is at this barrier, \\d+ threads wait at detectors.cu"),
    ("barrier_missed", "barrier divergence: thread 77"),
    ("early_return", "barrier divergence: thread (9[6-9]|1\\d\\d) (left|had left) the kernel"),
    ("early_return_named", "barrier divergence: thread (9[6-9]|1\\d\\d) (left|had left) the kernel"),
    ("named_barrier_half", "deadlock: no thread can go on: .*32 threads wait in named_barrier"),
    ("named_barrier_sizes", "named barrier 1 is for (64|96) threads here, for (64|96) at detectors.cu"),
    ("named_barrier_not_warps", "id 1 .*, 40 threads"),
    ("named_barrier_twice", "thread \\d+ arrives twice"),
    (
        "named_barrier_half_warps",
        "warp divergence: lane \\d+ (left|is at named barrier 1, lane \\d+ has left)",
    ),
    ("named_barrier_two_lines", "warp divergence: lane \\d+ is at named barrier 1 here"),
    ("livelock", "livelock"),
    ("two_shuffles", "warp divergence: lane \\d+ is in __shfl_xor_sync here"),
    ("shuffle_from_outside", "lane \\d reads lane 9, which does not take part"),
    ("overlapping_masks", "masks overlap|mask names lane \\d, which has left"),
    ("not_in_own_mask", "lane \\d+ is not in its own mask 0x0000ffff"),
    ("lane_left", "lane 5,? (left|which has left) the kernel"),
    ("in_helper", "lane 5,? (left|which has left) the kernel"),
    ("sync_warp_missed", "lane 31,? (left|which has left) the kernel"),
    ("shuffle_width", "power of two up to 32, not 12"),
    ("static_too_large", "196612 bytes in all, 49156 static|49156 bytes in all, 49156 static"),
    ("shared_not_aligned", "misaligned 16-byte vector access"),
    ("misaligned_vector", "misaligned 16-byte vector access"),
    ("misaligned_atomic", "misaligned 4-byte atomic"),
    ("wild_pointer", "memory fault|is in no tensor"),
    ("trap", "trap"),
    ("division_by_zero", "trap|division by zero"),
    ("dynamic_too_small", "out of bounds of shared memory: 'dynamic' \\[256 bytes\\] at byte"),
]


@pytest.mark.parametrize(("kernel", "message"), FOUND_BY_BOTH, ids=[k for k, _ in FOUND_BY_BOTH])
def test_found_by_both_builds(simt: Simt, kernel: str, message: str) -> None:
    if kernel == "dynamic_too_small" and not simt.checked:
        # found behind the block, which knows no line
        arguments = {"inputs": [torch.zeros(1)], "outputs": [torch.zeros(1)], "numbers": [0], "shared": 256}
        simt.fails(message, kernel, block=(128,), **arguments)
        return
    fails(simt, kernel, message, shared=256 if kernel == "dynamic_too_small" else 0)


FOUND_BY_CHECKED = [
    ("race_in_warp", "data race on shared memory: (read|write) .* after a (read|write) by thread \\d+ .*'s'"),
    (
        "race_after_sync_warp",
        "data race on shared memory: (read|write) .* after a (read|write) by thread \\d+",
    ),
    ("race_between_warps", "data race on shared memory|uninitialised"),
    ("overwritten_too_early", "data race on shared memory: (write .* after a read|read .* after a write)"),
    ("lost_increments", "data race on shared memory"),
    ("plain_read_of_sum", "data race on shared memory"),
    ("hidden_atomic", "data race on shared memory"),
    ("plain_read_of_global_sum", "data race on global memory"),
    ("write_after_arrive", "data race on shared memory"),
    ("read_after_arrive", "data race on shared memory|uninitialised"),
    ("uninitialised", "read of uninitialised shared memory: 's' \\[512 bytes\\] at byte 36"),
    ("uninitialised_tail", "read of uninitialised shared memory: 's' \\[16 bytes\\] at byte 12"),
    ("uninitialised_atomic", "atomic of uninitialised shared memory"),
    (
        "shared_past_end",
        "write of 4 bytes out of bounds of shared memory: 's' \\[400 bytes\\] at byte [45]\\d\\d",
    ),
    (
        "shared_read_past_end",
        "read of 4 bytes out of bounds of shared memory: 's' \\[512 bytes\\] at byte 512",
    ),
    (
        "shared_far_past_end",
        "write of 4 bytes out of bounds of shared memory: .*'a' \\[256 bytes\\] at byte \\d+",
    ),
    ("write_to_mbarrier", "write to an mbarrier that is in use: 'bar'"),
    ("read_past_end", "global read of 4 bytes out of bounds: 4 bytes past the end of 'in0' \\[256\\]"),
    (
        "read_before_start",
        "global read of 4 bytes out of bounds: 4 bytes before the start of 'in0' \\[256\\]",
    ),
    ("write_past_end", "global write of 4 bytes out of bounds: 4 bytes past the end of 'out0' \\[256\\]"),
    ("write_to_input", "write to 'in0' \\[256\\], which this op only reads"),
    ("threads_write_one_word", "data race on global memory: write after a write by thread"),
    ("global_race_in_warp", "data race on global memory"),
    ("misaligned_plain", "misaligned"),
    ("register_array", "array index out of bounds"),
    ("shift_too_far", "shift amount out of range"),
    ("others_local_memory", "read of the local memory of thread 0"),
]


@pytest.mark.parametrize(("kernel", "message"), FOUND_BY_CHECKED, ids=[k for k, _ in FOUND_BY_CHECKED])
def test_found_by_the_checked_build(simt: Simt, kernel: str, message: str) -> None:
    if kernel in ("read_past_end", "write_past_end"):
        changes = {"numbers": [256]}
    else:
        changes = {}
    fails(simt, kernel, message, checked_only=True, **changes)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            "read_between_rows",
            "global read of 4 bytes .* 12 bytes past the end of row \\(1\\) of 'in0' \\[4, 6\\]",
        ),
        (
            "vector_over_row",
            "global read of 16 bytes .* 8 bytes past the end of row \\(2\\) of 'in0' \\[4, 6\\]",
        ),
        ("write_between_rows", "global write of 4 bytes .* 16 bytes past the end of row \\(1\\) of 'out0'"),
    ],
    ids=["read", "vector", "write"],
)
def test_gaps_between_rows_are_out_of_bounds(simt: Simt, kernel: str, message: str) -> None:
    sliced = torch.zeros(4, 12, dtype=torch.int32)[:, :6]  # rows of 6 words, 12 words apart
    fails(
        simt,
        kernel,
        message,
        checked_only=True,
        inputs=[sliced],
        outputs=[torch.zeros(4, 12, dtype=torch.int32)[:, :6]],
        numbers=[1],
    )


@pytest.mark.parametrize("kernel", ["blocks_write_one_word", "block_reads_others"])
def test_blocks_race(simt: Simt, kernel: str) -> None:
    message = "data race on global memory: (read|write) after a (read|write) by block number \\d+ thread \\d+"
    outputs = [torch.zeros(600, dtype=torch.int32)]
    fails(simt, kernel, message, checked_only=True, grid=(4,), outputs=outputs)


def test_last_block_needs_a_fence(simt: Simt) -> None:
    outputs = [torch.zeros(4 * 128 + 2, dtype=torch.int32)]
    message = "no __threadfence between that and its block's atomic"
    fails(simt, "last_block_unfenced", message, checked_only=True, grid=(4,), outputs=outputs)


def test_endless_loop() -> None:
    fails(Simt("checked"), "endless_loop", "endless loop", checked_only=True)


@pytest.mark.parametrize("build", ["fast", "checked"])
def test_time_limit(build: str) -> None:
    for kernel, checked_only in (("too_slow", False), ("too_slow_alone", True)):
        if checked_only and build == "fast":
            continue
        fails(Simt(build), kernel, "more than time_limit = 1 s", options={"time_limit": 1})


def test_stack_overflow(simt: Simt) -> None:
    simt.fails(
        "stack overflow: a thread's local variables take more than 128 KiB|memory fault",
        "stack_overflow",
        inputs=[torch.zeros(1)],
        outputs=[torch.zeros(256)],
        numbers=[0],
        block=(128,),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": (1025,)}, "block \\(1025, 1, 1\\)"),
        ({"block": (1, 1, 65)}, "block \\(1, 1, 65\\)"),
        ({"block": (0,)}, "block \\(0, 1, 1\\)"),
        ({"grid": (0,)}, "grid \\(0, 1, 1\\)"),
        ({"grid": (1, 65536)}, "grid \\(1, 65536, 1\\)"),
        ({"grid": (1, 1, 65536)}, "grid \\(1, 1, 65536\\)"),
        ({"grid": (1 << 31,)}, "grid \\(2147483648, 1, 1\\)"),
        ({"shared": 227 * 1024 + 1}, "232449 bytes of dynamic shared memory, limit 232448"),
        (
            {"shared": 2049, "options": {"shared_limit": 2048}},
            "2049 bytes of dynamic shared memory, limit 2048",
        ),
    ],
)
def test_launch_limits(simt: Simt, changes: dict[str, Any], message: str) -> None:
    arguments = {"inputs": [torch.zeros(1)], "outputs": [torch.zeros(1, dtype=torch.int32)], "numbers": [1]}
    simt.fails("nothing: launch: " + message, "nothing", **(arguments | changes))


def test_arguments_up_to_4_kib(simt: Simt) -> None:
    simt.fails("launch: 5008 bytes of arguments, limit 4096", "large_arguments", outputs=[torch.zeros(32)])


@pytest.mark.parametrize("block", [(1024,), (32, 32), (16, 1, 64)])
def test_largest_launches(simt: Simt, block: tuple[int, ...]) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    simt.run("nothing", inputs=[torch.zeros(1)], outputs=[out], numbers=[1], block=block, shared=227 * 1024)
    assert out.item() == 1


def test_an_error_leaves_the_executor_usable(simt: Simt) -> None:
    for kernel in ("wild_pointer", "two_barriers", "trap", "lane_left"):
        arguments = {"inputs": [torch.arange(256, dtype=torch.int32)], "numbers": [256], "block": (128,)}
        simt.fails(kernel, kernel, outputs=[torch.zeros(256, dtype=torch.int32)], **arguments)
        out = torch.zeros(256, dtype=torch.int32)
        simt.run("nothing", outputs=[out], **arguments)
        assert out[0] == 1
