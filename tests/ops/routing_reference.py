"""Routing from its formulas, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inferx import ops

NEAR = 5e-7  # scores that differ by less may change places in float32


@dataclass(frozen=True)
class Options:
    """What a router does beside taking the best."""

    scoring: str = "softmax"
    renormalize: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1

    def call(self, logits: Tensor, top_k: int, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The op."""
        if self.groups > 1:
            return ops.grouped_topk(
                logits,
                top_k,
                num_expert_group=self.groups,
                topk_group=self.top_groups,
                renormalize=self.renormalize,
                scoring_func=self.scoring,
                e_score_correction_bias=bias,
                routed_scaling_factor=self.scale,
            )
        op = ops.topk_softmax if self.scoring == "softmax" else ops.topk_sigmoid
        return op(
            logits,
            top_k,
            renormalize=self.renormalize,
            e_score_correction_bias=bias,
            routed_scaling_factor=self.scale,
        )


def scores_of(logits: Tensor, options: Options) -> Tensor:
    x = logits.double()
    return x.softmax(-1) if options.scoring == "softmax" else x.sigmoid()


def choosing_scores(logits: Tensor, options: Options, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """What experts are compared by, -inf outside of the best groups, and in which rows float32 cannot miss
    those groups."""
    choosing = logits.double() if bias is None else scores_of(logits, options) + bias.double()
    if options.top_groups == options.groups:
        return choosing, torch.ones(logits.shape[0], dtype=torch.bool)
    grouped = choosing.unflatten(1, (options.groups, -1))
    best_two = grouped.topk(min(2, grouped.shape[-1])).values
    ranked, order = (best_two[..., 0] if bias is None else best_two.sum(-1)).sort(
        dim=-1, descending=True, stable=True
    )
    mask = torch.ones_like(grouped, dtype=torch.bool)
    mask.scatter_(1, order[:, : options.top_groups, None].expand(-1, -1, grouped.shape[-1]), value=False)
    sure = ranked[:, options.top_groups - 1] - ranked[:, options.top_groups] > NEAR
    return choosing.masked_fill(mask.flatten(1), -torch.inf), sure


def reference_weights(logits: Tensor, ids: Tensor, options: Options) -> Tensor:
    """The weights of given experts."""
    weights = scores_of(logits, options).gather(1, ids.long())
    if options.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * options.scale


def assert_routed(
    actual: tuple[Tensor, Tensor],
    logits: Tensor,
    top_k: int,
    options: Options,
    bias: Tensor | None = None,
) -> None:
    """``actual`` is what the formulas say; ids exactly where logits are compared."""
    weights, ids = actual
    assert weights.shape == ids.shape == (logits.shape[0], top_k)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    choosing, sure = choosing_scores(logits, options, bias)
    assert sure.double().mean() > 0.9
    ranked, order = choosing.sort(dim=-1, descending=True, stable=True)
    if bias is None:
        assert torch.equal(ids[sure].long(), order[sure, :top_k])
    actual_scores = choosing.gather(1, ids.long())
    torch.testing.assert_close(actual_scores[sure], ranked[sure, :top_k], rtol=0, atol=NEAR)
    assert_distinct(ids, logits.shape[1])
    torch.testing.assert_close(
        weights.double(), reference_weights(logits, ids, options), rtol=16 * 2.0**-23, atol=1e-37
    )


def assert_distinct(ids: Tensor, experts: int) -> None:
    assert bool(((ids >= 0) & (ids < experts)).all())
    assert all(len(set(row)) == len(row) for row in ids.tolist())
