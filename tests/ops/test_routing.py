"""topk_softmax, topk_sigmoid and grouped_topk against float64 and against transformers' routers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from op_checks import FLOATS, assert_same_bits, strided_views
from routing_reference import Options, assert_distinct, assert_routed
from torch import Tensor

from inferx import ops

EXPERTS = [1, 2, 5, 8, 60, 64, 128, 160, 256, 257, 512]
INF, NAN = math.inf, math.nan
V3 = Options("sigmoid", renormalize=True, scale=2.5, groups=8, top_groups=4)


@pytest.mark.parametrize("op", [ops.topk_softmax, ops.topk_sigmoid])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_published_numbers(op: Any, scale: float) -> None:
    """Case E11: scores 2, 1, 0, -1."""
    expected = {
        (ops.topk_softmax, False): (0.643914, 0.236883),
        (ops.topk_softmax, True): (0.731059, 0.268941),
        (ops.topk_sigmoid, False): (0.880797, 0.731059),
        (ops.topk_sigmoid, True): (0.546449, 0.453551),
    }
    for renormalize in (False, True):
        weights, ids = op(
            torch.tensor([[2.0, 1.0, 0.0, -1.0]]), 2, renormalize=renormalize, routed_scaling_factor=scale
        )
        assert ids.tolist() == [[0, 1]]
        wanted = torch.tensor([expected[op, renormalize]]) * scale
        torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("top_k", [1, 2, 8, 32])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_against_float64(scoring: str, biased: bool, top_k: int, experts: int) -> None:
    top_k = min(top_k, experts)
    bias = torch.rand(experts) / experts if biased else None
    for renormalize in (False, True):
        options = Options(scoring, renormalize, scale=1.7)
        for dtype in FLOATS:
            logits = (torch.randn(33, experts) * 3).to(dtype)
            assert_routed(options.call(logits, top_k, bias), logits, top_k, options, bias)


GROUPED = [
    (256, 8, 4, 8),
    (64, 8, 3, 6),
    (160, 8, 3, 6),
    (60, 4, 2, 5),
    (12, 12, 6, 6),
    (8, 2, 1, 4),
    (512, 32, 7, 8),
    (257, 1, 1, 3),
]


@pytest.mark.parametrize(("experts", "groups", "top_groups", "top_k"), GROUPED)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_groups(scoring: str, biased: bool, experts: int, groups: int, top_groups: int, top_k: int) -> None:
    bias = torch.rand(experts) - 0.5 if biased else None
    logits = torch.randn(33, experts)
    options = Options(scoring, biased, 2.5, groups, top_groups)
    assert_routed(options.call(logits, top_k, bias), logits, top_k, options, bias)


def test_negative_biased_scores_stay_in_their_groups() -> None:
    """What is outside of the chosen groups is out, also when all inside is below zero."""
    logits, bias = torch.zeros(1, 8), torch.tensor([-5.0, -6, -7, -8, -5, -6, -9, -9])
    _, ids = Options("sigmoid", groups=2, top_groups=1).call(logits, 4, bias)
    assert ids.tolist() == [[0, 1, 2, 3]]  # of equal groups the first


def test_a_group_is_as_good_as_its_two_best_under_a_bias() -> None:
    logits = torch.tensor([[9.0, -9, -9, 1, 1, -9]])
    options = Options("sigmoid", groups=2, top_groups=1)
    assert options.call(logits, 2)[1].tolist() == [[0, 1]]  # without: as its best
    assert options.call(logits, 2, torch.zeros(6))[1].tolist() == [[3, 4]]


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_deepseek_v2_of_transformers(method: str) -> None:
    from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    config = DeepseekV2Config(
        hidden_size=16, num_attention_heads=2, n_routed_experts=20, num_experts_per_tok=6, n_group=5,
        topk_group=3, topk_method=method, routed_scaling_factor=16.0,
    )  # fmt: skip
    router = DeepseekV2TopkRouter(config)
    options = Options(scale=16.0)
    if method != "greedy":
        options = replace(options, groups=5, top_groups=3)
    check_router(router, options, 6)


def test_deepseek_v3_of_transformers() -> None:
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=16, n_routed_experts=64, num_experts_per_tok=8, n_group=8, topk_group=4,
        norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    router = DeepseekV3TopkRouter(config)
    router.e_score_correction_bias.copy_(torch.rand(router.num_experts) - 0.7)
    check_router(router, V3, 8, router.e_score_correction_bias)


@pytest.mark.parametrize("renormalize", [False, True])
def test_qwen2_moe_of_transformers(renormalize: bool) -> None:
    from transformers.models.qwen2_moe.configuration_qwen2_moe import Qwen2MoeConfig
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

    config = Qwen2MoeConfig(hidden_size=16, num_experts=60, num_experts_per_tok=4, norm_topk_prob=renormalize)
    check_router(Qwen2MoeTopKRouter(config), Options(renormalize=renormalize), 4)


def check_router(router: Any, options: Options, top_k: int, bias: Tensor | None = None) -> None:
    """Weights as a row over all experts, because transformers' ids come in any order."""
    with torch.no_grad():
        router.weight.copy_(torch.randn(router.weight.shape) / 3)
        logits, weights, ids = router(torch.randn(40, 16))

    def spread(weights: Tensor, ids: Tensor) -> Tensor:
        return torch.zeros(logits.shape).scatter_(1, ids.long(), weights)

    actual = spread(*options.call(logits, top_k, bias))
    torch.testing.assert_close(actual, spread(weights, ids), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [Options(), Options("sigmoid"), V3, Options(groups=4, top_groups=2)])
