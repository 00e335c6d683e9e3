"""What a workload needs at least: bytes to read, operations to compute; and the share that a run reached.

Operations are the useful ones only: two a multiply-add, two for each parameter that a token computes with,
the head only where a token is chosen, scores and values only of tokens in a causal past.  What an engine
computes beyond that (padding, a prefix more than once) does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.cpu.workloads import SHARED_PREFIX, Workload

# W6 may take this much more than its parts alone: the shared prefix once, then tails and decodes.
SHARED_PREFIX_MARGIN = 1.15


@dataclass(frozen=True)
class ModelShape:
    """layer_parameters: that a token computes with in all layers, without table and head.
    head_parameters: of the output head.  attention_flops: per token and past token, in all layers.
    weight_bytes: that a decode step reads: packed or as stored in the file, whichever is less.
    kv_bytes: of one token's keys and values, in all layers."""

    layer_parameters: int
    head_parameters: int
    attention_flops: int
    weight_bytes: int
    kv_bytes: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelShape:
        return cls(**{name: int(data[name]) for name in cls.__dataclass_fields__})

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """Of the machine with the threads used: bytes per second read, operations per second."""

    bandwidth: float
    float32: float
    int8: float | None = None


def shape_of(model: Any, info: Any, stored_bytes: int) -> ModelShape:
    """Of a loaded model.  info: its EngineInfo.  stored_bytes: of the weights in the checkpoint."""
    config = model.config
    table = config.hidden_size * config.vocab_size
    tables = table if config.tie_word_embeddings else 2 * table
    if config.mla is None:
        # A score and a share of the value: a multiply-add each per element of the head.
        per_token = 4 * config.num_attention_heads * config.head_dim
    else:
        per_token = 2 * config.num_attention_heads * (config.mla.cache_dim + config.mla.kv_lora_rank)
    packed = info.weight_bytes
    read = min(packed, stored_bytes)
    if not config.tie_word_embeddings:  # a table that is only looked up is not read
        read -= round(read * table / model.parameters.total)
    return ModelShape(
        layer_parameters=model.parameters.active - tables,
        head_parameters=table,
        attention_flops=per_token * config.num_hidden_layers,
        weight_bytes=read,
        kv_bytes=info.kv_bytes_per_token,
    )


def request_flops(shape: ModelShape, prompt: int, new_tokens: int, cached: int = 0) -> float:
    """Useful operations of one request.  cached: tokens at the front that somebody else computed.

    The last token generated is not computed with; a token at position p attends to p + 1 tokens.
    """
    end = prompt + new_tokens - 1
    tokens = end - cached
    attended = (end * (end + 1) - cached * (cached + 1)) // 2
    return (
        2.0 * tokens * shape.layer_parameters
        + 2.0 * new_tokens * shape.head_parameters
        + float(attended) * shape.attention_flops
    )


def workload_flops(shape: ModelShape, name: str, requests: Workload) -> float:
    """Of all requests; the shared prefix of W6 counts once."""
    total = 0.0
    for index, request in enumerate(requests):
        cached = SHARED_PREFIX if name == "W6" and index > 0 else 0
        total += request_flops(shape, len(request.prompt), request.new_tokens, cached)
    return total


def decode_step_bytes(shape: ModelShape, prompt: int, new_tokens: int) -> float:
    """Read by the mean decode step of one stream: all weights, and the keys and values so far.

    Steps compute the tokens at positions prompt .. prompt + new_tokens - 2.
    """
    mean_context = prompt + new_tokens / 2
    return shape.weight_bytes + mean_context * shape.kv_bytes


def decode_floor_seconds(shape: ModelShape, limits: Limits, prompt: int, new_tokens: int) -> float:
    return decode_step_bytes(shape, prompt, new_tokens) / limits.bandwidth


def share_of(
    name: str,
    requests: Workload,
    shape: ModelShape,
    limits: Limits,
    figure: Mapping[str, Any],
    parts: Sequence[float] = (),
) -> dict[str, Any]:
    """What a run reached of its floor.

    bound "memory" (W1): the floor of a decode step over its time.  "float32" (W2..W5): useful operations
    per second over the float32 peak; above 1 it is int8 products.  "prefix" (W6): the time that its
    ``parts`` (prefix alone; tails and decodes behind it) take, over the run's.
    """
    if name == "W1":
        floor = decode_floor_seconds(shape, limits, len(requests[0].prompt), requests[0].new_tokens)
        return {"bound": "memory", "floor_ms": floor * 1e3, "share": floor * figure["value"]}
    if name == "W6":
        if not parts:
            return {"bound": "prefix", "share": None}
        alone = sum(parts)
        return {"bound": "prefix", "floor_ms": alone * 1e3, "share": alone / figure["wall"]}
    flops = workload_flops(shape, name, requests)
    rate = flops / figure["wall"]
    result = {
        "bound": "float32",
        "floor_ms": flops / limits.float32 * 1e3,
        "gflop_per_second": rate / 1e9,
        "share": rate / limits.float32,
    }
    if limits.int8:
        result["share_of_int8"] = rate / limits.int8
    return result


# The bars that a figure is held against: the least share of each workload.
LEAST_SHARE = {"W1": 0.80, "W3": 0.70, "W4": 0.70, "W5": 0.70, "W6": 1 / SHARED_PREFIX_MARGIN}
LEAST_RATIO = 1.3
