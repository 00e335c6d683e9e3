"""What a request's options do to its own row of logits before a token is chosen.

One ``LogitsProcessors`` lives as long as its sample and keeps what does not change (lists of ids) and what
grows (token counts), so that a step costs a few copies of short lists, whatever the width of the vocabulary.
``apply_processors`` hands the lists of many rows to one op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inferx import ops
from inferx.engine.sampling_arrays import upload
from inferx.sampling_params import SamplingParams

_NONE = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class RowLists:
    """One row's part of the arguments of ``ops.apply_logits_processors``, which says what they mean."""

    allowed: np.ndarray
    banned: np.ndarray
    bias_ids: np.ndarray
    bias: np.ndarray
    seen: np.ndarray
    seen_counts: np.ndarray
    penalties: tuple[float, float, float]  # repetition, frequency, presence


class LogitsProcessors:
    """allowed_token_ids, bad_words, min_tokens, logit_bias and penalties of one sample.

    Ids outside [0, num_ids) are ignored wherever they appear; a bad_words sequence with such an id
    can never be completed and is dropped.
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int], num_ids: int) -> None:
        self._num_ids = num_ids
        self._allowed = _NONE
        if params.allowed_token_ids is not None:
            allowed = self._ids(params.allowed_token_ids)
            # No id at all would mean no restriction; -1 is the id of no token.
            self._allowed = allowed if len(allowed) else np.array([-1], dtype=np.int32)
        self._bad = _BadWords(params.bad_words_token_ids, num_ids) if params.bad_words_token_ids else None
        self._min_tokens = params.min_tokens
        self._stop_ids = self._ids([*params.eos_token_ids, *params.stop_token_ids])
        bias = {t: b for t, b in (params.logit_bias or {}).items() if 0 <= t < num_ids}
        self._bias_ids = np.array(list(bias.keys()), dtype=np.int32)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self._penalties = None
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            self._penalties = _Penalties(params, prompt_token_ids, num_ids)
        self._always = bool(bias) or self._bad is not None or self._penalties is not None
        self._always = self._always or params.allowed_token_ids is not None

    def _ids(self, ids: Sequence[int]) -> np.ndarray:
        return np.array(sorted({t for t in ids if 0 <= t < self._num_ids}), dtype=np.int32)

    @property
    def ever_active(self) -> bool:
        """Whether anything may change at any step."""
        return self._always or self._min_tokens > 0

    def active(self, step: int) -> bool:
        """Whether anything may change at this step."""
        return self._always or step < self._min_tokens

    def lists(self, output_token_ids: Sequence[int], step: int) -> RowLists:
        """What is to be done to the row, in the order of the sampler's docstring."""
        banned = _NONE if self._bad is None else self._bad.banned(output_token_ids)
        if step < self._min_tokens:
            banned = np.union1d(banned, self._stop_ids)
        seen, counts, penalties = _NONE, _NONE, (1.0, 0.0, 0.0)
        if self._penalties is not None:
            seen, counts = self._penalties.seen(output_token_ids)
            penalties = self._penalties.values
        return RowLists(self._allowed, banned, self._bias_ids, self._bias, seen, counts, penalties)

    def apply(self, row: torch.Tensor, output_token_ids: Sequence[int], step: int) -> None:
        """Change ``row`` (f32 [num_ids]) in place."""
        apply_processors(row[None], [self.lists(output_token_ids, step)], self._num_ids)


