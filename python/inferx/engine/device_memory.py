"""How a GPU's memory is divided: what the engine may take, less all fixed uses, is the KV pool.

Planned twice by the same arithmetic: with computed figures before a weight is read, so that what cannot fit
is refused at once, and with measured ones before the pool is allocated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from inferx.engine.args import EngineArgs
from inferx.engine.buffers import attention_scratch, buffer_values
from inferx.engine.cuda_graphs import decode_buckets
from inferx.engine.memory import MemoryPlan, kv_bytes_per_token, size_text
from inferx.engine.staging import staging_bytes
from inferx.errors import MemoryBudgetError
from inferx.loader.checkpoint import Checkpoint
from inferx.loader.config import ModelConfig
from inferx.models import model_class
from inferx.models.weights import ParameterCount

# The CUDA context, kernels, cuBLAS' workspace, rounding of torch's allocator: until it is measured.
OVERHEAD = 768 << 20
# Of a captured graph, beside the memory that its tensors share with all others: its nodes.
GRAPH_BYTES = 12 << 20
# Live for each logit while sampling, beside the model's: a float32 copy of rows that are changed (penalties,
# biases), made from a copy, and masks.
SAMPLING_BYTES = 12


@dataclass(frozen=True)
class DeviceUse:
    """Bytes of a GPU that are spoken for.

    inputs: of staged steps and of graphs.  overhead: what the process takes outside of tensors.  graphs: of
    CUDA graphs, still to come.
    """

    weights: int
    tables: int
    inputs: int
    activations: int
    graphs: int
    overhead: int

    @property
    def total(self) -> int:
        return self.weights + self.tables + self.inputs + self.activations + self.graphs + self.overhead


def plan_device_memory(
    config: ModelConfig,
    args: EngineArgs,
    *,
    total: int,
    free: int,
    use: DeviceUse,
    kv_dtype: torch.dtype,
    max_model_len: int,
    weights_note: str = "",
    parameters: ParameterCount | None = None,
) -> MemoryPlan:
    """The KV pool in blocks; MemoryBudgetError, with figures, when it cannot be had.

    total, free: bytes of the GPU, and what nobody had taken when the engine started.
    """
    budget = int(total * args.gpu_memory_utilization)
    share = f"gpu_memory_utilization {args.gpu_memory_utilization:g} of {size_text(total)}"
    if free < budget:
        raise MemoryBudgetError(
            f"{share} is {size_text(budget)}, and only {size_text(free)} are free: lower it, or end what "
            "else uses the GPU"
        )
    max_num_seqs, _ = args.limits("cuda")
    per_token = kv_bytes_per_token(config, kv_dtype)
    block_bytes = per_token * args.block_size
    room = budget - use.total
    if args.num_blocks is not None:
        num_blocks = args.num_blocks
    elif args.kv_cache_memory_bytes is not None:
        num_blocks = args.kv_cache_memory_bytes // block_bytes
    else:
        num_blocks = max(room, 0) // block_bytes
    plan = MemoryPlan(
        available=budget,
        weights=use.weights,
        activations=use.activations,
        kv_bytes_per_token=per_token,
        block_size=args.block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        others=(
            ("rotary tables and step inputs", use.tables + use.inputs),
            ("CUDA graphs, kept free", use.graphs),
            ("CUDA context and libraries", use.overhead),
        ),
        on_gpu=True,
        weights_note=weights_note,
        parameters=parameters,
    )
    if num_blocks < 1 and args.kv_cache_memory_bytes is not None:
        raise MemoryBudgetError(
            f"kv_cache_memory_bytes ({args.kv_cache_memory_bytes}) is less than one block of "
            f"{args.block_size} tokens ({block_bytes} bytes): raise it, or lower block_size\n{plan.table()}"
        )
    if num_blocks < 1 or plan.total > budget:
        raise MemoryBudgetError(
            f"the model and its KV cache do not fit into {size_text(budget)} of GPU memory ({share}):\n"
            f"{plan.table()}\nraise gpu_memory_utilization, lower num_blocks, kv_cache_memory_bytes, "
            "max_num_batched_tokens or max_num_seqs, use kv_cache_dtype fp8, or take a smaller model"
        )
    return plan


def computed_use(
    config: ModelConfig,
    args: EngineArgs,
    *,
    weights: int,
    tables: int,
    activation_dtype: torch.dtype,
    max_model_len: int,
) -> DeviceUse:
    """What the formulas say, before anything is there."""
    max_num_seqs, max_num_batched_tokens = args.limits("cuda")
    item = activation_dtype.itemsize
    return DeviceUse(
        weights=weights,
        tables=tables,
        inputs=input_bytes(config, args, item, max_model_len),
        activations=activation_bytes(config, max_num_seqs, max_num_batched_tokens, item),
        graphs=0 if args.enforce_eager else graph_bytes(config, max_num_seqs, item),
        overhead=OVERHEAD,
    )


def input_bytes(config: ModelConfig, args: EngineArgs, item: int, max_model_len: int) -> int:
    """The staged arrays, and the block tables and states that all graphs share."""
    max_num_seqs, max_num_batched_tokens = args.limits("cuda")
    max_blocks = -(-max_model_len // args.block_size)
    shared = 0 if args.enforce_eager else max_num_seqs * (4 * max_blocks + config.hidden_size * item)
    return staging_bytes(max_num_batched_tokens, max_num_seqs, max_blocks) + shared


def activation_bytes(config: ModelConfig, num_samples: int, num_tokens: int, item: int) -> int:
    """The larger of a step's two peaks: inside the layers, and when all samples have logits."""
    layers = num_tokens * _bytes_per_token(config, item)
    hidden = num_tokens * config.hidden_size * item
    logits = num_samples * config.vocab_size * (item + SAMPLING_BYTES)
    return max(layers, hidden + logits)


def graph_bytes(config: ModelConfig, max_num_seqs: int, item: int) -> int:
    """For all decode graphs: they share one pool, which fits the largest; half again for what it cannot
    reuse."""
    return (
        len(decode_buckets(max_num_seqs)) * GRAPH_BYTES
        + max_num_seqs * _bytes_per_token(config, item) * 3 // 2
    )


def dense_weight_bytes(checkpoint: Checkpoint, item: int) -> int:
    """Bytes of the checkpoint's weights as dense tensors of ``item`` bytes a value; norms are float32, and so
    are some families' routers."""
    float32_router = model_class(checkpoint.config.architecture).float32_router
    total = 0
    for name, info in checkpoint.tensors.items():
        if checkpoint.config.tie_word_embeddings and name == "lm_head.weight":
            continue
        wide = len(info.shape) < 2 and not name.endswith(".bias")
        wide = wide or (float32_router and name.endswith(".mlp.gate.weight"))
        total += math.prod(info.shape) * (4 if wide else item)
    return total


def _bytes_per_token(config: ModelConfig, item: int) -> int:
    # Scratch of attention: float32 partial results of a few splits.
    return buffer_values(config) * item + 4 * 4 * attention_scratch(config)
