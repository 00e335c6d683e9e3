"""What a request's options do to its own row of logits before a token is chosen.

One ``LogitsProcessors`` lives as long as its sample and keeps what does not change (index tensors) and
what grows (token counts), so that a step costs a few small indexed operations, whatever the length of
the output and the width of the vocabulary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from inferx.sampling_params import SamplingParams


class LogitsProcessors:
    """allowed_token_ids, bad_words, min_tokens, logit_bias and penalties of one sample.

    Ids outside [0, num_ids) are ignored wherever they appear; a bad_words sequence with such an id
    can never be completed and is dropped.
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int], num_ids: int) -> None:
        self._num_ids = num_ids
        self._allowed = self._ids(params.allowed_token_ids) if params.allowed_token_ids is not None else None
        self._bad = _BadWords(params.bad_words_token_ids, num_ids) if params.bad_words_token_ids else None
        self._min_tokens = params.min_tokens
        self._stop_ids = self._ids([*params.eos_token_ids, *params.stop_token_ids])
        bias = {t: b for t, b in (params.logit_bias or {}).items() if 0 <= t < num_ids}
        self._bias_ids = torch.tensor(list(bias.keys()), dtype=torch.int64)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._penalties = None
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            self._penalties = _Penalties(params, prompt_token_ids, num_ids)
        self._always = bool(bias) or any(p is not None for p in (self._allowed, self._bad, self._penalties))

    def _ids(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(sorted({t for t in ids if 0 <= t < self._num_ids}), dtype=torch.int64)

    def active(self, step: int) -> bool:
        """Whether ``apply`` may change anything at this step."""
        return self._always or step < self._min_tokens

    def apply(self, row: torch.Tensor, output_token_ids: Sequence[int], step: int) -> None:
        """Change ``row`` (f32 [num_ids]) in place, in the order of the sampler's docstring."""
        if self._allowed is not None:
            kept = row[self._allowed]
            row.fill_(-math.inf)
            row[self._allowed] = kept
        if self._bad is not None:
            row[self._bad.banned(output_token_ids)] = -math.inf
        if step < self._min_tokens:
            row[self._stop_ids] = -math.inf
        if len(self._bias):
            row[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(row, output_token_ids)


class _BadWords:
    """Token sequences of which none may be completed; looked at over the output only."""

    def __init__(self, sequences: Sequence[Sequence[int]], num_ids: int) -> None:
        self._single: list[int] = []
        # Longer ones by the token before their last: (all but the last, last).
        self._by_previous: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for sequence in sequences:
            *prefix, last = sequence
            if not all(0 <= t < num_ids for t in sequence):
                continue
            if prefix:
                self._by_previous[prefix[-1]].append((prefix, last))
            else:
                self._single.append(last)

    def banned(self, output: Sequence[int]) -> torch.Tensor:
        ids = list(self._single)
        if output and self._by_previous:
            for prefix, last in self._by_previous.get(output[-1], ()):
                if list(output[-len(prefix) :]) == prefix:
                    ids.append(last)
        return torch.tensor(ids, dtype=torch.int64)


class _Penalties:
    """Penalties over the distinct tokens seen, with their counts in the output.

    repetition_penalty r follows HF (CTRL, Keskar et al. 2019): a token of prompt or output has a
    positive logit divided by r, a negative one multiplied.  Then, over the output (OpenAI):
    logit -= frequency_penalty * count + presence_penalty * (count > 0).
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int], num_ids: int) -> None:
        # At 0 (which smaller ones become in f32), -inf * penalty would be NaN.
        self._repetition = max(params.repetition_penalty, 1e-30)
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._num_ids = num_ids
        self._prompt: list[int] = []
        if self._repetition != 1.0:
            self._prompt = sorted({t for t in prompt_token_ids if 0 <= t < num_ids})
        self._reset()

    def _reset(self) -> None:
        self._used = len(self._prompt)
        self._seen_outputs = 0
        self._slot = {t: i for i, t in enumerate(self._prompt)}
        self._store(np.array(self._prompt, dtype=np.int64), np.zeros(self._used, dtype=np.float32))

    def _store(self, ids: np.ndarray, counts: np.ndarray) -> None:
        """Keep the slots' ids and counts, with room for as many again."""
        room = max(64, len(ids))
        # numpy for the single writes, torch for the reads, over the same memory.
        self._ids_np, self._counts_np = np.pad(ids, (0, room)), np.pad(counts, (0, room))
        self._ids, self._counts = torch.from_numpy(self._ids_np), torch.from_numpy(self._counts_np)

    def _update(self, output: Sequence[int]) -> None:
        if len(output) < self._seen_outputs:
            self._reset()
        for i in range(self._seen_outputs, len(output)):
            token = output[i]
            if not 0 <= token < self._num_ids:
                continue
            slot = self._slot.get(token)
            if slot is None:
                slot = self._slot[token] = self._used
                if slot == len(self._ids_np):
                    self._store(self._ids_np, self._counts_np)
                self._ids_np[slot] = token
                self._used += 1
            self._counts_np[slot] += 1
        self._seen_outputs = len(output)

    def apply(self, row: torch.Tensor, output: Sequence[int]) -> None:
        self._update(output)
        ids, counts = self._ids[: self._used], self._counts[: self._used]
        values = row[ids]
        if self._repetition != 1.0:
            values = torch.where(values > 0, values / self._repetition, values * self._repetition)
        if self._frequency or self._presence:
            values -= self._frequency * counts + self._presence * (counts > 0)
        row[ids] = values
