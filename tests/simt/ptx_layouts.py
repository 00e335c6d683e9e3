"""The layouts that the PTX ISA publishes, written down once more from its text, for the tests of this folder.

Each function's docstring names the section, table or figure (numbers of PTX ISA 9.1).  Nothing here is shared
with the executor's C++.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

Position = Callable[[int, int], tuple[int, int]]  # (lane, element i of the fragment) -> (row, column)


def _group_and_thread(lane: int) -> tuple[int, int]:
    return lane >> 2, lane % 4  # groupID, threadID_in_group


def a_16bit(lane: int, i: int) -> tuple[int, int]:
    """Matrix fragments for mma.m16n8k16 with floating point type, fragment A, .f16 / .bf16 (figure 79)."""
    g, t = _group_and_thread(lane)
    row = g if 0 <= i < 2 or 4 <= i < 6 else g + 8
    col = t * 2 + (i & 1) + (8 if i >= 4 else 0)
    return row, col


def b_16bit(lane: int, i: int) -> tuple[int, int]:
    """The same section, fragment B (figure 81)."""
    g, t = _group_and_thread(lane)
    return t * 2 + (i & 1) + (8 if i >= 2 else 0), g


def a_8bit(lane: int, i: int) -> tuple[int, int]:
    """Matrix fragments for mma.m16n8k32, fragment A, .s8 / .e4m3 / .e5m2 (figure 88)."""
    g, t = _group_and_thread(lane)
    row = g if 0 <= i < 4 or 8 <= i < 12 else g + 8
    col = t * 4 + (i & 3) + (16 if i >= 8 else 0)
    return row, col


def b_8bit(lane: int, i: int) -> tuple[int, int]:
    """The same section, fragment B (figures 90 and 91)."""
    g, t = _group_and_thread(lane)
    return t * 4 + (i & 3) + (16 if i >= 4 else 0), g


def a_tf32(lane: int, i: int) -> tuple[int, int]:
    """Matrix fragments for mma.m16n8k8, fragment A, .tf32."""
    g, t = _group_and_thread(lane)
    return (g if i in (0, 2) else g + 8), (t if i in (0, 1) else t + 4)


def b_tf32(lane: int, i: int) -> tuple[int, int]:
    """The same section, fragment B, .tf32."""
    g, t = _group_and_thread(lane)
    return (t if i == 0 else t + 4), g


def c_16x8(lane: int, i: int) -> tuple[int, int]:
    """Accumulators C or D of all m16n8 shapes with .f32 or .s32 (figure 83 and its like)."""
    g, t = _group_and_thread(lane)
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


def wgmma_d(thread: int, i: int) -> tuple[int, int]:
    """WGMMA .m64nNk16 register fragment layout for accumulator matrix D (figure 149, and 153 for k32)."""
    warp, lane = divmod(thread, 32)
    return 16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + lane % 4 * 2 + i % 2


def matrix_8x8_owner(row: int, col: int) -> tuple[int, int]:
    """ldmatrix and stmatrix, fragment layout for one 8x8 matrix of 16-bit elements: (lane, half).

    Each row is held by four consecutive threads, each with two consecutive elements.
    """
    return row * 4 + col // 2, col % 2


def swizzle(address: np.ndarray | int, bits: int) -> np.ndarray | int:
    """Swizzle<bits, 4, 3> on byte addresses: the last column of the table "Canonical Layouts" of wgmma."""
    return address ^ (address >> 3 & ((1 << bits) - 1) << 4)


SWIZZLE_BITS = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
DESCRIPTOR_MODE = {"none": 0, "128B": 1, "64B": 2, "32B": 3}  # Matrix Descriptor Format, bits 63-62
TENSOR_MAP_MODE = {"none": 0, "32B": 1, "64B": 2, "128B": 3}  # CUtensorMapSwizzle


def canonical_offset(
    mn: int, k: int, *, mode: str, mn_major: bool, element_bytes: int, lbo: int, sbo: int
) -> int:
    """Byte offset, before the swizzle, of element (mn, k): the table "Canonical Layouts" of wgmma.

    K-major:  none ((8,m),(T,2k)):((1T,SBO),(1,LBO))      32B ((8,m),(T,2k)):((2T,SBO),(1,T))
              64B  ((8,m),(T,2k)):((4T,SBO),(1,T))        128B ((8,m),(T,2k)):((8T,SBO),(1,T))
    MN-major: none ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))   32B ((T,2,m),(8,k)):((1,T,LBO),(2T,SBO))
              64B  ((T,4,m),(8,k)):((1,T,LBO),(4T,SBO))   128B ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))
    """
    t = 16 // element_bytes
    atoms = {"none": 1, "32B": 2, "64B": 4, "128B": 8}[mode]
    lbo, sbo = lbo // element_bytes, sbo // element_bytes  # in elements, as the table has them
    if not mn_major:
        stride = lbo if mode == "none" else t
        offset = mn % 8 * atoms * t + mn // 8 * sbo + k % t + k // t * stride
    elif mode == "none":
        offset = mn % t + mn // t * sbo + k % 8 * t + k // 8 * lbo
    else:
        offset = mn % t + mn // t % atoms * t + mn // (t * atoms) * lbo + k % 8 * atoms * t + k // 8 * sbo
    return offset * element_bytes


def pack(matrix: torch.Tensor, position: Position, lanes: int, elements: int) -> torch.Tensor:
    """The registers [lanes, elements * size / 4] that hold a matrix by the fragment layout `position`."""
    index = torch.tensor([position(lane, i) for lane in range(lanes) for i in range(elements)])
    flat = matrix.contiguous().view(_BITS[matrix.element_size()])[index[:, 0], index[:, 1]]
    return flat.reshape(lanes, elements).contiguous().view(torch.int32)


def unpack(registers: torch.Tensor, position: Position, rows: int, cols: int) -> torch.Tensor:
    """The matrix that accumulators [lanes, elements] hold."""
    out = torch.full((rows, cols), torch.iinfo(torch.int32).min).to(registers.dtype)
    for lane in range(registers.shape[0]):
        for i in range(registers.shape[1]):
            out[position(lane, i)] = registers[lane, i]
    return out


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "tf32": torch.float32,
}


def odd_values(name: str, *shape: int, seed: int) -> torch.Tensor:
    """Values that leave no bit of the type unused: several magnitudes, subnormal numbers, both zeros."""
    g = torch.Generator().manual_seed(seed)
    dtype = DTYPES[name]
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, generator=g, dtype=torch.int8)
    x = torch.randn(shape, generator=g) * torch.exp2(torch.randint(-6, 3, shape, generator=g).float())
    pick = torch.randint(0, 40, shape, generator=g)
    x[pick == 0] = 0.0
    x[pick == 1] = -0.0
    x[pick == 2] = torch.finfo(dtype).smallest_normal / 2 if dtype != torch.float32 else 2.0**-120
    if name == "tf32":  # the low 13 bits are not part of the number
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return x.to(dtype)
