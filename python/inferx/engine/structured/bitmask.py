"""Masks of a step's rows: filled by the matchers, applied to all rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from inferx import ops
from inferx.engine.sampling_arrays import upload
from inferx.engine.structured.matcher import Matcher, MatcherError


def apply_matchers(
    logits: torch.Tensor, matchers: Sequence[Matcher | None], num_words: int
) -> tuple[list[int], dict[int, str]]:
    """Put -inf in place of what each row's matcher does not allow.

    logits: f32 [R, V], one matcher or None per row.  num_words: of a mask.  Returns the rows where only end
    tokens are left, and what went wrong by row; such a row is left as it is.
    """
    rows = [r for r, matcher in enumerate(matchers) if matcher is not None]
    ending: list[int] = []
    failed: dict[int, str] = {}
    if not rows:
        return ending, failed
    masks = np.empty((len(rows), num_words), np.int32)
    for mask, r in zip(masks, rows, strict=True):
        matcher = matchers[r]
        assert matcher is not None
        try:
            if matcher.fill_mask(mask):
                ending.append(r)
        except MatcherError as error:
            failed[r] = str(error)
            mask[:] = -1
        except Exception as error:  # whatever it is, it is this row's alone
            failed[r] = f"the grammar failed: {type(error).__name__}: {error}"
            mask[:] = -1
    bits, at = upload([masks, np.array(rows, np.int64)], logits.device)
    ops.apply_token_bitmask(logits, bits, rows=at)
    return ending, failed