def apply_processors(logits: torch.Tensor, rows: Sequence[RowLists], num_ids: int) -> None:
    """Change each row of ``logits`` (f32 [R, V]) in place by its lists."""
    arrays: dict[str, np.ndarray] = {}
    _add_ragged(arrays, [r.allowed for r in rows], "allowed_offsets", "allowed_ids")
    _add_ragged(arrays, [r.banned for r in rows], "banned_offsets", "banned_ids")
    if _add_ragged(arrays, [r.bias_ids for r in rows], "bias_offsets", "bias_ids"):
        arrays["bias"] = np.concatenate([r.bias for r in rows])
    if _add_ragged(arrays, [r.seen for r in rows], "seen_offsets", "seen_ids"):
        arrays["seen_counts"] = np.concatenate([r.seen_counts for r in rows])
        for i, name in enumerate(("repetition", "frequency", "presence")):
            arrays[f"{name}_penalty"] = np.array([r.penalties[i] for r in rows], dtype=np.float32)
    if arrays:
        tensors = upload(list(arrays.values()), logits.device)
        ops.apply_logits_processors(logits, num_ids=num_ids, **dict(zip(arrays, tensors, strict=True)))


def _add_ragged(arrays: dict[str, np.ndarray], lists: list[np.ndarray], offsets: str, ids: str) -> bool:
    """Add the lists end to end with their offsets; False, and nothing, when all are empty."""
    ends = np.cumsum([len(entry) for entry in lists], dtype=np.int64)
    if ends[-1] == 0:
        return False
    arrays[offsets] = np.concatenate([np.zeros(1, dtype=np.int64), ends])
    arrays[ids] = np.concatenate(lists)
    return True


class _BadWords:
    """Token sequences of which none may be completed; looked at over the output only."""

    def __init__(self, sequences: Sequence[Sequence[int]], num_ids: int) -> None:
        single: set[int] = set()
        # Longer ones by the token before their last: (all but the last, last).
        self._by_previous: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for sequence in sequences:
            *prefix, last = sequence
            if not all(0 <= t < num_ids for t in sequence):
                continue
            if prefix:
                self._by_previous[prefix[-1]].append((prefix, last))
            else:
                single.add(last)
        self._single = np.array(sorted(single), dtype=np.int32)

    def banned(self, output: Sequence[int]) -> np.ndarray:
        more: set[int] = set()
        if output and self._by_previous:
            for prefix, last in self._by_previous.get(output[-1], ()):
                if list(output[-len(prefix) :]) == prefix:
                    more.add(last)
        return np.union1d(self._single, np.array(list(more), dtype=np.int32)) if more else self._single


class _Penalties:
    """Penalties over the distinct tokens seen, with their counts in the output.

    repetition_penalty takes the prompt's tokens too, the others the output's alone.
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int], num_ids: int) -> None:
        # At 0 (which smaller ones become in f32), -inf * penalty would be NaN.
        repetition = max(params.repetition_penalty, 1e-30)
        self.values = (repetition, params.frequency_penalty, params.presence_penalty)
        self._num_ids = num_ids
        self._prompt: list[int] = []
        if repetition != 1.0:
            self._prompt = sorted({t for t in prompt_token_ids if 0 <= t < num_ids})
        self._reset()

    def _reset(self) -> None:
        self._used = len(self._prompt)
        self._seen_outputs = 0
        self._slot = {t: i for i, t in enumerate(self._prompt)}
        self._store(np.array(self._prompt, dtype=np.int32), np.zeros(self._used, dtype=np.int32))

    def _store(self, ids: np.ndarray, counts: np.ndarray) -> None:
        """Keep the slots' ids and counts, with room for as many again."""
        room = max(64, len(ids))
        self._ids, self._counts = np.pad(ids, (0, room)), np.pad(counts, (0, room))

    def seen(self, output: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Distinct ids and their counts; valid until the next call."""
        if len(output) < self._seen_outputs:
            self._reset()
        for i in range(self._seen_outputs, len(output)):
            token = output[i]
            if not 0 <= token < self._num_ids:
                continue
            slot = self._slot.get(token)
            if slot is None:
                slot = self._slot[token] = self._used
                if slot == len(self._ids):
                    self._store(self._ids, self._counts)
                self._ids[slot] = token
                self._used += 1
            self._counts[slot] += 1
        self._seen_outputs = len(output)
        return self._ids[: self._used], self._counts[: self._used]
