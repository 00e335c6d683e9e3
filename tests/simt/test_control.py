"""What surrounds the kernels: schedules, counters, options, guarded memory, threads, signals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from harness import BUILD, Device, guarded_copy, simt_module
from selftests import Simt


def barriers(simt: Simt, count: int = 5, block: int = 64, grid: int = 3, **options: int) -> dict[str, int]:
    simt.stats()
    out = torch.zeros(grid, dtype=torch.int32)
    simt.run(
        "many_barriers", outputs=[out], numbers=[count, 0], block=(block,), grid=(grid,), options=options
    )
    assert out.tolist() == [count] * grid
    return simt.stats()


@pytest.fixture(params=["fast", "checked"])
def build(request: pytest.FixtureRequest) -> Simt:
    return Simt(request.param)


def test_counters(build: Simt) -> None:
    stats = barriers(build)
    assert (stats["launches"], stats["blocks"], stats["warp_ops"]) == (1, 3, 0)
    assert stats["switches"] >= 3 * 5 * 63  # each barrier but its last thread
    assert (stats["accesses"] > 0) == build.checked
    assert all(value == 0 for value in build.stats().values())


def test_a_seed_fixes_the_schedule() -> None:
    def switches(seed: int, preempt: int) -> int:
        return barriers(Simt("checked", "random", seed, preempt), grid=1)["switches"]

    def race(seed: int) -> str:
        simt = Simt("checked", "random", seed)
        x = torch.arange(256, dtype=torch.int32)
        return simt.fails(
            "race", "race_between_warps", inputs=[x], outputs=[x.clone()], numbers=[0], block=(128,)
        )

    assert switches(5, 3) == switches(5, 3)
    assert len({switches(seed, 3) for seed in range(8)}) > 1
    assert race(5) == race(5)
    assert len({race(seed) for seed in range(8)}) > 1


@pytest.mark.parametrize("kind", ["fast", "checked"])
def test_orders(kind: str) -> None:
    """Threads and blocks come as the order says, before and after a barrier."""

    def came(order: str, seed: int = 1) -> list[list[int]]:
        out, tickets = torch.zeros(2, 3 * 70, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
        simt = Simt(kind, order, seed)
        simt.run("order_of_threads", outputs=[out, tickets], grid=(3,), block=(70,), options={"threads": 1})
        for half in out.tolist():
            assert sorted(half) == list(range(210))
        return out.tolist()

    # the last thread to come to a barrier does not wait there, so it is the first behind it
    up, down = came("forward"), came("reverse")
    assert up[0] == list(range(210))
    assert up[1] == [b * 70 + t for b in range(3) for t in (69, *range(64, 69), *range(64))]
    assert down[0] == list(range(209, -1, -1))
    assert down[1] == [b * 70 + t for b in (2, 1, 0) for t in (0, *range(31, 0, -1), *range(69, 31, -1))]
    one, two = came("random", 1), came("random", 2)
    assert one == came("random", 1)
    assert one != two
    assert one[0] not in (up[0], down[0])


def test_blocks_in_reverse() -> None:
    for order, block in (("forward", 0), ("reverse", 3)):
        x = torch.zeros(8, dtype=torch.int32)
        report = Simt("checked", order).fails(
            "race",
            "blocks_write_one_word",
            inputs=[x],
            outputs=[x],
            numbers=[0],
            grid=(4,),
            options={"threads": 1},
        )
        assert f"by block number {block} thread 0" in report


def test_options_are_checked(build: Simt) -> None:
    configure = build.module.configure
    for options in ({"oder": 1}, {"order": 3}, {"preempt": -1}, {"num_sms": 0}, {"threads": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            configure(options)
    configure({"seed": 12, "num_sms": 5})
    assert build.module.configuration()["seed"] == 12
    assert build.module.configuration()["num_sms"] == 5
    assert build.module.is_checked() == build.checked


def test_unknown_self_tests_are_refused(build: Simt) -> None:
    with pytest.raises(ValueError, match="no self-test 'nonsense'"):
        build.run("nonsense", outputs=[torch.zeros(1)])


def test_uninitialised_reads_can_be_allowed() -> None:
    x = torch.zeros(256, dtype=torch.int32)
    arguments = {"inputs": [x], "numbers": [0], "block": (128,), "options": {"uninitialised": 0}}
    out = torch.zeros(256, dtype=torch.int32)
    Simt("checked").run("uninitialised", outputs=[out], **arguments)
    assert out[9] == -1  # shared memory starts as 0xFF
    assert out[8] == 1


@pytest.mark.parametrize(("stride", "extra"), [(1, 0), (2, 1), (3, 0), (8, 7), (32, 31), (33, 0)])
def test_bank_conflicts_of_shared_accesses(stride: int, extra: int) -> None:
    """32 banks of 4 bytes: lanes at distance `stride` fall on 32 / gcd(stride, 32) of them."""
    simt = Simt("checked")
    simt.stats(), simt.module.bank_conflicts()
    out = torch.zeros(32, dtype=torch.int32)
    simt.run(
        "shared_columns", outputs=[out], numbers=[stride], shared=32 * 33 * 4, options={"bank_conflicts": 1}
    )
    stats = simt.stats()
    assert (stats["shared_ops"], stats["shared_extra"]) == (2, 2 * extra)
    lines = simt.module.bank_conflicts()
    assert [(operations, more) for _, operations, more in lines] == [(1, extra)] * 2
    assert all(line.startswith("patterns.cu:") for line, _, _ in lines)


def test_thousands_of_launches(build: Simt) -> None:
    out = torch.zeros(2, dtype=torch.int32)
    threads = len(os.listdir("/proc/self/task"))
    build.run("many_barriers", outputs=[out], numbers=[1, 0], grid=(2,))
    started = len(os.listdir("/proc/self/task"))
    for _ in range(2000):
        build.run("many_barriers", outputs=[out], numbers=[1, 0], grid=(2,))
    assert len(os.listdir("/proc/self/task")) <= max(threads, started)  # none per launch


def test_two_python_threads_at_once(build: Simt) -> None:
    """Launches of several threads wait for each other, and errors reach the thread that caused them."""
    failures: list[str] = []

    def work(n: int) -> None:
        try:
            launches(n)
        except BaseException as error:  # which would end the thread unseen
            failures.append(repr(error))

    def launches(n: int) -> None:
        for i in range(50):
            out = torch.zeros(4, dtype=torch.int32)
            build.run("many_barriers", outputs=[out], numbers=[n + i, 0], block=(64,), grid=(4,))
            if out.tolist() != [n + i] * 4:
                failures.append(f"{n}: {out}")
            if n % 2:
                try:
                    build.run("trap", inputs=[out], outputs=[out], numbers=[0], block=(4,))
                    failures.append("no error")
                except RuntimeError:
                    pass

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []


def test_after_fork(build: Simt) -> None:
    """The pool's threads do not exist in a child: it makes its own."""
    barriers(build)
    child = os.fork()
    if child == 0:
        try:
            barriers(build, grid=8)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kind", ["fast", "checked"])
