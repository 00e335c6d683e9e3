"""wgmma's rules, and whole pipelines: tensor tiles through a ring of mbarriers into wgmma."""

from __future__ import annotations

import pytest
import torch
from ptx_layouts import DTYPES, odd_values

# In the order of enum WgmmaBug: message, and whether only the checked build can see it.
WGMMA_BUGS = {
    "no fence": (r"no wgmma_fence\(\)", False),
    "no fence after the wait": (r"no wgmma_fence\(\)", False),
    "accumulator touched after the fence": (r"used these accumulators since the last wgmma_fence", True),
    "accumulator read before the wait": (r"accumulators before the wgmma_wait", True),
    "accumulator written before the wait": (r"accumulators before the wgmma_wait", True),
    "waits for too few groups": (
        r"accumulators before the wgmma_wait|left the kernel before the wgmma_wait",
        False,
    ),
    "no commit": (r"accumulators before the wgmma_wait|left the kernel before the wgmma_wait", False),
    "no wait": (r"left the kernel before the wgmma_wait", False),
    "misaligned tile": (r"multiple of 1024 bytes", False),
    "operand overwritten": (r"data race", True),
    "one warp issues one less": (r"warp 3 issued 1 products, others of its warpgroup 2", False),
    "warps differ": (r"another product than the first warp", False),
    "lanes differ": (r"differ between lanes 0 and 7", False),
    "registers of A overwritten": (r"registers of A", True),
    "accumulate differs": (r"differ between lanes", False),
}


@pytest.mark.parametrize("name", WGMMA_BUGS)
def test_planted_bug_with_wgmma(simt, name: str) -> None:
    message, checked_only = WGMMA_BUGS[name]
    bug = 1 + list(WGMMA_BUGS).index(name)
    simt.fails(
        message,
        "wgmma_bug",
        outputs=[torch.zeros(128, 4)],
        numbers=[bug],
        block=(128,),
        shared=8192,
        checked_only=checked_only,
    )


def test_the_kernel_of_the_planted_bugs_is_legal_without(simt) -> None:
    out = torch.zeros(128, 4)
    simt.run("wgmma_bug", outputs=[out], numbers=[0], block=(128,), shared=8192)
    assert bool((out == 17).all())


def test_a_block_that_is_no_whole_warpgroup(simt) -> None:
    simt.fails(
        "no whole warpgroup",
        "wgmma_bug",
        outputs=[torch.zeros(128, 4)],
        numbers=[0],
        block=(96,),
        shared=8192,
    )


def test_missing_proxy_fence_and_base_offset(simt) -> None:
    from test_layouts_wgmma import k_major

    operand = k_major("128B", 64, 1)
    for bug, message in [(1, "no fence_proxy_async after it"), (5, "base offset 1")]:
        numbers = [
            0,
            64,
            0,
            0,
            16384,
            0,
            operand.lbo,
            operand.sbo,
            1,
            8192,
            operand.lbo,
            operand.sbo,
            1,
            1,
            0,
            0,
            0,
            bug,
        ]
        simt.fails(
            message,
            "wgmma",
            inputs=[
                torch.zeros(16384, dtype=torch.uint8),
                torch.zeros(128, 4, dtype=torch.int32),
                torch.zeros(128, 32),
            ],
            outputs=[torch.zeros(128, 32)],
            numbers=numbers,
            block=(128,),
            shared=16384,
            checked_only=bug == 1,
        )


# ---- the whole pipeline --------------------------------------------------------------------------

# mode of the kernel: type, B stored as [K, N]
MODES = [
    ("bf16", False),
    ("bf16", False),
    ("bf16", True),
    ("bf16", True),
    ("f16", False),
    ("f16", True),
    ("e4m3", False),
    ("e4m3", False),
    ("s8", False),
    ("s8", False),
]


def run_gemm(
    simt, mode: int, m: int, n: int, k: int, bug: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    name, n_major = MODES[mode]
    a = odd_values(name, m, k, seed=m + k)
    b = odd_values(name, n, k, seed=n + k)
    out = torch.zeros(m, n, dtype=torch.int32 if name == "s8" else torch.float32)
    simt.run(
        "gemm", inputs=[a, b.T.contiguous() if n_major else b], outputs=[out], numbers=[m, n, k, mode, bug]
    )
    wide = torch.float64
    return out, a.to(wide) @ b.to(wide).T, a.to(wide).abs() @ b.to(wide).abs().T


@pytest.mark.parametrize("mode", range(len(MODES)))
@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 16), (64, 64, 128), (70, 136, 208), (129, 72, 528)])
def test_gemm(simt, mode: int, m: int, n: int, k: int) -> None:
    out, want, magnitude = run_gemm(simt, mode, m, n, k)
    if out.dtype == torch.int32:
        assert torch.equal(out.double(), want)
    else:
        assert bool(((out.double() - want).abs() <= magnitude * k * 2.0**-23).all())


GEMM_BUGS = {
    "no barrier after the init": (1, r"data race|no initialised mbarrier", True),
    "no fence after the init": (2, r"no mbar_fence_init", False),
    "full slot not waited for": (3, r"still filling|uninitialised|data race", True),
    "empty slot not waited for": (4, r"data race|still filling|more than 1 arrivals", True),
    "expects too much": (5, r"no thread can go on.*16 bytes", False),
    "expects too little": (6, r"no thread can go on.*16 bytes more", False),
    "wgmma not waited for": (7, r"before the wgmma_wait|no wgmma_fence|data race", False),
    "slot freed before the wgmma_wait": (8, r"data race|still filling", True),
    "producer waits for the wrong parity": (9, r"no thread can go on.*'empty'", False),
    "one arrival never comes": (10, r"no thread can go on.*lacks 1 of 5 arrivals", False),
    "mbarrier initialised twice": (11, r"initialised twice", False),
}


@pytest.mark.parametrize("name", GEMM_BUGS)
def test_planted_bug_in_gemm(simt, name: str) -> None:
    bug, message, checked_only = GEMM_BUGS[name]
    a = torch.ones(64, 640).to(DTYPES["bf16"])
    simt.fails(
        message,
        "gemm",
        inputs=[a, a],
        outputs=[torch.zeros(64, 64)],
        numbers=[64, 64, 640, 0, bug],
        checked_only=checked_only,
    )
