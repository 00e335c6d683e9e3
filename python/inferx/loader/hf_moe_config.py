"""Experts and latent attention of a ``config.json``."""

from __future__ import annotations

from inferx.loader.config import MLAConfig, MoEConfig
from inferx.loader.hf_values import Values

DEEPSEEK = ("deepseek_v2", "deepseek_v3")
QWEN_MOE = ("qwen2_moe", "qwen3_moe")
FAMILIES = ("mixtral", "olmoe", "gpt_oss", *QWEN_MOE, *DEEPSEEK)
# One thing, as different families and versions of transformers spell it; defaults are under the first.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_KINDS = ("dense", "sparse")
_TOP_K = ("num_experts_per_tok", "experts_per_token")


def moe_config(architecture: str, values: Values) -> MoEConfig | None:
    """None where no layer has experts."""
    if architecture not in FAMILIES:
        return None
    layers = _sparse_layers(architecture, values, values.size("num_hidden_layers"))
    if not any(layers):
        return None
    experts_key, top_key = values.spelling(*_EXPERTS), values.spelling(*_TOP_K)
    experts, top_k = values.size(experts_key), values.size(top_key)
    if top_k > experts:
        raise values.fail(top_key, f"at most {experts_key} = {experts}")
    if architecture in DEEPSEEK:
        return _deepseek(architecture, values, layers, experts, top_k)
    qwen = architecture in QWEN_MOE
    gpt_oss = architecture == "gpt_oss"
    shared = architecture == "qwen2_moe"
    return MoEConfig(
        num_experts=experts,
        top_k=top_k,
        intermediate_size=values.size("moe_intermediate_size" if qwen else "intermediate_size"),
        layers=layers,
        # gpt-oss's softmax over the chosen logits is a softmax over all, brought back to a sum of 1.
        renormalize=architecture == "mixtral" or gpt_oss or values.flag("norm_topk_prob"),
        router_bias=gpt_oss,
        expert_bias=gpt_oss,
        shared_intermediate_size=values.size("shared_expert_intermediate_size") if shared else 0,
        shared_gate=shared,
    )


def _sparse_layers(architecture: str, values: Values, layers: int) -> tuple[bool, ...]:
    if architecture in QWEN_MOE:
        if values.get(values.spelling(*_EXPERTS)) == 0:
            return (False,) * layers
        step, dense = values.size("decoder_sparse_step"), values.get("mlp_only_layers") or []
        if not isinstance(dense, list) or not all(type(layer) is int and layer >= 0 for layer in dense):
            raise values.fail("mlp_only_layers", "a list of layer numbers")
        dense = set(dense)  # the list may be long
        return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
    if architecture not in DEEPSEEK:
        return (True,) * layers
    kinds = values.get("mlp_layer_types")
    if kinds is None:
        first, step = values.count("first_k_dense_replace"), values.size("moe_layer_freq")
        return tuple(layer >= first and layer % step == 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not all(k in _KINDS for k in kinds):
        raise values.fail("mlp_layer_types", f"{layers} entries, each one of {', '.join(_KINDS)}")
    return tuple(kind == "sparse" for kind in kinds)


def _deepseek(
    architecture: str, values: Values, layers: tuple[bool, ...], experts: int, top_k: int
) -> MoEConfig:
    v3 = architecture == "deepseek_v3"
    method = values.get("topk_method")
    methods = ("noaux_tc",) if v3 else ("greedy", "group_limited_greedy")
    if method not in methods:
        raise values.fail("topk_method", " or ".join(methods))
    scoring = "sigmoid" if v3 else "softmax"
    if values.get("scoring_func") != scoring:
        raise values.fail("scoring_func", scoring)
    if values.flag("mlp_bias"):
        raise values.fail("mlp_bias", "false: biases of DeepSeek's MLPs are not supported")
    grouped = method != "greedy" and values.count("n_group") > 1
    groups, top_groups = (values.size("n_group"), values.size("topk_group")) if grouped else (1, 1)
    if experts % groups:
        raise values.fail("n_group", f"a divisor of the {experts} experts")
    if v3 and grouped and experts // groups < 2:
        raise values.fail("n_group", f"at least two of the {experts} experts in each group")
    if top_groups > groups:
        raise values.fail("topk_group", f"at most n_group = {groups}")
    if top_k > top_groups * (experts // groups):
        raise values.fail(
            values.spelling(*_TOP_K),
            f"at most the {top_groups * (experts // groups)} experts of topk_group = {top_groups} groups",
        )
    width = values.size("moe_intermediate_size")
    return MoEConfig(
        num_experts=experts,
        top_k=top_k,
        intermediate_size=width,
        layers=layers,
        scoring="sigmoid" if v3 else "softmax",
        # transformers does not read norm_topk_prob of a V2, which is false in all of them.
        renormalize=v3 and values.flag("norm_topk_prob"),
        routed_scaling_factor=values.number("routed_scaling_factor"),
        score_bias=v3,
        num_groups=groups,
        top_groups=top_groups,
        shared_intermediate_size=width * values.count("n_shared_experts"),
    )


def mla_config(values: Values) -> MLAConfig:
    if values.size("qk_rope_head_dim") % 2:
        raise values.fail("qk_rope_head_dim", "an even number")
    return MLAConfig(
        kv_lora_rank=values.size("kv_lora_rank"),
        qk_nope_head_dim=values.size("qk_nope_head_dim"),
        qk_rope_head_dim=values.size("qk_rope_head_dim"),
        v_head_dim=values.size("v_head_dim"),
        q_lora_rank=values.optional_size("q_lora_rank"),
    )
