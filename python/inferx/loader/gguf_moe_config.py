"""Experts and latent attention of a GGUF file: its metadata, and the shapes of the tensors beside it."""

from __future__ import annotations

from inferx.errors import LoadError
from inferx.loader.config import MLAConfig, MoEConfig
from inferx.loader.gguf_file import GGUFFile
from inferx.loader.gguf_keys import Keys
from inferx.loader.gguf_names import block_number, canonical_name

WITH_EXPERTS = ("llama", "mistral", "qwen2moe", "qwen3moe", "olmoe", "deepseek2", "gpt-oss")
# Whether the weights of the chosen experts sum to 1, where the file does not say it.
_RENORMALIZED = {"llama", "mistral", "qwen3moe"}
# Published files of DeepSeek-V3 and R1 whose converters did not write the groups yet.  The models were
# trained with them: n_group and topk_group of their config.json are 8 and 4.  They are told from others by
# 256 experts and their router: a sigmoid, and a bias that chooses.
_V3_EXPERTS, _V3_GROUPS = 256, (8, 4)
# expert_gating_func; the third is the softmax over the chosen logits.
_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN = 1, 2, 3


def moe_config(file: GGUFFile, keys: Keys, architecture: str, layers: int) -> MoEConfig | None:
    """None where no layer has experts."""
    if not keys.given("expert_count"):
        return None
    sparse = tuple(f"blk.{layer}.ffn_gate_inp.weight" in file.tensors for layer in range(layers))
    if not any(sparse):
        _check_dense(file, architecture, layers)
        return None
    experts, top_k = keys.integer("expert_count"), keys.integer("expert_used_count")
    if top_k > experts:
        raise keys.fail("expert_used_count", f"at most expert_count = {experts}")
    gating = _gating(keys)
    renormalized = keys.flag("expert_weights_norm", architecture in _RENORMALIZED)
    of_chosen = gating == _SOFTMAX_OF_CHOSEN or architecture == "gpt-oss"
    first = sparse.index(True)
    score_bias = f"blk.{first}.exp_probs_b.bias" in file.tensors
    is_v3 = architecture == "deepseek2" and gating == _SIGMOID and score_bias
    groups, top_groups = _groups(keys, experts, top_k, is_v3=is_v3)
    return MoEConfig(
        num_experts=experts,
        top_k=top_k,
        intermediate_size=keys.integer("expert_feed_forward_length", _expert_width(file, first)),
        layers=sparse,
        scoring="sigmoid" if gating == _SIGMOID else "softmax",
        renormalize=renormalized or of_chosen,  # which sums to 1, whatever else the file says
        routed_scaling_factor=keys.optional_number("expert_weights_scale") or 1.0,
        score_bias=score_bias,
        num_groups=groups,
        top_groups=top_groups,
        router_bias=f"blk.{first}.ffn_gate_inp.bias" in file.tensors,
        expert_bias=f"blk.{first}.ffn_down_exps.bias" in file.tensors,
        shared_intermediate_size=_columns(file, f"blk.{first}.ffn_down_shexp.weight") or 0,
        shared_gate=f"blk.{first}.ffn_gate_inp_shexp.weight" in file.tensors,
    )


def _check_dense(file: GGUFFile, architecture: str, layers: int) -> None:
    """No block has a router: LoadError when one has experts all the same."""
    for name in file.tensors:
        number = block_number(name)
        if number is not None and number < layers and ".experts." in canonical_name(architecture, name):
            raise LoadError(
                f"{file.path}: tensor {name} is of experts, but no block has tensor ffn_gate_inp.weight"
            )


def _gating(keys: Keys) -> int:
    """Absent: softmax, as files of DeepSeek-V2 were before V3."""
    value = keys.optional_integer("expert_gating_func") or _SOFTMAX
    if value not in (_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN):
        raise keys.fail("expert_gating_func", "1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)")
    return value


def _groups(keys: Keys, experts: int, top_k: int, *, is_v3: bool) -> tuple[int, int]:
    absent = all(keys.raw(key) is None for key in ("expert_group_count", "expert_group_used_count"))
    if absent and is_v3 and experts == _V3_EXPERTS:
        groups, top_groups = _V3_GROUPS
    else:
        groups = keys.optional_integer("expert_group_count") or 1
        if groups == 1:
            return 1, 1
        top_groups = keys.integer("expert_group_used_count")
    if experts % groups:
        raise keys.fail("expert_group_count", f"a divisor of the {experts} experts")
    if top_groups > groups:
        raise keys.fail("expert_group_used_count", f"at most expert_group_count = {groups}")
    if top_k > top_groups * (experts // groups):
        raise keys.fail("expert_used_count", f"at most {top_groups} groups of {experts // groups} experts")
    return groups, top_groups


def _expert_width(file: GGUFFile, block: int) -> int | None:
    """Older files do not say it: the inputs of an expert's second matrix."""
    stacked = _columns(file, f"blk.{block}.ffn_down_exps.weight")
    return stacked or _columns(file, f"blk.{block}.ffn_down.0.weight")


def _columns(file: GGUFFile, name: str) -> int | None:
    info = file.tensors.get(name)
    return info.shape[-1] if info else None


def latent_attention(file: GGUFFile, keys: Keys) -> MLAConfig:
    """Newer files count heads of the latent in key_length and say the heads' own in key_length_mla."""
    if keys.given("attention.temperature_scale"):
        raise LoadError(f"{file.path}: scores scaled by position (temperature_scale) are not supported")
    latent = keys.given("attention.key_length_mla")
    key_length = keys.integer("attention.key_length_mla" if latent else "attention.key_length")
    rotary = keys.integer("rope.dimension_count")
    if rotary >= key_length or rotary % 2:
        raise keys.fail("rope.dimension_count", f"an even number below the keys' length {key_length}")
    return MLAConfig(
        kv_lora_rank=keys.integer("attention.kv_lora_rank"),
        qk_nope_head_dim=key_length - rotary,
        qk_rope_head_dim=rotary,
        v_head_dim=keys.integer("attention.value_length_mla" if latent else "attention.value_length"),
        q_lora_rank=keys.optional_integer("attention.q_lora_rank")
        if "blk.0.attn_q_a.weight" in file.tensors
        else None,
    )
