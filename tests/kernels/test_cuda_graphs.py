"""Ops in a captured CUDA graph, replayed with other values in the same tensors; and on a side stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inferx import ops

pytestmark = pytest.mark.gpu


class Step:
    """One decode step of three requests: everything that changes from step to step lies in fixed tensors."""

    def __init__(self) -> None:
        def make(tensor: Tensor) -> Tensor:
            return tensor.cuda()

        self.heads, self.kv_heads, self.dim, self.block = 8, 2, 64, 16
        self.qkv = make(torch.randn(3, (8 + 4) * 64).bfloat16())
        self.keys, self.values = (make(torch.randn(80, 16, 2, 64).bfloat16()) for _ in range(2))
        self.tables = make(torch.randperm(80).to(torch.int32)[:78].view(3, 26).contiguous())
        self.seq_lens = make(torch.tensor([1, 17, 400], dtype=torch.int32))
        self.cu_seqlens_q = make(torch.arange(4, dtype=torch.int32))
        self.positions = make(torch.tensor([0, 16, 399]))
        self.slots = make(torch.tensor([0, 16, 32]))
        self.cos_sin = make(torch.randn(512, 64))
        self.seed, self.number = make(torch.tensor([1, 2, 3])), make(torch.zeros(3, dtype=torch.int64))
        self.temperature = make(torch.tensor([0.0, 1.0, 0.7]))

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv.clone()
        query, key, value = qkv.split([512, 128, 128], 1)
        query, key, value = (
            query.unflatten(1, (8, 64)),
            key.unflatten(1, (2, 64)),
            value.unflatten(1, (2, 64)),
        )
        ops.rope_and_cache(
            self.positions, query, key, value, self.cos_sin, self.keys, self.values, self.slots
        )
        out = ops.paged_attention(
            query, self.keys, self.values, self.tables, self.cu_seqlens_q, self.seq_lens, 0.125,
            max_query_len=1, split_size=64,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        hidden = ops.rms_norm(out.flatten(1), torch.ones(512, device="cuda"), 1e-5)
        logits = hidden.float()
        tokens, _ = ops.sample_tokens(logits, self.temperature, seed=self.seed, step=self.number)
        _, logprobs, _ = ops.token_logprobs(logits, tokens, 3)
        return out, tokens, logprobs

    def change(self) -> None:
        """Other lengths, tables and slots: longer and shorter ones, and an empty request."""
        self.qkv.copy_(torch.randn_like(self.qkv))
        self.seq_lens.copy_(torch.tensor([300, 0, 65]))
        self.positions.copy_(torch.tensor([299, 0, 64]))
        self.slots.copy_(torch.tensor([1000, -1, 1100]))
        self.tables.copy_(torch.randperm(80)[:78].view(3, 26))
        self.number.add_(1)


def capture(run: Callable[[], tuple[Tensor, ...]]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results


def test_a_replay_with_other_lengths_equals_the_eager_step() -> None:
    step = Step()
    graph, results = capture(step.run)
    for _ in range(2):
        graph.replay()
        replayed = [r.clone() for r in results]
        for actual, expected in zip(replayed, step.run(), strict=True):
            assert torch.equal(actual, expected)
        step.change()


def test_the_current_stream_is_used() -> None:
    """Work queued on a side stream is seen by an op called there, with no synchronisation between."""
    x, weight = torch.zeros(64, 4096, device="cuda"), torch.ones(4096, device="cuda")
    source = torch.randn(64, 4096, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(source)
        out = ops.rms_norm(x, weight, 1e-5)
    side.synchronize()
    expected = source * (source.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(out, expected)
