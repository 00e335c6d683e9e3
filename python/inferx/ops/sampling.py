"""Choosing tokens from logits without sorting them, and what may be done to the logits first.

A seed gives the same token on every device and in every batch.  Floating point is used only in fixed
sequences of operations (csrc/sampling_math.h); whatever is summed is an integer.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from inferx.ops._lib import check_tensor, is_compiling, kernels_for, register

__all__ = [
    "MAX_TOP_LOGPROBS",
    "SampleStatus",
    "apply_logits_processors",
    "apply_token_bitmask",
    "sample_tokens",
    "take_largest",
    "token_logprobs",
]

MAX_TOP_LOGPROBS = 256

_sample_tokens = register(
    "sample_tokens(Tensor(a!) token_ids, Tensor(b!) status, Tensor logits, Tensor? temperature, "
    "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? seed, Tensor? step, Tensor? index, "
    "int num_ids) -> ()"
)
_apply_logits_processors = register(
    "apply_logits_processors(Tensor(a!) logits, int num_ids, Tensor? allowed_offsets, Tensor? allowed_ids, "
    "Tensor? banned_offsets, Tensor? banned_ids, Tensor? bias_offsets, Tensor? bias_ids, Tensor? bias, "
    "Tensor? seen_offsets, Tensor? seen_ids, Tensor? seen_counts, Tensor? repetition_penalty, "
    "Tensor? frequency_penalty, Tensor? presence_penalty) -> ()"
)
_apply_token_bitmask = register("apply_token_bitmask(Tensor(a!) logits, Tensor bitmask, Tensor? rows) -> ()")
_token_logprobs = register(
    "token_logprobs(Tensor(a!) ids, Tensor(b!) logprobs, Tensor(c!) ranks, Tensor logits, Tensor token_ids, "
    "Tensor? rows, int num_ids) -> ()"
)


class SampleStatus(IntEnum):
    """Why a row has no token."""

    OK = 0
    NAN = 1
    ALL_MINUS_INF = 2
    NO_LEGAL_TOKEN = 3  # what is not -inf lies at num_ids or above


def sample_tokens(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    *,
    seed: Tensor | None = None,
    step: Tensor | None = None,
    index: Tensor | None = None,
    num_ids: int | None = None,
) -> tuple[Tensor, Tensor]:
    """One token per row.

    With z = (x - max) / temperature a token weighs ``floor(exp(z) * 2**42)``.  In order: ``min_p`` drops what
    weighs less than that share of the largest; ``top_k`` keeps the first k in order of falling logits, equal
    ones by rising id; ``top_p`` keeps, in that order, what has less than that share of the remaining weight
    before it (so always the first).  Then token i is drawn when floor(bits * S / 2**64) falls into its share
    of [0, S), S being the remaining weight and tokens in order of id.  ``bits`` are the first two words (low,
    high) of Philox4x32-10 (Salmon et al., SC 2011) with key ``seed`` and counter (step low, step high, index,
    0): no state to carry, and a token's draw depends on nothing but its request.

    Args:
        logits: ``[R, V]``, float32, float16 or bfloat16, contiguous last dimension; V <= 2**20.
        temperature: float32 [R].  The largest logit (the first of equals) is taken where it is not positive.
            None: 1.
        top_k: int32 [R]; 0 or less, or num_ids or more: off.
        top_p: float64 [R]; 1 or more: off.  Exact: 0.9 is the float64 nearest to it.
        min_p: float64 [R]; 0 or less: off.
        seed, step, index: int64 [R]: the request's seed, the number of the token, the number of the sample
            (its low 32 bits).  None: 0.
        num_ids: ids from there on are never taken.  None: V.

    Returns:
        ``token_ids`` int64 [R], always in [0, num_ids), and ``status`` int32 [R] (:class:`SampleStatus`): a
        row with a NaN, or with -inf only, has token 0 and says so.  A row with +inf gives the first +inf.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong.
    """
    check_tensor("sample_tokens", "logits", logits, 1)
    token_ids = torch.empty(logits.shape[:1], dtype=torch.int64, device=logits.device)
    status = torch.empty(logits.shape[:1], dtype=torch.int32, device=logits.device)
    call = _sample_tokens if is_compiling() else kernels_for(logits).sample_tokens
    ids = logits.shape[-1] if num_ids is None else num_ids
    call(token_ids, status, logits, temperature, top_k, top_p, min_p, seed, step, index, ids)
    return token_ids, status


def take_largest(token_ids: Tensor, status: Tensor, logits: Tensor, zeros: Tensor, num_ids: int) -> None:
    """``sample_tokens`` at temperature 0, into memory that is there already.

    Args:
        token_ids, status: int64 [R] and int32 [R], written.
        logits: as for ``sample_tokens``.
        zeros: float32 [R], the temperatures.
        num_ids: ids from there on are never taken.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong.
    """
    check_tensor("take_largest", "logits", logits, 1)
    call = kernels_for(logits).sample_tokens
    call(token_ids, status, logits, zeros, None, None, None, None, None, None, num_ids)


def apply_logits_processors(
    logits: Tensor,
    *,
    num_ids: int | None = None,
    allowed_offsets: Tensor | None = None,
    allowed_ids: Tensor | None = None,
    banned_offsets: Tensor | None = None,
    banned_ids: Tensor | None = None,
    bias_offsets: Tensor | None = None,
    bias_ids: Tensor | None = None,
    bias: Tensor | None = None,
    seen_offsets: Tensor | None = None,
    seen_ids: Tensor | None = None,
    seen_counts: Tensor | None = None,
    repetition_penalty: Tensor | None = None,
    frequency_penalty: Tensor | None = None,
    presence_penalty: Tensor | None = None,
) -> None:
    """Changes each row's logits in place, by the row's lists of ids.

    Lists come as ``offsets`` int64 [R + 1] and ``ids`` int32: row r has ids[offsets[r] : offsets[r + 1]].
    Ids outside [0, num_ids) do nothing; none may occur twice in a row's list.

    In order:
        1. allowed: all but these become -inf.  Ids rise within a row.  A row with an empty list may take
           all; one with the single id -1 may take none.
        2. banned: -inf.
        3. bias, float32, one per id: added.
        4. seen, with the three penalties (float32 [R]): x becomes x / repetition_penalty where positive,
           else x * repetition_penalty (> 0); then x - (frequency_penalty * count + presence_penalty *
           (count > 0)), ``seen_counts`` int32.  A token that only the prompt has is listed with count 0.

    Args:
        logits: float32 ``[R, V]``, contiguous last dimension.
        num_ids: what lies at these ids or above stays as it is.  None: V.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong.
    """
    check_tensor("apply_logits_processors", "logits", logits, 1)
    call = _apply_logits_processors if is_compiling() else kernels_for(logits).apply_logits_processors
    call(
        logits,
        logits.shape[-1] if num_ids is None else num_ids,
        allowed_offsets,
        allowed_ids,
        banned_offsets,
        banned_ids,
        bias_offsets,
        bias_ids,
        bias,
        seen_offsets,
        seen_ids,
        seen_counts,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
    )


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor | None = None) -> None:
    """Masks tokens in place: a logit becomes -inf where its bit is 0, and keeps its bits where it is 1.

    Args:
        logits: ``[R, V]``, float32, float16 or bfloat16, contiguous last dimension.
        bitmask: int32 ``[M, W]``, contiguous last dimension.  Bit j of word w stands for token 32 * w + j.
            Tokens at 32 * W or above are masked; bits for tokens at V or above mean nothing.
        rows: int64 or int32 [M]: the row of the logits that each mask belongs to.  The other rows stay as
            they are.  No row may be named twice.  None: M = R, in order.

    On a GPU the host does not look at the values in ``rows``: there a mask whose row does not exist does
    nothing, and a row that is named twice loses the tokens of both masks.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong, ``logits`` shares memory with another
            argument, or (on the CPU) a row does not exist or is named twice.
    """
    check_tensor("apply_token_bitmask", "logits", logits)
    check_tensor("apply_token_bitmask", "bitmask", bitmask)
    call = _apply_token_bitmask if is_compiling() else kernels_for(logits).apply_token_bitmask
    call(logits, bitmask, rows)


def token_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    num_top: int = 0,
    *,
    rows: Tensor | None = None,
    num_ids: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of given tokens, their ranks, and the most likely tokens beside them.

    Args:
        logits: ``[R, V]``, float32, float16 or bfloat16, contiguous last dimension; V <= 2**20.
        token_ids: int64 [N].
        num_top: how many of the most likely to list, 0 to 256, at most num_ids.
        rows: int64 [N], the row of the logits each belongs to.  None: N = R, in order.
        num_ids: the most likely and the rank are among the ids below; the normaliser covers all V.

    Returns:
        ``ids`` int64 [N, 1 + num_top]: the token, then the most likely by falling logit, equal ones by rising
        id; ``logprobs`` float64, likewise; ``ranks`` int64 [N]: 1 + how many logits are larger.
        A row that has a NaN or is all -inf gives NaN, rank 0 and the ids 0, 1, 2 ...; so does one that does
        not exist.  A token that does not exist has NaN and rank 0.  +inf has log-probability 0, what stands
        beside it -inf.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong.
    """
    check_tensor("token_logprobs", "logits", logits, 1)
    check_tensor("token_logprobs", "token_ids", token_ids, 1)
    if num_top < 0:
        raise ValueError(f"token_logprobs: num_top: expected a number >= 0, got {num_top}")
    shape = (token_ids.shape[0], 1 + num_top)
    ids = torch.empty(shape, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(shape, dtype=torch.float64, device=logits.device)
    ranks = torch.empty(shape[:1], dtype=torch.int64, device=logits.device)
    call = _token_logprobs if is_compiling() else kernels_for(logits).token_logprobs
    ids_limit = logits.shape[-1] if num_ids is None else num_ids
    call(ids, logprobs, ranks, logits, token_ids, rows, ids_limit)
    return ids, logprobs, ranks
