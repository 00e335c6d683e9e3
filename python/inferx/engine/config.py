"""SchedulerConfig: the limits one scheduler works under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
DEFAULT_MAX_NUM_SEQS = 64
DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one scheduler; names as vLLM's flags.

    num_blocks: KV blocks in the pool.  block_size: tokens per block (any size from 1; the attention op
    asks for a multiple of 8, which whoever builds the KV cache checks).  max_model_len: longest prompt
    plus output, in tokens.  max_num_batched_tokens: tokens per step.  max_num_seqs: samples running at
    once.  long_prefill_token_threshold: most prompt tokens of one request per step, 0 for no such cap.
    max_waiting: most requests that wait beside those that may run, None for no limit.  policy: "priority"
    serves lower ``priority`` values first and equal ones in order of arrival; "fcfs" ignores priorities,
    BACKGROUND_PRIORITY excepted.  background_tokens: most tokens per step of background requests beside
    interactive ones.  background_chunk: most prompt tokens per step of background requests alone.
    """

    num_blocks: int
    max_model_len: int
    block_size: int = DEFAULT_BLOCK_SIZE
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    max_waiting: int | None = None
    policy: Literal["priority", "fcfs"] = "priority"
    background_tokens: int = 8
    background_chunk: int = 128

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs"):
            _check_int(name, getattr(self, name), 1)
        _check_int("max_model_len", self.max_model_len, 2)  # one prompt token and one generated
        _check_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        _check_int("background_tokens", self.background_tokens, 0)
        _check_int("background_chunk", self.background_chunk, 1)
        if self.max_waiting is not None:
            _check_int("max_waiting", self.max_waiting, 1)
        if self.policy not in ("priority", "fcfs"):
            raise ValueError(f'policy must be "priority" or "fcfs", got {self.policy!r}')
        if self.max_num_batched_tokens < self.max_num_seqs:
            # Otherwise a full house of decodes would not fit in one step, and some would be skipped.
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}) so that every "
                f"running request gets its token each step, got {self.max_num_batched_tokens}"
            )
        if self.num_blocks * self.block_size < 2:
            raise ValueError(
                "num_blocks * block_size must be at least 2 tokens, "
                f"got {self.num_blocks} * {self.block_size}"
            )

    @property
    def pool_tokens(self) -> int:
        """Tokens whose K and V fit in the whole pool."""
        return self.num_blocks * self.block_size

    @property
    def max_seq_len(self) -> int:
        """Longest prompt plus output that can ever be reached: the context or the pool, whichever is less."""
        return min(self.max_model_len, self.pool_tokens)


def _check_int(name: str, value: object, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
