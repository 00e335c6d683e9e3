"""Which class runs which architecture, by every name that files use for it."""

from __future__ import annotations

from inferx.errors import LoadError
from inferx.layers.placement import CPU, Placement
from inferx.loader.checkpoint import Checkpoint
from inferx.models.decoder import Decoder
from inferx.models.deepseek import DeepseekV2, DeepseekV3
from inferx.models.gemma3 import Gemma3
from inferx.models.gpt_oss import GptOss
from inferx.models.llama import Llama
from inferx.models.mistral import Mistral
from inferx.models.mixtral import Mixtral
from inferx.models.olmoe import Olmoe
from inferx.models.phi3 import Phi3
from inferx.models.qwen2 import Qwen2
from inferx.models.qwen2_moe import Qwen2MoE
from inferx.models.qwen3 import Qwen3
from inferx.models.qwen3_moe import Qwen3MoE
from inferx.models.weights import Progress, WeightPlan

FAMILIES: tuple[type[Decoder], ...] = (
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma3,
    Phi3,
    Mixtral,
    Qwen2MoE,
    Qwen3MoE,
    Olmoe,
    DeepseekV2,
    DeepseekV3,
    GptOss,
)
_BY_NAME = {
    name: family
    for family in FAMILIES
    for name in (family.architecture, *family.hf_architectures, *family.gguf_architectures)
}


def model_class(architecture: str) -> type[Decoder]:
    """The class for a canonical, Hugging Face or GGUF architecture name.  LoadError for others."""
    family = _BY_NAME.get(architecture)
    if family is None:
        known = ", ".join(family.architecture for family in FAMILIES)
        raise LoadError(f"architecture {architecture!r} is not supported; supported: {known}")
    return family


def build_model(
    checkpoint: Checkpoint,
    dtype: str = "auto",
    progress: Progress | None = None,
    placement: Placement = CPU,
    float8_cache: bool = False,
) -> Decoder:
    """The model of a checkpoint with its weights in memory, packed or dense as ``placement`` says.

    dtype: "auto" keeps every tensor's stored type; "float32", "bfloat16", "float16" convert matrices that are
    not quantised.  Activations are float32 on the CPU either way; elsewhere ``placement`` has their type,
    which dense weights share.
    float8_cache: the KV cache will be float8, so the checkpoint's scales for it are read.
    progress: called with the bytes read so far (of ``checkpoint.weight_bytes``, less what is not needed).
    Raises LoadError naming the file and tensor when something is missing, wrongly shaped, unknown or
    overflows.
    """
    weights = WeightPlan(checkpoint, dtype, progress, placement, float8_cache)
    model = model_class(checkpoint.config.architecture)(checkpoint.config, weights)
    weights.load()
    return model
