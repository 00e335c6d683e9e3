"""EngineArgs: everything a user can set about an engine.  Names follow vLLM's flags."""

from __future__ import annotations

import re
from typing import get_type_hints

import msgspec

from inferx.errors import InvalidRequestError

DEFAULT_MODEL = "smollm2-135m-instruct"
KV_CACHE_DTYPES = ("auto", "float32", "float16", "bfloat16", "fp8", "fp8_e4m3")
MAX_THREADS = 1024
# "simt" too, which is for tests.
_DEVICE = re.compile(r"auto|cpu|simt|cuda(:(0|[1-9]\d?))?")
ACTIVATIONS = ("auto", "float32", "int8")
WEIGHT_DTYPES = ("auto", "float32", "bfloat16", "float16")
# Steps of a GPU take some milliseconds whatever is in them, up to some thousand tokens.
DEFAULT_MAX_NUM_SEQS = {"cpu": 64, "simt": 64, "cuda": 256}
DEFAULT_MAX_NUM_BATCHED_TOKENS = {"cpu": 512, "simt": 512, "cuda": 8192}


# Of batches, beside interactive requests and without them (benchmarks/batch/README.md): on the CPU a third
# sequence beside one costs it more than a tenth of a step, and chunks of 64 cost no more per token than
# larger ones.  A GPU's are estimates, from steps whose time hardly depends on that many rows.
DEFAULT_BACKGROUND_TOKENS = {"cpu": 2, "simt": 2, "cuda": 32}
DEFAULT_BACKGROUND_CHUNK = {"cpu": 64, "simt": 64, "cuda": 2048}


class EngineArgs(msgspec.Struct, kw_only=True):
    """Options of one engine; ``None`` means "decide from the model and the machine".

    device: auto (a GPU when there is one), cpu, cuda, cuda:N.
    dtype: on the CPU, storage of weights that are not quantised (activations are float32); on a GPU, the
    type of weights and activations, where auto is bfloat16, or float16 for checkpoints of that type.
    activations: on the CPU, of linear layers whose weights are block-quantised (GGUF): int8, with a scale
    per 32 elements, which is what auto means there, or float32.  Other layers and devices do not look at it.
    kv_cache_dtype: auto is the type of the activations, and float16 beside int8.  fp8 (e4m3) is for GPUs.
    gpu_memory_utilization: share of a GPU's memory that the engine may take.
    enforce_eager: no CUDA graphs.
    num_blocks: size of the KV pool; otherwise kv_cache_memory_bytes, otherwise what is free and useful.
    max_num_batched_tokens: the token budget of one step.
    background_tokens, background_chunk: of batches, see ``SchedulerConfig``.
    enable_jump_ahead: where a grammar leaves no choice, tokens are appended without sampling each of them;
    the answers are the same either way.
    max_waiting: most requests that wait for a place beside the max_num_seqs that run; None for no limit.
    """

    model: str = DEFAULT_MODEL
    served_model_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    activations: str = "auto"
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_jump_ahead: bool = True
    scheduling_policy: str = "priority"
    long_prefill_token_threshold: int = 0
    max_waiting: int | None = None
    background_tokens: int | None = None
    background_chunk: int | None = None
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
        if not _DEVICE.fullmatch(self.device):
            raise InvalidRequestError(
                f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}", "device"
            )
        _one_of("dtype", self.dtype, WEIGHT_DTYPES)
        _one_of("activations", self.activations, ACTIVATIONS)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidRequestError(
                f"gpu_memory_utilization must be above 0 and at most 1, got {self.gpu_memory_utilization}",
                "gpu_memory_utilization",
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequestError(f"{name} must be at least {least}, got {value}", name)
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise InvalidRequestError(
                f"num_threads must be at most {MAX_THREADS}, got {self.num_threads}", "num_threads"
            )
        if self.block_size % 8:
            raise InvalidRequestError(
                f"block_size must be a multiple of 8 (the attention kernels' unit), got {self.block_size}",
                "block_size",
            )
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            raise InvalidRequestError(
                f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({seqs}), so that every "
                "running request can decode in one step",
                "max_num_batched_tokens",
            )

    def limits(self, device_kind: str) -> tuple[int, int]:
        """(max_num_seqs, max_num_batched_tokens); what was not set follows from the device and the other."""
        seqs, tokens = self.max_num_seqs, self.max_num_batched_tokens
        if seqs is None:
            seqs = DEFAULT_MAX_NUM_SEQS[device_kind]
            seqs = seqs if tokens is None else min(seqs, tokens)
        if tokens is None:
            tokens = max(seqs, DEFAULT_MAX_NUM_BATCHED_TOKENS[device_kind])
        return seqs, tokens

    def background_limits(self, device_kind: str) -> tuple[int, int]:
        """(background_tokens, background_chunk)."""
        tokens, chunk = self.background_tokens, self.background_chunk
        return (
            DEFAULT_BACKGROUND_TOKENS[device_kind] if tokens is None else tokens,
            DEFAULT_BACKGROUND_CHUNK[device_kind] if chunk is None else chunk,
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequestError(f"{name} must be one of {', '.join(allowed)}, got {value!r}", name)


_TYPES = get_type_hints(EngineArgs)
_LEAST = {
    "max_model_len": 2,  # a prompt token and one generated
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "block_size": 1,
    "num_blocks": 1,
    "kv_cache_memory_bytes": 1,
    "long_prefill_token_threshold": 0,
    "background_tokens": 0,
    "background_chunk": 1,
    "max_waiting": 1,
    "num_threads": 1,
}
