"""Choosing tokens: argmax, sampling with top-k and top-p, log-probabilities, masks of tokens."""

from __future__ import annotations

from functools import partial

import torch
from benchmarks.kernels.case import Case, Cases, Target, Work

from inferx import ops


def cases(target: Target) -> Cases:
    vocabularies = [32000, 131072] if target.is_cuda else [49152]
    for vocab in vocabularies:
        for rows in target.pick([1, 16, 64, 256] if target.is_cuda else [1, 16]):
            for kind in ("greedy", "plain", "top_k=50 top_p=0.9"):
                yield Case(
                    "sample_tokens", f"R={rows} V={vocab} {kind}", partial(sample, target, rows, vocab, kind)
                )
            yield Case("token_logprobs", f"R={rows} V={vocab} top=5", partial(logprobs, target, rows, vocab))
            for kind in ("few", "half", "most"):
                yield Case(
                    "apply_token_bitmask",
                    f"R={rows} V={vocab} {kind}",
                    partial(mask, target, rows, vocab, kind),
                )


def _logits(target: Target, rows: int, vocab: int) -> list[torch.Tensor]:
    copies = target.copies(4 * rows * vocab)
    return [3 * torch.randn(rows, vocab, device=target.device) for _ in range(copies)]


def sample(target: Target, rows: int, vocab: int, kind: str) -> Work:
    sets = _logits(target, rows, vocab)
    device = target.device
    seed, step, index = (torch.arange(rows, device=device) for _ in range(3))
    temperature = torch.full((rows,), 0.0 if kind == "greedy" else 0.8, device=device)
    filters: tuple[torch.Tensor | None, ...] = ()
    if kind.startswith("top"):
        filters = (torch.full((rows,), 50, device=device, dtype=torch.int32),
                   torch.full((rows,), 0.9, device=device, dtype=torch.float64))  # fmt: skip
    calls = [
        partial(ops.sample_tokens, x, temperature, *filters, seed=seed, step=step, index=index) for x in sets
    ]

    def torch_sample(x: torch.Tensor) -> torch.Tensor:
        probabilities = (x / 0.8).softmax(-1)
        if filters:
            probabilities, order = probabilities.sort(-1, descending=True)
            probabilities[:, 50:] = 0
            probabilities[probabilities.cumsum(-1) - probabilities >= 0.9] = 0
            return order.gather(1, torch.multinomial(probabilities, 1))
        return torch.multinomial(probabilities, 1)

    peer = [partial(torch.argmax, x, -1) if kind == "greedy" else partial(torch_sample, x) for x in sets]
    return Work(calls, 4.0 * rows * vocab, peers={"torch": peer})


def logprobs(target: Target, rows: int, vocab: int) -> Work:
    sets = _logits(target, rows, vocab)
    tokens = torch.arange(rows, device=target.device)
    return Work([partial(ops.token_logprobs, x, tokens, 5) for x in sets], 4.0 * rows * vocab)


def mask(target: Target, rows: int, vocab: int, kind: str) -> Work:
    """Few, half or most of the tokens are allowed, in runs of words as a grammar leaves them."""
    sets = _logits(target, rows, vocab)
    words = -(-vocab // 32)
    share = {"few": 0.01, "half": 0.5, "most": 0.99}[kind]
    allowed = torch.rand(rows, words, device=target.device) < share
    bitmask = torch.where(allowed, -1, 0).int()
    masked = ~allowed.repeat_interleave(32, 1)[:, :vocab]
    peer = [partial(x.masked_fill_, masked, -torch.inf) for x in sets]
    nbytes = 4.0 * rows * words + 4.0 * rows * vocab * (1 - share)
    return Work([partial(ops.apply_token_bitmask, x, bitmask) for x in sets], nbytes, peers={"torch": peer})
