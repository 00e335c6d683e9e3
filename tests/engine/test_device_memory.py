"""The plan of a GPU's memory: exact to the block, refused with figures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.core_harness import save_tiny_llama, save_tiny_moe
from tests.engine.test_memory import CONFIG

from inferx.engine.args import EngineArgs
from inferx.engine.batch import BatchShape, Layout
from inferx.engine.buffers import buffer_values
from inferx.engine.device_memory import (
    DeviceUse,
    activation_bytes,
    computed_use,
    dense_weight_bytes,
    graph_bytes,
    input_bytes,
    plan_device_memory,
)
from inferx.engine.device_profile import run_largest_step
from inferx.engine.memory import GIB, MemoryPlan
from inferx.errors import MemoryBudgetError
from inferx.layers.placement import Placement
from inferx.loader import open_checkpoint
from inferx.models import build_model

USE = DeviceUse(weights=10 * GIB, tables=GIB, inputs=GIB, activations=2 * GIB, graphs=GIB, overhead=GIB)
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2


def plan(total: int = 80 * GIB, free: int = 79 * GIB, use: DeviceUse = USE, **options: object) -> MemoryPlan:
    return plan_device_memory(
        CONFIG,
        EngineArgs(**options),  # type: ignore[arg-type]
        total=total,
        free=free,
        use=use,
        kv_dtype=torch.float8_e4m3fn if options.get("kv_cache_dtype") == "fp8" else torch.bfloat16,
        max_model_len=8192,
    )


@pytest.mark.parametrize("share", [0.5, 0.73, 0.9])
def test_the_pool_is_all_that_is_left(share: float) -> None:
    made = plan(gpu_memory_utilization=share)
    budget = int(80 * GIB * share)
    assert made.kv_bytes_per_token == TOKEN_BYTES
    assert made.total <= budget < made.total + 16 * TOKEN_BYTES
    assert made.kv_cache == made.num_blocks * 16 * TOKEN_BYTES
    assert made.total - made.kv_cache == USE.total == 16 * GIB


def test_float8_doubles_the_pool() -> None:
    assert plan(kv_cache_dtype="fp8").num_blocks in (2 * plan().num_blocks, 2 * plan().num_blocks + 1)


@pytest.mark.parametrize(
    ("options", "blocks"),
    [({"num_blocks": 77}, 77), ({"kv_cache_memory_bytes": 16 * TOKEN_BYTES * 5 + 1}, 5)],
)
def test_explicit_sizes(options: dict[str, object], blocks: int) -> None:
    assert plan(**options).num_blocks == blocks


def test_the_table_names_every_use() -> None:
    table = plan().table()
    for text in (
        "GPU memory for the engine", "72.0 GiB", "weights", "10.0 GiB", "activations", "2.0 GiB",
        "rotary tables and step inputs", "CUDA graphs", "CUDA context", "KV cache per token", "256 requests",
    ):  # fmt: skip
        assert text in table
    assert "taken as it fills" not in table


def test_a_gpu_that_others_use_is_refused() -> None:
    with pytest.raises(
        MemoryBudgetError, match=r"0\.9 of 80\.0 GiB is 72\.0 GiB, and only 71\.0 GiB are free"
    ):
        plan(free=71 * GIB)
    assert plan(free=71 * GIB, gpu_memory_utilization=0.85).num_blocks > 0


@pytest.mark.parametrize(
    "options", [{"num_blocks": 10**7}, {"kv_cache_memory_bytes": 100}, {"kv_cache_memory_bytes": 57 * GIB}]
)
def test_what_does_not_fit_is_refused_with_the_table(options: dict[str, object]) -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        plan(**options)
    for label in ("weights", "KV cache per token", "blocks of 16 tokens"):
        assert label in str(caught.value)


def test_weights_alone_may_be_too_large() -> None:
    large = dataclasses.replace(USE, weights=70 * GIB)
    with pytest.raises(MemoryBudgetError, match=r"(?s)72\.0 GiB of GPU memory.*smaller model") as caught:
        plan(use=large)
    assert "70.0 GiB" in str(caught.value)


def test_computed_figures() -> None:
    args = EngineArgs(max_num_seqs=32, max_num_batched_tokens=2048)
    use = computed_use(CONFIG, args, weights=5, tables=7, activation_dtype=torch.bfloat16, max_model_len=8192)
    assert (use.weights, use.tables) == (5, 7)
    assert use.activations == activation_bytes(CONFIG, 32, 2048, 2)
    # One float32 logit of each sample, at the least, and one 16-bit state of each token in each buffer.
    assert use.activations > 32 * CONFIG.vocab_size * 4
    assert use.activations > 2048 * 2 * (2 * 576 + (2 * 9 + 2 * 3) * 64 + 3 * 1536)
    layout = Layout(BatchShape(2048, 32, width=512, samples=32, sources=32, copies=64))
    assert use.inputs == layout.nbytes + 32 * (4 * 512 + 576 * 2)
    assert use.graphs == graph_bytes(CONFIG, 32, 2) > 0
    eager = EngineArgs(max_num_seqs=32, max_num_batched_tokens=2048, enforce_eager=True)
    assert input_bytes(CONFIG, eager, 2, 8192) == layout.nbytes
    assert (
        computed_use(
            CONFIG, eager, weights=5, tables=7, activation_dtype=torch.bfloat16, max_model_len=8192
        ).graphs
        == 0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_dense_weights_are_counted_exactly(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    path = save_tiny_llama(tmp_path, tie_word_embeddings=tied, attention_bias=True)
    checkpoint = open_checkpoint(path)
    where = Placement(torch.device("cpu"), dtype, dense=True)
    model = build_model(checkpoint, placement=where)
    assert dense_weight_bytes(checkpoint, dtype.itemsize) == model.weight_bytes
    checkpoint.close()


def buffered(*buffers: Any) -> int:
    """Elements of all tensors in them, views of one memory once."""
    memory: dict[int, int] = {}
    for part in buffers:
        for name in {slot for kind in type(part).__mro__ for slot in getattr(kind, "__slots__", ())}:
            value = getattr(part, name, None)
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                memory[storage.data_ptr()] = storage.nbytes() // value.element_size()
            elif value is not None:
                memory[id(value)] = buffered(value)
    return sum(memory.values())


@pytest.mark.parametrize("family", ["llama", "mixtral", "deepseek"])
def test_buffers_are_those_planned(tmp_path: Path, family: str) -> None:
    path = save_tiny_llama(tmp_path) if family == "llama" else save_tiny_moe(tmp_path, family=family)
    checkpoint = open_checkpoint(path)
    model = build_model(checkpoint)
    config, moe, tokens = model.config, model.config.moe, 7
    actual = buffered(model.attention_buffers(tokens), model.mlp_buffers(tokens))
    pairs = 0 if moe is None else moe.top_k * (moe.intermediate_size + config.hidden_size)
    planned = tokens * (buffer_values(config) - 2 * config.hidden_size - pairs)
    assert actual <= planned
    # Logits, weights and ids count as twice as wide.
    assert planned - actual == (0 if moe is None else tokens * (moe.num_experts + 2 * moe.top_k))
    checkpoint.close()


def test_the_largest_step_has_the_sizes_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU's own ops: what is run is a legal step, and it writes and sees nothing."""
    checkpoint = open_checkpoint(save_tiny_llama(tmp_path))
    model = build_model(checkpoint)
    seen = []
    forward, head = model.forward, model.compute_logits

    def note(ids, positions, rope_lens, kv, attn):  # type: ignore[no-untyped-def]
        lengths = attn.cu_seqlens_q.diff().tolist()
        seen.append((len(ids), lengths, attn.block_tables.shape, attn.max_query_len))
        assert (attn.slot_mapping == -1).all()
        return forward(ids, positions, rope_lens, kv, attn)

    def note_head(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden.shape[0])
        return head(hidden)

    monkeypatch.setattr(model, "forward", note)
    monkeypatch.setattr(model, "compute_logits", note_head)
    run_largest_step(model, num_samples=3, num_tokens=20, max_blocks=5, block_size=8, kv_dtype=torch.float32)
    step = (20, [18, 1, 1], torch.Size([3, 5]), 18)
    assert seen == [step, 3, step, 3]
    checkpoint.close()
