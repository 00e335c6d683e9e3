"""Masks and logits for the tests of apply_token_bitmask, and what it has to give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SHARES = {"none": 0.0, "few": 0.02, "half": 0.5, "most": 0.98, "all": 1.0}


def pack(allowed: Tensor) -> Tensor:
    """int32 [M, ceil(V / 32)] of a bool [M, V]; the bits behind V are 0."""
    masks, vocab = allowed.shape
    padded = np.zeros((masks, -(-vocab // 32) * 32), dtype=bool)
    padded[:, :vocab] = allowed.numpy()
    packed = np.packbits(padded, axis=1, bitorder="little")
    return torch.from_numpy(packed.view("<i4").astype(np.int32)).reshape(masks, -(-vocab // 32))


def random_bitmask(kind: str, masks: int, vocab: int) -> Tensor:
    """Each bit is 1 with the share that ``kind`` stands for: with "few" and "most" many words are whole."""
    generator = torch.Generator().manual_seed(masks * vocab)
    return pack(torch.rand(masks, vocab, generator=generator) < SHARES[kind])


def any_logits(rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """Logits with NaNs of several kinds, infinities and subnormals among them."""
    generator = torch.Generator().manual_seed(rows + vocab)
    integer, low = {4: (torch.int32, -(2**31)), 2: (torch.int16, -(2**15))}[dtype.itemsize]
    return torch.randint(low, -low, (rows, vocab), generator=generator, dtype=integer).view(dtype)


def expected_logits(logits: Tensor, bitmask: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """A copy of ``logits`` with -inf where ``bitmask`` has no 1."""
    words = np.ascontiguousarray(bitmask.numpy()).astype("<i4")
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little") if words.size else words[:, :0]
    allowed = torch.zeros(bitmask.shape[0], logits.shape[1], dtype=torch.bool)
    width = min(bits.shape[1], logits.shape[1])
    allowed[:, :width] = torch.from_numpy(bits[:, :width].astype(bool))
    result = logits.clone()
    for mask, row in enumerate(range(logits.shape[0]) if rows is None else rows):
        result[row, ~allowed[mask]] = -torch.inf
    return result