@pytest.mark.parametrize("biased", [False, True])
def test_equal_scores_go_to_the_lower_expert(options: Options, biased: bool) -> None:
    bias = torch.zeros(64) if biased else None
    weights, ids = options.call(torch.full((3, 64), -0.7), 8, bias)
    assert ids.tolist() == [list(range(8))] * 3
    assert bool((weights == weights[0, 0]).all())
    assert options.call(torch.tensor([[0.0, -0.0] * 32]), 8, bias)[1].tolist() == [list(range(8))]
    logits = torch.randint(-2, 3, (50, 64)).float()
    plain = Options(options.scoring)
    expected = logits.sort(dim=-1, descending=True, stable=True).indices[:, :8]
    assert torch.equal(plain.call(logits, 8, bias)[1].long(), expected)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    logits = torch.randn(5, 16)
    bias = torch.zeros(16)
    bias[11] = 10.0
    for options in (Options(), Options("sigmoid")):
        weights, ids = options.call(logits, 2, bias)
        assert bool((ids[:, 0] == 11).all())
        score = logits.softmax(-1) if options.scoring == "softmax" else logits.sigmoid()
        torch.testing.assert_close(weights[:, 0], score[:, 11])


ALL_OPTIONS = [
    Options(),
    Options(renormalize=True),
    Options("sigmoid"),
    Options("sigmoid", renormalize=True),
    V3,
    Options(groups=4, top_groups=2),
]


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_nan_stays_in_its_row(options: Options, biased: bool) -> None:
    bias = torch.rand(64) if biased else None
    logits = torch.randn(6, 64)
    expected = options.call(logits, 8, bias)
    rows = [0, 2, 5]
    logits[0, 3] = NAN
    logits[2] = NAN
    logits[5, 63] = -NAN
    logits[5, 0] = INF
    weights, ids = options.call(logits, 8, bias)
    assert_distinct(ids, 64)
    assert weights[rows].isnan().all()
    others = [1, 3, 4]
    assert_same_bits(weights[others], expected[0][others])
    assert_same_bits(ids[others], expected[1][others])
    if options.groups == 1 and not biased:
        assert 3 not in ids[0].tolist()  # counts as the least


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_infinite_logits(options: Options) -> None:
    logits = torch.zeros(4, 64)
    logits[0] = -INF
    logits[1, [9, 40]] = INF
    logits[2, 10:] = -INF
    logits[3] = -INF
    logits[3, 17] = 1.0
    weights, ids = options.call(logits, 8)
    assert_distinct(ids, 64)
    assert not weights.isnan().any()
    assert bool((weights >= 0).all())
    assert ids[1, :2].tolist() == [9, 40]
    assert ids[2].tolist() == list(range(8))
    assert int(ids[3, 0]) == 17
    if options.scoring == "softmax":
        share = 1 / 8 if options.renormalize else 1 / 64
        assert weights[0].tolist() == [share] * 8
        assert weights[1].tolist() == [0.5, 0.5] + [0.0] * 6
        assert weights[3].tolist() == [1.0] + [0.0] * 7
    else:
        assert not weights[0].any()  # a sum of 0 is not divided by