def test_signal_handlers_are_given_back(kind: str) -> None:
    """After a kernel's fault, a fault of somebody else ends the process as ever, with its report."""
    program = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]!r}
import faulthandler, torch
from selftests import Simt
faulthandler.enable()
x = torch.zeros(256, dtype=torch.int32)
for kernel in ("wild_pointer", "trap"):
    try:
        Simt({kind!r}).run(kernel, inputs=[x], outputs=[x], numbers=[0], block=(32,))
    except RuntimeError as error:
        print("caught", error, flush=True)
faulthandler._sigsegv()
"""
    environment = os.environ | {"INFERX_SIMT_BUILD": str(BUILD)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300
    )
    assert result.stdout.count("caught") == 2, result
    assert "Fatal Python error: Segmentation fault" in result.stderr, result
    assert result.returncode == -11


@pytest.mark.parametrize("with_report", [False, True])
def test_signal_handlers_of_two_modules(with_report: bool) -> None:
    """Overlapping launches of both builds catch their faults; somebody else's still ends the process."""
    program = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]!r}
import ctypes, faulthandler, threading, torch
from selftests import Simt
if {with_report}: faulthandler.enable()
def work(build):
    simt, x = Simt(build), torch.zeros(256, dtype=torch.int32)
    for i in range(100):
        kernel = "trap" if i % 5 == 0 else "nothing"
        try:
            simt.run(kernel, inputs=[x], outputs=[x.clone()], numbers=[0], block=(32,))
        except RuntimeError:
            print("caught\\n", end="", flush=True)
threads = [threading.Thread(target=work, args=(build,)) for build in ("checked", "fast")]
for thread in threads: thread.start()
for thread in threads: thread.join()
ctypes.string_at(8)
"""
    environment = os.environ | {"INFERX_SIMT_BUILD": str(BUILD)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120
    )
    assert result.stdout.count("caught") == 40, result
    assert ("Fatal Python error: Segmentation fault" in result.stderr) == with_report, result
    assert result.returncode == -11


# ---- guarded memory ----


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 4), (5, 1)])
def test_guarded_copies(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    module = simt_module("inferx_selftest_fast")
    tensor = torch.randn(shape).to(dtype)
    copy = guarded_copy(module, tensor)
    assert type(copy) is torch.Tensor
    assert (copy.shape, copy.stride(), copy.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert torch.equal(copy.float(), tensor.float())
    assert copy.data_ptr() % 16 == 0 or not shape or copy.numel() * dtype.itemsize % 16 != 0


def test_guarded_copies_keep_strides_and_fill_gaps() -> None:
    module = simt_module("inferx_selftest_fast")
    base = torch.randn(4, 12)
    for view in (base[:, 2:8], base.t(), base[::2], base[:, :1].expand(4, 7), base[1:, 3]):
        copy = guarded_copy(module, view)
        assert copy.stride() == view.stride()
        assert torch.equal(copy, view)
    copy = guarded_copy(module, base[:, 2:8])
    assert copy.as_strided((3, 6), (12, 1), copy.storage_offset() + 6).isnan().all()


def test_the_fast_build_faults_behind_a_tensor() -> None:
    simt = Simt("fast")
    x = torch.zeros(256, dtype=torch.int32)
    for kernel in ("read_past_end", "write_past_end"):
        report = simt.fails("memory fault", kernel, inputs=[x], outputs=[x], numbers=[256], block=(128,))
        assert "detectors.cu" in report


def test_results_of_ops_are_guarded_and_start_as_nan() -> None:
    device = Device("simt-fast")
    with device:
        results = [
            torch.empty(3, 5),
            torch.empty((2, 4), dtype=torch.bfloat16),
            torch.empty_like(torch.zeros(4)),
            torch.zeros(2).new_empty(7),
            torch.empty_strided((2, 3), (8, 1)),
        ]
    for tensor in results:
        assert tensor.isnan().all()
        end = tensor.data_ptr() + tensor.itemsize * (
            1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        )
        assert -end % 4096 < 16
    assert not torch.zeros(2).isnan().any()
