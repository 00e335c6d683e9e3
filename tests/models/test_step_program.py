"""A recorded step against the layers one by one: the same bits for every dense family, batch and cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from model_harness import PagedRunner, empty_step, load, prompt, save, tiny_model
from test_families import CASES

from inferx import ops
from inferx.layers.attention import AttentionMetadata
from inferx.layers.linear import Linear, MergedLinear
from inferx.layers.placement import CPU, CPU_INT8, Placement
from inferx.models import Model
from inferx.models.weights import Matrix

# Each shows a part that the others lack: biases, windows, head norms, two rotaries, output norms, soft caps.
FAMILIES = [
    "llama-9q3kv-tied",
    "llama-both-biases",
    "llama-gelu",
    "llama-gelu-tanh",
    "mistral-window",
    "mistral-head-dim-16-of-72",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "gemma3",
    "gemma3-global-rope-scaling",
    "gemma3-softcap",
    "phi3-partial-rotary",
]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = ops.get_num_threads()
    yield ops.set_num_threads
    ops.set_num_threads(before)


def tiny(name: str, tmp_path: Path) -> Model:
    return load(save(tiny_model(CASES[name](), seed=3), tmp_path))


def mixed_steps(model: Model, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Logits and caches of a run with chunked prefills, decodes, and both in one step."""
    runner = PagedRunner(model, dtype=dtype, seed=5)
    a, b, c = (runner.start(prompt(length, seed=length)) for length in (37, 20, 9))
    results: list[torch.Tensor] = []
    results += runner.step([(a, 37)])
    results += runner.step([(b, 7), (c, 9)])
    for _ in range(3):  # decodes beside a chunk
        for sequence in (a, c):
            sequence.tokens.append(int(results[0][-1].argmax()))
        results += runner.step([(a, 1), (b, 4), (c, 1)])
    results += runner.step([(b, 1)])
    for _ in range(2):
        for sequence in (a, b, c):
            sequence.tokens.append(7)
        results += runner.step([(a, 1), (b, 1), (c, 1)])
    for layer in runner.kv:
        results += [torch.nan_to_num(cache.float(), nan=-1.5) for cache in layer]
    return results


