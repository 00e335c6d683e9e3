"""Decode with inferx's kernels from a few lines of one's own: no engine, no scheduler.

    python examples/kernels.py            # on a GPU where there is one, else on the CPU

One attention layer over a paged KV cache for two requests of different lengths: prefill both prompts in one
call, then decode step by step, choosing tokens with a seed.  At the end the same attention is computed by
torch over contiguous keys and values, and the two are compared.
"""

from __future__ import annotations

import torch

from inferx import ops

HEADS, KV_HEADS, HEAD_DIM, VOCAB = 8, 2, 64, 1000
BLOCK, NUM_BLOCKS = 16, 32
SCALE = HEAD_DIM**-0.5


class TinyModel:
    """Random weights: embedding, one attention layer, output head."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        def weight(*shape: int) -> torch.Tensor:
            return (torch.randn(*shape) * shape[-1] ** -0.5).to(device, dtype)

        hidden = HEADS * HEAD_DIM
        self.embedding = weight(VOCAB, hidden)
        self.qkv = weight(hidden + 2 * KV_HEADS * HEAD_DIM, hidden)
        self.norm = torch.ones(hidden, device=device)
        self.head = weight(VOCAB, hidden)
        # Row p: the cosines of position p, then as many sines.
        angles = torch.arange(512).double()[:, None] / 10000 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float().to(device)

    def projections(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value of each token: views of one buffer, as a fused projection leaves them."""
        x = ops.rms_norm(self.embedding[tokens], self.norm, 1e-5)
        query, key, value = (x @ self.qkv.T).split(
            [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], 1
        )
        return (
            query.unflatten(1, (HEADS, HEAD_DIM)),
            key.unflatten(1, (KV_HEADS, HEAD_DIM)),
            value.unflatten(1, (KV_HEADS, HEAD_DIM)),
        )


class PagedCache:
    """Keys and values of all requests in blocks of 16 tokens.  Which blocks are whose is up to the caller."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        shape = (NUM_BLOCKS, BLOCK, KV_HEADS, HEAD_DIM)
        self.keys, self.values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        # Request 0 has the even blocks, request 1 the odd ones.
        self.block_tables = (
            torch.arange(NUM_BLOCKS, dtype=torch.int32, device=device).view(-1, 2).T.contiguous()
        )

    def slots(self, request: int, first: int, count: int) -> torch.Tensor:
        """Where tokens [first, first + count) of a request lie: block * BLOCK + offset."""
        positions = torch.arange(first, first + count, device=self.keys.device)
        return self.block_tables[request, positions // BLOCK].long() * BLOCK + positions % BLOCK


def step(model: TinyModel, cache: PagedCache, tokens: list[list[int]], lengths: list[int]) -> torch.Tensor:
    """Computes new tokens of requests that have ``lengths`` of them in the cache; logits of each last."""
    device = cache.keys.device
    counts = [len(t) for t in tokens]
    flat = torch.tensor([token for new in tokens for token in new], device=device)
    positions = torch.cat(
        [torch.arange(n, n + c, device=device) for n, c in zip(lengths, counts, strict=True)]
    )
    slot_mapping = torch.cat(
        [cache.slots(r, n, c) for r, (n, c) in enumerate(zip(lengths, counts, strict=True))]
    )
    cu_seqlens_q = torch.tensor(
        [0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=device
    )
    seq_lens = torch.tensor(
        [n + c for n, c in zip(lengths, counts, strict=True)], dtype=torch.int32, device=device
    )

    query, key, value = model.projections(flat)
    # Rotates query and key and stores key and value: one launch on a GPU.
    ops.rope_and_cache(positions, query, key, value, model.cos_sin, cache.keys, cache.values, slot_mapping)
    out = ops.paged_attention(
        query,
        cache.keys,
        cache.values,
        cache.block_tables,
        cu_seqlens_q,
        seq_lens,
        SCALE,
        max_query_len=max(counts),
    )
    last = out.flatten(1)[cu_seqlens_q[1:].long() - 1]
    return last @ model.head.T


def choose(logits: torch.Tensor, number: int) -> list[int]:
    """Token ``number`` of each request; the same seed gives the same token on every device."""
    rows, device = logits.shape[0], logits.device
    token_ids, status = ops.sample_tokens(
        logits.float(),
        torch.full((rows,), 0.8, device=device),
        top_k=torch.full((rows,), 50, dtype=torch.int32, device=device),
        top_p=torch.full((rows,), 0.95, dtype=torch.float64, device=device),
        seed=torch.tensor([42, 43], device=device),
        step=torch.full((rows,), number, device=device),
    )
    assert not status.any(), "a row of logits had a NaN"
    return token_ids.tolist()


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() and ops.build_info()["cuda"] else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model, cache = TinyModel(device, dtype), PagedCache(device, dtype)
    requests = [[5, 6, 7], list(range(100, 140))]
    prompts = [len(r) for r in requests]
    logits = step(model, cache, requests, [0, 0])
    for number in range(20):
        for request, token in zip(requests, choose(logits, number), strict=True):
            request.append(token)
        logits = step(model, cache, [r[-1:] for r in requests], [len(r) - 1 for r in requests])
    for request, prompt in zip(requests, prompts, strict=True):
        print(f"{prompt} prompt tokens, then {request[prompt:]}")

    # The last step again with torch, over contiguous keys and values.
    worst = 0.0
    for r, request in enumerate(requests):
        query, key, value = model.projections(torch.tensor(request, device=device))
        positions = torch.arange(len(request), device=device)
        ops.rotary_embedding(positions, query, key, HEAD_DIM, model.cos_sin)
        q, k, v = (t.transpose(0, 1)[None] for t in (query[-1:], key, value))
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=SCALE, enable_gqa=True)
        worst = max(worst, float((exact.flatten() @ model.head.T - logits[r]).abs().max()))
    print(f"largest difference of a logit to torch: {worst:.1e} ({device.type}, {dtype})")


if __name__ == "__main__":
    main()