def test_huge_and_tiny_logits() -> None:
    logits = torch.tensor([[3e38, -3e38, 1e38, 3e38], [1e-40, 0.0, -1e-40, 1e-45], [0.0, -60, -86, -1000]])
    weights, ids = ops.topk_softmax(logits, 4)
    assert ids.tolist() == [[0, 3, 2, 1], [0, 3, 1, 2], [0, 1, 2, 3]]
    assert weights[:2].tolist() == [[0.5, 0.5, 0.0, 0.0], [0.25] * 4]
    torch.testing.assert_close(
        weights[2].double(), logits[2].double().softmax(-1), rtol=1e-6, atol=0.0 + 1e-38
    )
    weights, _ = ops.topk_sigmoid(-logits[2:], 4, renormalize=True)
    assert weights[0].tolist()[:2] == pytest.approx([2 / 7] * 2)
    for bias in (None, torch.zeros(4)):
        assert not ops.topk_sigmoid(logits, 4, e_score_correction_bias=bias)[0].isnan().any()
        assert not ops.topk_softmax(logits, 4, e_score_correction_bias=bias)[0].isnan().any()


def test_small_weights_are_as_exact_as_large_ones() -> None:
    logits = -86 * torch.rand(300, 32)
    logits[:, 5] = 0.0  # so that x - max is exact
    for op, exact in (
        (ops.topk_softmax, logits.double().softmax(-1)),
        (ops.topk_sigmoid, logits.double().sigmoid()),
    ):
        weights, ids = op(logits, 32)
        torch.testing.assert_close(weights.double(), exact.gather(1, ids.long()), rtol=6e-7, atol=0)


def test_infinite_bias() -> None:
    bias = torch.tensor([0.0, INF, -INF, NAN])
    weights, ids = ops.topk_softmax(torch.zeros(1, 4), 4, e_score_correction_bias=bias)
    assert ids.tolist() == [[1, 0, 2, 3]]
    assert weights.tolist() == [[0.25] * 4]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("experts", [5, 64, 257])
def test_strided_rows(experts: int, dtype: torch.dtype) -> None:
    options = Options()
    for name, logits in strided_views(lambda *s: torch.randn(*s).to(dtype), 6, experts).items():
        print(name)  # shown when it fails
        expected = options.call(logits.contiguous(), 3)
        for actual, wanted in zip(options.call(logits, 3), expected, strict=True):
            assert_same_bits(actual, wanted)


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_a_row_does_not_depend_on_its_batch_or_threads(options: Options) -> None:
    logits, bias = torch.randn(300, 160), torch.rand(160)
    together = options.call(logits, 8, bias)
    for row in range(0, 300, 37):
        alone = options.call(logits[row : row + 1].clone(), 8, bias)
        assert_same_bits(alone[0], together[0][row : row + 1])
        assert_same_bits(alone[1], together[1][row : row + 1])
    before = ops.get_num_threads()
    try:
        for threads in (1, 3):
            ops.set_num_threads(threads)
            for actual, wanted in zip(options.call(logits, 8, bias), together, strict=True):
                assert_same_bits(actual, wanted)
    finally:
        ops.set_num_threads(before)


