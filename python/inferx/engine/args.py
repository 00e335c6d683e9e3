"""EngineArgs: everything a user can set about an engine.  Names follow vLLM's flags."""

from __future__ import annotations

from typing import get_type_hints

import msgspec

from inferx.errors import InvalidRequestError

DEFAULT_MODEL = "smollm2-135m-instruct"
KV_CACHE_DTYPES = ("auto", "float32", "float16", "bfloat16")
MAX_THREADS = 1024
WEIGHT_DTYPES = ("auto", "float32", "bfloat16", "float16")


class EngineArgs(msgspec.Struct, kw_only=True):
    """Options of one engine; ``None`` means "decide from the model and the machine".

    dtype: storage of weights that are not quantised (activations are float32 on the CPU).
    kv_cache_dtype: auto is float32 on the CPU, which keeps logits equal to the float32 reference.
    num_blocks: size of the KV pool; otherwise kv_cache_memory_bytes, otherwise what is free and useful.
    max_num_batched_tokens: the token budget of one step.
    """

    model: str = DEFAULT_MODEL
    served_model_name: str | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: str = "priority"
    long_prefill_token_threshold: int = 0
    seed: int | None = None
    num_threads: int | None = None

    def validate(self) -> None:
        """Raise InvalidRequestError naming the first option of a wrong type or out of range."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            try:
                msgspec.convert(value, _TYPES[name], strict=True)
            except msgspec.ValidationError as error:
                raise InvalidRequestError(f"{name}: {error}, got {value!r}", name) from None
        _one_of("dtype", self.dtype, WEIGHT_DTYPES)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        # A prompt token and one generated are the least.
        for name, least in (
            ("max_model_len", 2),
            ("num_blocks", 1),
            ("kv_cache_memory_bytes", 1),
            ("num_threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequestError(f"{name} must be at least {least}, got {value}", name)
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise InvalidRequestError(
                f"num_threads must be at most {MAX_THREADS}, got {self.num_threads}", "num_threads"
            )
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidRequestError(f"{name} must be at least 1, got {value}", name)
        if self.block_size % 8:
            raise InvalidRequestError(
                f"block_size must be a multiple of 8 (the attention kernels' unit), got {self.block_size}",
                "block_size",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidRequestError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running request can decode in one step",
                "max_num_batched_tokens",
            )
        if self.long_prefill_token_threshold < 0:
            raise InvalidRequestError(
                f"long_prefill_token_threshold must not be negative, got {self.long_prefill_token_threshold}",
                "long_prefill_token_threshold",
            )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequestError(f"{name} must be one of {', '.join(allowed)}, got {value!r}", name)


_TYPES = get_type_hints(EngineArgs)
