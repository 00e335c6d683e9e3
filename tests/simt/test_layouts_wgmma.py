"""wgmma against the register and shared-memory layouts of the PTX ISA, and against float64 products."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from ptx_layouts import (
    DESCRIPTOR_MODE,
    SWIZZLE_BITS,
    a_8bit,
    a_16bit,
    canonical_offset,
    odd_values,
    pack,
    swizzle,
    unpack,
    wgmma_d,
)

TYPES = ["bf16", "f16", "e4m3", "s8"]
SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128}


@dataclass(frozen=True)
class Operand:
    """How a [mn, K] operand lies in shared memory: its canonical layout, and the step to the next product."""

    mode: str
    mn_major: bool
    lbo: int
    sbo: int
    step: int  # bytes

    def address(self, mn: int, k: int, step: int, start: int, element: int) -> int:
        plain = canonical_offset(
            mn, k, mode=self.mode, mn_major=self.mn_major, element_bytes=element, lbo=self.lbo, sbo=self.sbo
        )
        return int(swizzle(start + step * self.step + plain, SWIZZLE_BITS[self.mode]))

    def put(self, image: torch.Tensor, start: int, matrix: torch.Tensor, step: int) -> None:
        """Writes the [mn, K] matrix of product `step` into the image."""
        element = matrix.element_size()
        raw = matrix.contiguous().view(torch.uint8).view(matrix.shape[0], matrix.shape[1], element)
        t = 16 // element
        for mn in range(matrix.shape[0]):
            for k in range(matrix.shape[1]):
                if not self.mn_major and k % t:
                    continue  # 16 bytes of K at once
                at = self.address(mn, k, step, start, element)
                if self.mn_major:
                    image[at : at + element] = raw[mn, k]
                else:
                    image[at : at + 16] = raw[mn, k : k + t].reshape(-1)


def k_major(mode: str, rows: int, steps: int) -> Operand:
    """Rows one span long; the products of one span lie beside each other, further ones in further tiles."""
    if mode == "none":
        return Operand(mode, False, lbo=rows * 16, sbo=128, step=2 * rows * 16)
    assert steps * 32 <= SPAN[mode] or SPAN[mode] == 32
    return Operand(mode, False, lbo=16, sbo=8 * SPAN[mode], step=32 if SPAN[mode] > 32 else rows * 32)


def mn_major(mode: str, n: int, steps: int) -> Operand:
    """Rows of K, each one span of N long; whole spans follow one another; 16-bit types."""
    if mode == "none":
        return Operand(mode, True, lbo=n * 16, sbo=128, step=2 * n * 16)
    return Operand(mode, True, lbo=steps * 16 * SPAN[mode], sbo=8 * SPAN[mode], step=16 * SPAN[mode])


def run(
    simt,
    name: str,
    n: int,
    a_operand: Operand | None,
    b_operand: Operand,
    steps: int,
    *,
    accumulate: bool,
    seed: int,
):
    element = 1 if name in ("e4m3", "s8") else 2
    k = 32 // element
    b_start = 64 * max(32 * steps, SPAN[a_operand.mode] if a_operand else 0)  # bytes of A
    b_start = (b_start + 1023) // 1024 * 1024
    size = (b_start + n * max(32 * steps, SPAN[b_operand.mode]) + 1023) // 1024 * 1024
    image = torch.zeros(size, dtype=torch.uint8)
    a = [odd_values(name, 64, k, seed=seed + 2 * s) for s in range(steps)]
    b = [odd_values(name, n, k, seed=seed + 2 * s + 1) for s in range(steps)]  # [N, K]
    for s in range(steps):
        if a_operand is not None:
            a_operand.put(image, 0, a[s], s)
        b_operand.put(image, b_start, b[s], s)
    position = a_8bit if element == 1 else a_16bit
    regs = torch.stack(
        [torch.cat([pack(x[16 * w : 16 * w + 16], position, 32, 16 // element) for w in range(4)]) for x in a]
    )
    g = torch.Generator().manual_seed(seed)
    c = (
        torch.randint(-(2**20), 2**20, (64, n), generator=g, dtype=torch.int32)
        if name == "s8"
        else torch.randn(64, n, generator=g)
    )
    lanes = torch.tensor([wgmma_d(t, i) for t in range(128) for i in range(n // 2)])
    rc = c[lanes[:, 0], lanes[:, 1]].contiguous().view(torch.int32)
    out = torch.empty(128, n // 2, dtype=torch.int32)
    a_args = (
        [0, a_operand.lbo, a_operand.sbo, DESCRIPTOR_MODE[a_operand.mode]] if a_operand else [-1, 0, 0, 0]
    )
    b_args = [b_start, b_operand.lbo, b_operand.sbo, DESCRIPTOR_MODE[b_operand.mode]]
    simt.run(
        "wgmma",
        inputs=[image, regs.contiguous(), rc],
        outputs=[out],
        numbers=[
            *[TYPES.index(name), n, int(b_operand.mn_major), int(a_operand is None), size],
            *a_args,
            *b_args,
            *[steps, a_operand.step if a_operand else 0, b_operand.step, int(accumulate), 0],
        ],
        block=(128,),
        shared=size,
    )
    got = unpack(out.view(c.dtype), wgmma_d, 64, n)
    want = sum(x.double() @ y.double().T for x, y in zip(a, b, strict=True)) + (
        c.double() if accumulate else 0
    )
    magnitude = (
        sum(x.double().abs() @ y.double().abs().T for x, y in zip(a, b, strict=True)) + c.double().abs()
    )
    return got, want, magnitude


def check(name: str, got, want, magnitude) -> None:
    if name == "s8":
        assert torch.equal(got.double(), want)
    else:
        assert bool(((got.double() - want).abs() <= magnitude * 2.0**-19).all())


SHAPES = [("bf16", n) for n in (8, 16, 32, 64, 96, 128, 160, 192, 256)]
SHAPES += [("f16", 96), ("e4m3", 64), ("e4m3", 256), ("s8", 32), ("s8", 128)]


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(("name", "n"), SHAPES)
def test_k_major(simt, name: str, n: int, in_registers: bool) -> None:
    """Both operands K-major, with each swizzle; A from shared memory or registers (figures 148 and 152)."""
    modes = ["none", "32B", "64B", "128B"] if n == 96 or (name, n) in (("e4m3", 64), ("s8", 32)) else ["128B"]
    for seed, mode in enumerate(modes):
        steps = 2
        a = None if in_registers else k_major(modes[-1 - seed], 64, steps)
        check(
            name, *run(simt, name, n, a, k_major(mode, n, steps), steps, accumulate=seed % 2 == 0, seed=seed)
        )


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("mode", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize(("name", "n"), [("bf16", 64), ("bf16", 128), ("f16", 96)])
def test_n_major(simt, name: str, n: int, mode: str, in_registers: bool) -> None:
    if n * 2 % SPAN[mode]:
        pytest.skip("N is no multiple of the span")
    a = None if in_registers else k_major("64B", 64, 2)
    check(name, *run(simt, name, n, a, mn_major(mode, n, 2), 2, accumulate=True, seed=7))


@pytest.mark.parametrize(
    ("n", "mode", "lbo", "sbo", "exact"),
    [
        # Figure 168: Swizzle<0,4,3> o ((8,1,2),(8,2)):((1,8,64),(8,128)); LBO 128, SBO 64 elements
        (16, "none", 256, 128, lambda mn, k: mn % 8 + mn // 8 * 64 + k % 8 * 8 + k // 8 * 128),
        # Figure 169: Swizzle<1,4,3> o ((8,2,2),(8,2)):((1,8,128),(16,256)); LBO 128, SBO 256
        (
            32,
            "32B",
            256,
            512,
            lambda mn, k: mn % 8 + mn // 8 % 2 * 8 + mn // 16 * 128 + k % 8 * 16 + k // 8 * 256,
        ),
        # Figure 170: Swizzle<2,4,3> o ((8,4,2),(8,2)):((1,8,256),(32,512)); LBO 256, SBO 512
        (
            64,
            "64B",
            512,
            1024,
            lambda mn, k: mn % 8 + mn // 8 % 4 * 8 + mn // 32 * 256 + k % 8 * 32 + k // 8 * 512,
        ),
    ],
)
def test_the_worked_examples_of_n_major_layouts(simt, n, mode, lbo, sbo, exact) -> None:
    """MN-major bf16 examples under "Canonical Layouts": the exact layouts and the parameters given there."""

    class Exact(Operand):
        def address(self, mn: int, k: int, step: int, start: int, element: int) -> int:
            return int(swizzle(start + 2 * exact(mn, k), SWIZZLE_BITS[mode]))

    check("bf16", *run(simt, "bf16", n, None, Exact(mode, True, lbo, sbo, 0), 1, accumulate=False, seed=3))


def test_descriptor_fields(simt) -> None:
    """Matrix Descriptor Format: start, leading and stride offsets (x & 0x3FFFF) >> 4 in bits 13-0, 29-16,
    45-32; swizzle in bits 63-62, 1 for 128 bytes, 2 for 64, 3 for 32."""
    out = torch.empty(8, dtype=torch.int64)
    simt.run("descriptor", outputs=[out], block=(1,), shared=4096)
    address, plain, *built = out.tolist()

    def fields(descriptor: int) -> tuple[int, ...]:
        d = descriptor % 2**64
        return d & 0x3FFF, d >> 14 & 3, d >> 16 & 0x3FFF, d >> 32 & 0x3FFF, d >> 46 & 0xFFFF, d >> 62

    # No swizzle, tf32 (figure 166): LBO 64 * 4 bytes, encoded 16; SBO 32 * 4 bytes, encoded 8
    assert fields(plain) == (address >> 4, 0, 16, 8, 0, 0)
    for descriptor, (offset, lbo, sbo, swizzle_mode) in zip(
        built,
        [
            (0, 1, 64, 1),
            (1024 + 64, 1, 64, 1),
            (512, 1, 32, 2),
            (256, 1, 16, 3),
            (0, 512, 64, 1),
            (0, 16383, 16383, 0),
        ],
        strict=True,
    ):
        assert fields(descriptor) == ((address + offset) >> 4, 0, lbo, sbo, 0, swizzle_mode)