def test_no_tokens_and_given_outputs() -> None:
    weights, ids = ops.topk_softmax(torch.empty(0, 8), 2)
    assert weights.shape == ids.shape == (0, 2)
    logits = torch.randn(3, 8)
    expected = ops.topk_softmax(logits, 2)
    out = torch.empty(3, 2), torch.empty(3, 2, dtype=torch.int32)
    assert all(
        given is returned for given, returned in zip(out, ops.topk_softmax(logits, 2, out=out), strict=True)
    )
    assert_same_bits(out[0], expected[0])
    assert_same_bits(out[1], expected[1])


X = torch.randn(4, 8)
W, I = torch.empty(4, 2), torch.empty(4, 2, dtype=torch.int32)  # noqa: E741


def grouped(top_k: int = 2, groups: int = 4, top_groups: int = 2, scoring: str = "softmax") -> Any:
    return lambda: Options(scoring, groups=groups, top_groups=top_groups).call(X, top_k)


def grouped_options(**options: Any) -> Any:
    return lambda: ops.grouped_topk(X, 2, **{"renormalize": True, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.topk_softmax(X, 0), "topk_softmax: top_k: expected 1 to 32, got 0"),
        (
            lambda: ops.topk_softmax(X, 9),
            "topk_softmax: top_k: expected 1 to 8, the number of experts, got 9",
        ),
        (lambda: ops.topk_sigmoid(torch.ones(1, 64), 33), "topk_sigmoid: top_k: expected 1 to 32, got 33"),
        (lambda: ops.topk_softmax(X[0], 1), "gating_output: expected at least 2 dim"),
        (lambda: ops.topk_softmax(X[None], 1), r"gating_output: expected shape \[T, E\], got \[1, 4, 8\]"),
        (lambda: ops.topk_softmax(X.double(), 1), "gating_output: expected dtype float32 or .* got float64"),
        (lambda: ops.topk_softmax(torch.ones(8, 4).t(), 1), "gating_output: expected a contiguous last dim"),
        (lambda: ops.topk_softmax(torch.ones(1, 513), 1), "gating_output: expected 1 to 512 experts, got"),
        (lambda: ops.topk_softmax(torch.ones(4, 0), 1), "gating_output: expected 1 to 512 experts, got"),
        (
            lambda: ops.topk_softmax(X, 2, e_score_correction_bias=torch.ones(7)),
            r"e_score_correction_bias: expected shape \[E=8\], got \[7\]",
        ),
        (
            lambda: ops.topk_softmax(X, 2, e_score_correction_bias=torch.ones(8).half()),
            "e_score_correction_bias: expected dtype float32, got float16",
        ),
        (
            lambda: ops.topk_softmax(X, 2, routed_scaling_factor=NAN),
            "routed_scaling_factor: expected a finite number, got nan",
        ),
        (
            lambda: ops.topk_softmax(X, 2, routed_scaling_factor=1e39),
            "routed_scaling_factor: expected a finite number, got 9",
        ),
        (lambda: ops.topk_softmax(X, 2, out=(W[:3], I)), r"out\[0\]: expected shape \[4, 2\], got \[3, 2\]"),
        (lambda: ops.topk_softmax(X, 2, out=(W, I.long())), "topk_ids: expected dtype int32, got int64"),
        (lambda: ops.topk_softmax(X, 2, out=(W.double(), I)), "topk_weights: expected dtype float32, got"),
        (
            lambda: ops.topk_softmax(X, 2, out=(X.view(-1)[:8].view(4, 2), I)),
            "topk_weights: expected memory apart from that of gating_output",
        ),
        (
            lambda: ops.topk_softmax(X, 2, out=(W, W.view(torch.int32))),
            "topk_ids: expected memory apart from that of topk_weights",
        ),
        (grouped(groups=3), "num_expert_group: expected 1 to 32 groups that divide the 8 experts, got 3"),
        (
            grouped_options(num_expert_group=0, topk_group=1),
            "grouped_topk: num_expert_group: expected 1 to 32 groups that divide the experts, got 0",
        ),
        (
            lambda: Options(groups=64, top_groups=1).call(torch.ones(1, 64), 1),
            "num_expert_group: expected 1 to 32 groups that divide the experts, got 64",
        ),
        (grouped(top_groups=5), "topk_group: expected 1 to 4, num_expert_group, got 5"),
        (grouped(top_groups=0), "topk_group: expected 1 to 4, num_expert_group, got 0"),
        (grouped(top_k=5), "top_k: expected 1 to 4, the experts of topk_group=2 groups, got 5"),
        (grouped(scoring="tanh"), "scoring_func: expected softmax or sigmoid, got tanh"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


CALLS: dict[str, Any] = {
    "topk_softmax: top_k": lambda value: ops.topk_softmax(X, value),
    "topk_sigmoid: top_k": lambda value: ops.topk_sigmoid(X, value),
    "grouped_topk: top_k": lambda value: grouped(top_k=value)(),
    "grouped_topk: num_expert_group": lambda value: grouped_options(num_expert_group=value, topk_group=1)(),
    "grouped_topk: topk_group": lambda value: grouped_options(num_expert_group=4, topk_group=value)(),
}


@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_ints_of_their_range(name: str) -> None:
    for wrong in (None, "a", 1.5, True, torch.tensor(1)):
        with pytest.raises(TypeError, match=re.escape(f"{name}: expected an int, got {wrong!r}")):
            CALLS[name](wrong)
    for number in (-1, 2**31, 2**62, 2**70):
        with pytest.raises(ValueError, match=f"{name}: expected 1 to .*, got {number}$"):
            CALLS[name](number)


@pytest.mark.parametrize(
    ("out", "given"),
    [((), "a tuple of 0"), ([W], "a list of 1"), (W, "<class 'torch.Tensor'>"), (1, "<class 'int'>")],
)
def test_out_is_a_pair(out: Any, given: str) -> None:
    message = f"topk_weights, topk_ids\\) or None, got {given}$"
    calls: list[tuple[str, Any]] = [
        ("topk_softmax", lambda: ops.topk_softmax(X, 2, out=out)),
        ("topk_sigmoid", lambda: ops.topk_sigmoid(X, 2, out=out)),
        ("grouped_topk", grouped_options(num_expert_group=4, topk_group=2, out=out)),
    ]
    for op, call in calls:
        with pytest.raises(TypeError, match=rf"^{op}: out: expected a pair of tensors \({message}"):
            call()


def test_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"topk_softmax: gating_output: expected a torch\.Tensor"):
        ops.topk_softmax([[1.0]], 1)  # type: ignore[arg-type]


CASES = {
    "topk_softmax": lambda: (W.clone(), I.clone(), X, True, torch.rand(8), 1.5),
    "topk_sigmoid": lambda: (W.clone(), I.clone(), X, False, None, 1.0),
    "grouped_topk": lambda: (W.clone(), I.clone(), X, 4, 2, True, "sigmoid", torch.rand(8), 2.5),
}


@pytest.mark.parametrize("name", list(CASES))
def test_schema_and_fake(name: str) -> None:
    overload = getattr(torch.ops.inferx, name).default
    torch.library.opcheck(overload, CASES[name](), test_utils=("test_schema", "test_faketensor"))


def test_compiled_code_gives_the_same() -> None:
    def route(x: Tensor) -> tuple[Tensor, Tensor]:
        options = {"num_expert_group": 4, "topk_group": 2, "renormalize": True}
        weights, ids = ops.grouped_topk(x, 2, **options)  # type: ignore[arg-type]
        return weights + ops.topk_softmax(x, 2)[0] + ops.topk_sigmoid(x, 2)[0], ids

    actual = torch.compile(route, backend="aot_eager", fullgraph=True)(X)
    for got, wanted in zip(actual, route(X), strict=True):
        assert_same_bits(got, wanted)