def assert_same(model: Model, run: Callable[[], list[torch.Tensor]]) -> None:
    assert model.records_steps
    recorded = run()
    model.records_steps = False
    eager = run()
    model.records_steps = True
    assert len(recorded) == len(eager)
    for one, other in zip(recorded, eager, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", FAMILIES)
def test_same_bits_as_the_layers(name: str, tmp_path: Path, threads: Callable[[int], None]) -> None:
    model = tiny(name, tmp_path)
    for count in (1, 2):
        threads(count)
        assert_same(model, lambda: mixed_steps(model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_caches(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny("gemma3", tmp_path)
    assert_same(model, lambda: mixed_steps(model, dtype))


def test_parts_that_no_dense_family_combines(tmp_path: Path) -> None:
    """Clipped queries, norms over all heads, sinks and a soft cap of the scores."""
    from inferx.layers.norm import RMSNorm
    from inferx.layers.vector import Vector

    model = tiny("llama-9q3kv-tied", tmp_path)
    generator = torch.Generator().manual_seed(1)
    for layer in model.layers:
        attention: Any = layer.attention
        heads = {"query_norm": 9, "key_norm": 3}
        for name, count in heads.items():
            norm = RMSNorm(1e-5)
            norm.weight = 1 + 0.3 * torch.randn(count * attention.head_dim, generator=generator)
            setattr(attention, name, norm)
        attention.norm_all_heads, attention.clip, attention.softcap = True, 0.9, 3.0
        attention.sinks = Vector()
        attention.sinks.values = torch.randn(9, generator=generator)
    assert_same(model, lambda: mixed_steps(model))


def quantise(linear: Linear | Matrix, dtype: str) -> None:
    """Its weight in blocks, and its inputs as int8."""
    weight = linear.weight.dequantize()
    data = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[dtype])
    shape = (weight.shape[0], weight.shape[1])
    linear.weight, linear.int8 = ops.pack_weight(torch.from_numpy(data), dtype, shape), True


def split(linear: Linear, sizes: list[int]) -> MergedLinear:
    merged = MergedLinear(sizes)
    for piece, rows in zip(merged.pieces, linear.weight.dequantize().split(sizes), strict=True):
        piece.weight = ops.pack_weight(rows.contiguous(), "F32", (rows.shape[0], rows.shape[1]))
    return merged


INT8_CASES = {
    # Everything in blocks, and gate, up and activation in one.
    "fused": {"qkv": "Q4_1", "output": "Q8_0", "gate_up": "Q4_0", "down": "Q5_0"},
    # Floats between: codes are made and not made from one op to the next.
    "float-down": {"qkv": "Q4_0", "gate_up": "Q5_1"},
    "float-qkv": {"output": "Q4_1", "down": "Q8_0"},
    "mixed-qkv": {"qkv": "mixed", "output": "Q4_0", "gate_up": "Q8_0", "down": "Q4_1"},
    "mixed-gate-up": {"qkv": "Q8_0", "gate_up": "mixed", "down": "Q4_0"},
}


@pytest.mark.parametrize("name", INT8_CASES)
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2"])
def test_int8_activations(name: str, family: str, tmp_path: Path, threads: Callable[[int], None]) -> None:
    types = INT8_CASES[name]
    config = CASES[family]()
    config.intermediate_size = 96
    model = load(save(tiny_model(config, seed=3), tmp_path))
    for layer in model.layers:
        attention, mlp = layer.attention, layer.mlp
        for owner, part in ((attention, "qkv"), (attention, "output"), (mlp, "gate_up"), (mlp, "down")):
            if types.get(part) == "mixed":
                linear = getattr(owner, part)
                half = linear.weight.shape[0] // 2
                merged = split(linear, [half, linear.weight.shape[0] - half])
                quantise(merged.pieces[1], "Q4_0")
                setattr(owner, part, merged)
            elif part in types:
                quantise(getattr(owner, part), types[part])
    for count in (1, 2):
        threads(count)
        assert_same(model, lambda: mixed_steps(model))


@pytest.mark.parametrize("placement", [CPU, CPU_INT8], ids=["float32", "int8"])
def test_smollm2(placement: Placement, smollm2_gguf: Path, threads: Callable[[int], None]) -> None:
    model = load(smollm2_gguf, placement=placement)
    for count in (1, 2):
        threads(count)
        assert_same(model, lambda: mixed_steps(model, torch.float16))


def test_int8_needs_groups_of_32(tmp_path: Path) -> None:
    """An intermediate of 88: gate and up are quantised, what they become is not."""
    model = tiny("llama", tmp_path)
    for layer in model.layers:
        quantise(layer.mlp.gate_up, "Q4_1")  # type: ignore[union-attr]
    assert_same(model, lambda: mixed_steps(model))


def test_many_threads_on_few_cores(tmp_path: Path, threads: Callable[[int], None]) -> None:
    model = tiny("llama-9q3kv-tied", tmp_path)
    expected = mixed_steps(model)
    threads(7)
    for _ in range(5):
        for one, other in zip(mixed_steps(model), expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("family", ["llama", "llama-9q3kv-tied", "gemma3-softcap"])
@pytest.mark.parametrize("int8", [False, True])
def test_logits_with_the_step(
    family: str, int8: bool, tmp_path: Path, threads: Callable[[int], None]
) -> None:
    """Of any rows, in any order: what ``compute_logits`` makes of them."""
    step = Step(tiny(family, tmp_path))
    model = step.model
    if int8 and model.config.hidden_size % 32 == 0:
        quantise(model._head, "Q8_0")
    hidden = step.run()
    for count in (1, 2):
        threads(count)
        for rows in ([], [4], [0, 1, 2, 3, 4], [3, 0, 3]):
            index = torch.tensor(rows, dtype=torch.int64)
            for recorded in (True, False):
                model.records_steps = recorded
                assert torch.equal(step.logits(index), model.compute_logits(hidden[index]))
    model.records_steps = True
    for bad in (-1, 5):
        with pytest.raises(IndexError, match=r"logits_rows\[1\]: expected 0 <= row < 5"):
            step.logits(torch.tensor([0, bad]))
    with pytest.raises(ValueError, match="logits_rows"):
        step.logits(torch.tensor([0], dtype=torch.int32))
    assert torch.equal(step.run(), hidden)


def test_empty_step(tmp_path: Path) -> None:
    model = tiny("llama-9q3kv-tied", tmp_path)
    assert empty_step(model).shape == (0, 72)


class Step:
    """Two requests, 3 and 2 tokens, as ``Decoder.forward`` takes them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.kv = PagedRunner(model, tokens=64).kv
        self.ids, self.positions = torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 1, 2, 0, 1])
        self.meta = {
            "block_tables": torch.tensor([[2], [4]], dtype=torch.int32),
            "cu_seqlens_q": torch.tensor([0, 3, 5], dtype=torch.int32),
            "seq_lens": torch.tensor([3, 2], dtype=torch.int32),
            "slot_mapping": torch.tensor([16, 17, 18, 32, 33]),
        }

    def run(self, **changed: torch.Tensor) -> torch.Tensor:
        meta = AttentionMetadata(**{**self.meta, **changed})
        return self.model.forward(self.ids, self.positions, self.positions, self.kv, meta)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        meta = AttentionMetadata(**self.meta)
        return self.model.forward_logits(self.ids, self.positions, self.positions, self.kv, meta, rows)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"slot_mapping": torch.tensor([16, 17, 18, 32, 88])}, ValueError, r"slot_mapping: .*88 at \[4\]"),
        ({"slot_mapping": torch.tensor([16, 17, 18, 32, -2])}, ValueError, "slot_mapping"),
        ({"slot_mapping": torch.tensor([16, 17, 18, 32])}, ValueError, r"slot_mapping: .*T=5"),
        ({"block_tables": torch.tensor([[2], [11]], dtype=torch.int32)}, ValueError, "block_tables: .*11"),
        ({"block_tables": torch.tensor([[2], [4]])}, ValueError, "block_tables: .*int32"),
        ({"cu_seqlens_q": torch.tensor([0, 3, 4], dtype=torch.int32)}, ValueError, "cu_seqlens_q"),
        ({"cu_seqlens_q": torch.tensor([1, 3, 5], dtype=torch.int32)}, ValueError, "cu_seqlens_q"),
        ({"seq_lens": torch.tensor([3, 9], dtype=torch.int32)}, ValueError, "seq_lens: .*0 to 8"),
        ({"seq_lens": torch.tensor([3], dtype=torch.int32)}, ValueError, "cu_seqlens_q|block_tables"),
    ],
)
def test_wrong_lists_change_nothing(
    change: dict[str, torch.Tensor], error: type[Exception], message: str, tmp_path: Path
) -> None:
    step = Step(tiny("llama-9q3kv-tied", tmp_path))
    expected = step.run()
    before = [cache.clone() for layer in step.kv for cache in layer]
    with pytest.raises(error, match=message):
        step.run(**change)
    for cache, old in zip((c for layer in step.kv for c in layer), before, strict=True):
        assert torch.equal(cache.nan_to_num(), old.nan_to_num())
    assert torch.equal(step.run(), expected)


def test_wrong_ids_positions_and_caches(tmp_path: Path) -> None:
    step = Step(tiny("llama-9q3kv-tied", tmp_path))
    expected = step.run()
    ids, positions, kv = step.ids, step.positions, step.kv
    for bad in (-1, 251):
        step.ids = torch.tensor([5, bad, 7, 8, 9])
        with pytest.raises(IndexError, match=f"input_ids: .*< 251, got {bad} at index 1"):
            step.run()
    step.ids = ids
    step.positions = torch.tensor([0, 1, -2, 0, 1])
    with pytest.raises(IndexError, match=r"positions\[2\]"):
        step.run()
    step.positions = positions
    step.kv = kv[:1]
    with pytest.raises(ValueError, match="kv: expected 2 layers' caches, got 1"):
        step.run()
    for wrong, message in (
        ((kv[1][0], kv[1][1][:, :, :1]), "value_caches"),
        ((kv[1][0][:, :, :, ::2], kv[1][1]), "key_caches"),
        ((kv[1][0], kv[1][1].half()), "value_caches"),
        ((kv[1][0].double(), kv[1][1].double()), "key_caches"),
        ((kv[1][0][:5], kv[1][1][:5]), "as the first layer's"),
        ((kv[1][0], kv[1][0]), "value_caches"),
    ):
        step.kv = [kv[0], wrong]
        with pytest.raises(ValueError, match=message):
            step.run()
    step.kv = [kv[0], (kv[1][0],)]
    with pytest.raises(TypeError, match=r"kv\[1\]: expected a tuple of two tensors"):
        step.run()
    step.kv = kv
    assert torch.equal(step.run(), expected)


def test_other_caches_are_seen(tmp_path: Path) -> None:
    """The program holds no cache: each step goes to the ones that it is given."""
    step = Step(tiny("llama-9q3kv-tied", tmp_path))
    step.run()
    first, step.kv = step.kv, PagedRunner(step.model, tokens=64).kv
    for cache in (c for layer in first for c in layer):
        cache.fill_(torch.nan)
    assert not step.run().isnan().any()
    assert all(cache.isnan().all() for layer in first for cache in layer)


def test_one_thread_at_a_time(tmp_path: Path) -> None:
    """Steps of several threads at once are refused or right."""
    step = Step(tiny("llama-9q3kv-tied", tmp_path))
    expected = step.run()
    right: list[bool] = []
    refusals: list[str] = []

    def work() -> None:
        own = Step(step.model)
        for _ in range(200):
            try:
                right.append(torch.equal(own.run(), expected))
            except RuntimeError as error:
                refusals.append(str(error))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(right)
    assert len(right) + len(refusals) == 600
    assert all("runs on another thread" in message for message in refusals)
    assert torch.equal(step.run(), expected)
