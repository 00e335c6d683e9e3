"""How the machine's memory is divided, decided before anything is allocated."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from inferx import ops
from inferx.engine.args import EngineArgs
from inferx.engine.buffers import buffer_values
from inferx.errors import InvalidRequestError, LoadError, MemoryBudgetError
from inferx.loader.checkpoint import Checkpoint
from inferx.loader.config import ModelConfig
from inferx.models.stacks import transposed_type
from inferx.models.weights import ParameterCount

GIB = 1 << 30
# Default ceiling of the KV pool.  Pages are only taken when first written, but a pool that the
# machine could not hold when full would end in the kernel's OOM killer.
DEFAULT_KV_CEILING = 4 * GIB
MAX_CONTEXT = 2**31 - 1  # positions are int32 in the kernels
# Left for Python, torch and the allocator.
RESERVE = 256 << 20


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by use, and the KV pool's size in blocks.

    others: further uses, with their labels.  on_gpu: the memory is a GPU's, and the pool is taken at once.
    parameters: all of them take memory, the active ones decide what a token costs.
    """

    available: int
    weights: int
    activations: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    others: tuple[tuple[str, int], ...] = ()
    on_gpu: bool = False
    weights_note: str = ""
    parameters: ParameterCount | None = None

    @property
    def kv_cache(self) -> int:
        return self.num_blocks * self.block_size * self.kv_bytes_per_token

    @property
    def total(self) -> int:
        return self.weights + self.activations + sum(size for _, size in self.others) + self.kv_cache

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of each line of the table."""
        full = self.kv_tokens // self.max_model_len
        return [
            *([] if self.parameters is None else [("parameters", parameters_text(self.parameters))]),
            ("GPU memory for the engine" if self.on_gpu else "memory available", size_text(self.available)),
            ("weights", size_text(self.weights) + self.weights_note),
            ("activations and logits, at most", size_text(self.activations)),
            *((label, size_text(size)) for label, size in self.others),
            ("KV cache per token", size_text(self.kv_bytes_per_token)),
            (
                "KV cache" if self.on_gpu else "KV cache, taken as it fills",
                f"{size_text(self.kv_cache)} = {self.num_blocks} blocks of {self.block_size} tokens "
                f"({self.kv_tokens:,} tokens)",
            ),
            (
                "largest batch",
                f"{self.max_num_seqs} requests; {full} at the full {self.max_model_len:,} tokens, "
                f"or {self.kv_tokens // self.max_num_seqs:,} tokens each",
            ),
            ("total", size_text(self.total)),
        ]

    def table(self) -> str:
        """The plan as text, two aligned columns."""
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"  {label:<{width}}  {value}" for label, value in rows)


def plan_memory(
    config: ModelConfig,
    args: EngineArgs,
    *,
    weight_bytes: int,
    kv_dtype: torch.dtype,
    max_model_len: int,
    available: int | None = None,
    parameters: ParameterCount | None = None,
) -> MemoryPlan:
    """Choose the number of KV blocks; MemoryBudgetError (with the table) when it does not fit.

    weight_bytes: bytes of the weights once loaded.  available: bytes that may be used, default what the
    machine and its cgroup have left.
    """
    available = available_memory() if available is None else available
    max_num_seqs, max_num_batched_tokens = args.limits("cpu")
    per_token = kv_bytes_per_token(config, kv_dtype)
    activations = _activation_bytes(config, max_num_seqs, max_num_batched_tokens)
    block_bytes = per_token * args.block_size
    free = available - weight_bytes - activations - RESERVE
    if args.num_blocks is not None:
        num_blocks = args.num_blocks
    elif args.kv_cache_memory_bytes is not None:
        num_blocks = args.kv_cache_memory_bytes // block_bytes
    else:
        blocks_per_request = -(-max_model_len // args.block_size)
        useful = max_num_seqs * blocks_per_request
        num_blocks = min(useful, min(DEFAULT_KV_CEILING, max(free, 0) * 9 // 10) // block_bytes)
    plan = MemoryPlan(
        available=available,
        weights=weight_bytes,
        activations=activations,
        kv_bytes_per_token=per_token,
        block_size=args.block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        parameters=parameters,
    )
    if num_blocks < 1 and args.kv_cache_memory_bytes is not None:
        raise MemoryBudgetError(
            f"kv_cache_memory_bytes ({args.kv_cache_memory_bytes}) is less than one block of "
            f"{args.block_size} tokens ({block_bytes} bytes): raise it, or lower block_size\n{plan.table()}"
        )
    if num_blocks < 1 or plan.total + RESERVE > available:
        raise MemoryBudgetError(
            f"the model and its KV cache do not fit into the memory that is left:\n{plan.table()}\n"
            "lower num_blocks, kv_cache_memory_bytes, block_size, max_num_seqs or max_num_batched_tokens, "
            "use kv_cache_dtype float16, or take a smaller model"
        )
    return plan


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values, or of its latent, in all layers."""
    if config.mla is not None:
        return config.num_hidden_layers * config.mla.cache_dim * dtype.itemsize
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize


