"""KV caches laid out in memory in every way an engine may, for the tests of ops that move blocks."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCKS, BLOCK, HEADS, DIM = 11, 16, 3, 24
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.float8_e4m3fn]
Pair = tuple[Tensor, Tensor]


def filled(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randint(-100, 100, shape).to(dtype).to(device)


def make_caches(layout: str, dtype: torch.dtype, device: str = "cpu") -> Pair:
    """Key and value cache [BLOCKS, BLOCK, HEADS, DIM] in the ways an engine may lay them out."""

    def make(*shape: int) -> Tensor:
        return filled(*shape, dtype=dtype, device=device)

    if layout == "key and value of a block together":
        both = make(BLOCKS, 2, BLOCK, HEADS, DIM)
        return both[:, 0], both[:, 1]
    one = {
        "dense": lambda: make(BLOCKS, BLOCK, HEADS, DIM),
        "head-major blocks": lambda: make(BLOCKS, HEADS, BLOCK, DIM).transpose(1, 2),
        "head-major pool": lambda: make(HEADS, BLOCKS, BLOCK, DIM).permute(1, 2, 0, 3),
        "padded heads": lambda: make(BLOCKS, BLOCK, HEADS, DIM + 8)[..., 3 : 3 + DIM],
        "every other block": lambda: make(2 * BLOCKS, BLOCK, HEADS, DIM)[::2],
        "a slice of the heads": lambda: make(BLOCKS, BLOCK, HEADS + 2, DIM)[:, :, 1:-1],
        "odd bytes": lambda: make(BLOCKS * 7 + 1)[1:].view(BLOCKS, 7),
        "nothing in a block": lambda: make(BLOCKS, BLOCK, 0, DIM),
    }[layout]
    return one(), one()


LAYOUTS = [
    "dense",
    "key and value of a block together",
    "head-major blocks",
    "head-major pool",
    "padded heads",
    "every other block",
    "a slice of the heads",
    "odd bytes",
    "nothing in a block",
]


def whole_memory(cache: Tensor) -> Tensor:
    """Every byte of the storage that a cache is a view of."""
    return torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