def packed_weight_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """Bytes the checkpoint's weights take once packed; ``dtype`` as in EngineArgs."""
    target = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}.get(dtype)
    total = 0
    for name, info in checkpoint.tensors.items():
        if checkpoint.config.tie_word_embeddings and name == "lm_head.weight":
            continue
        if len(info.shape) != 2:
            total += 4 * math.prod(info.shape)
            continue
        stored = info.dtype if info.quantised or target is None else target
        try:
            total += _packed_bytes(checkpoint.config, name, stored, (info.shape[0], info.shape[1]))
        except ValueError as error:
            raise LoadError(f"{info.file}: tensor {name}: {error}") from error
    return total


def _packed_bytes(config: ModelConfig, name: str, dtype: str, shape: tuple[int, int]) -> int:
    """Of a matrix; those of latent attention are packed head by head."""
    heads, mla = config.num_attention_heads, config.mla
    stem = name.removesuffix(".weight").rpartition(".")[2]
    if mla is None or stem not in ("kv_b_proj", "k_b_proj", "v_b_proj"):
        return ops.packed_nbytes(dtype, shape)
    if stem != "kv_b_proj":
        return ops.packed_experts_nbytes((heads, shape[0] // heads, shape[1]), (dtype,))
    keys = (heads, mla.kv_lora_rank, mla.qk_nope_head_dim)
    values = (heads, mla.v_head_dim, mla.kv_lora_rank)
    return ops.packed_experts_nbytes(keys, (transposed_type(dtype),)) + ops.packed_experts_nbytes(
        values, (dtype,)
    )


def resolve_max_model_len(config: ModelConfig, requested: int | None) -> int:
    """The context limit: what the user asked for, at most what the model was made for."""
    limit = context_limit(config)
    if requested is None:
        return limit
    if requested > limit:
        raise InvalidRequestError(
            f"max_model_len must be at most the model's {limit} positions, got {requested}", "max_model_len"
        )
    return requested


def context_limit(config: ModelConfig) -> int:
    """The longest context the configuration provides for.

    Linear and dynamic scaling stretch ``max_position_embeddings``, the trained length, by their factor.
    Yarn, llama3 and longrope configurations name the trained length apart
    (``original_max_position_embeddings``), and their ``max_position_embeddings`` is stretched already.
    """
    rope = config.rope
    if rope.rope_type in ("linear", "dynamic") and rope.original_max_position_embeddings is None:
        return int(min(config.max_position_embeddings * rope.factor, MAX_CONTEXT))
    return config.max_position_embeddings


def return_free_memory() -> None:
    """What was allocated and freed while loading goes back to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def available_memory() -> int:
    """Bytes that can be taken without swapping: the smaller of the machine's and the cgroup's remainder."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            machine = int(line.split()[1]) * 1024
            break
    else:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, _cgroup_remainder())


def _cgroup_remainder() -> int:
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        if limit == "max":
            return 1 << 62
        return max(0, int(limit) - int((root / "memory.current").read_text()))
    except (OSError, ValueError):
        return 1 << 62


def _activation_bytes(config: ModelConfig, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    per_token = 4 * (buffer_values(config) + 2 * config.hidden_size)
    # Raw logits, log-probabilities and the sampler's working copy.
    logits = 3 * 4 * max_num_seqs * config.vocab_size
    return max_num_batched_tokens * per_token + logits


def parameters_text(count: ParameterCount) -> str:
    """As "46.7 B total, 12.9 B active per token (93.4 GB at 16 bit)"."""
    text = _decimal_text(count.total)
    if count.active != count.total:
        text += f" total, {_decimal_text(count.active)} active per token"
    size = _decimal_text(2 * count.total, ("B", "kB", "MB", "GB", "TB"))
    return f"{text} ({size} at 16 bit)"


def _decimal_text(value: float, units: tuple[str, ...] = ("", "K", "M", "B", "T")) -> str:
    for unit in units[:-1]:
        if value < 999.95:
            return f"{value:.0f} {unit}".rstrip() if unit == units[0] else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} {units[-1]}"


def size_text(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
