"""From a request's fields to SamplingParams, with the model's own defaults in between."""

from __future__ import annotations

from typing import Any

from inferx.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from inferx.server.errors import bad_request, shorten
from inferx.server.protocol import GenerationFields
from inferx.structured_outputs import StructuredOutputsParams

# What generation_config.json may set; the rest of that file is not about sampling.
DEFAULTABLE = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}
PLAIN_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)


def sampling_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """The sampling options that a model's generation_config.json declares."""
    defaults: dict[str, Any] = {}
    for name, kind in DEFAULTABLE.items():
        value = generation_config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            defaults[name] = kind(value)
    return defaults


def neutral_differences(defaults: dict[str, Any]) -> str:
    """The defaults that change what a request without options gets: "temperature 0.6, top_k 20"."""
    neutral = SamplingParams()
    changed = [(name, value) for name, value in defaults.items() if value != getattr(neutral, name)]
    return ", ".join(f"{name} {value:g}" for name, value in changed if (name, value) != ("top_k", -1))


def sampling_params(
    request: GenerationFields,
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    vocab_size: int,
    structured_outputs: StructuredOutputsParams | None = None,
    shown_special_token_ids: list[int] | None = None,
) -> SamplingParams:
    """Validated options of one prompt; InvalidRequestError or ApiError naming the field."""
    options: dict[str, Any] = dict(defaults)
    for name in PLAIN_FIELDS:
        value = getattr(request, name)
        if value is not None:
            options[name] = value
    if request.logit_bias:
        options["logit_bias"] = token_biases(request.logit_bias)
    options["max_tokens"] = max_tokens
    options["logprobs"] = logprobs
    options["prompt_logprobs"] = prompt_logprobs
    options["structured_outputs"] = structured_outputs
    options["shown_special_token_ids"] = shown_special_token_ids or []
    params = SamplingParams(**options)
    params.validate(vocab_size)
    return params


def token_biases(biases: dict[str, float]) -> dict[int, float]:
    """JSON's string keys as token ids.  Only the plain decimal form, so that no two keys mean one token."""
    if len(biases) > MAX_LOGIT_BIAS:
        raise bad_request(
            f"logit_bias takes at most {MAX_LOGIT_BIAS} entries, got {len(biases)}", "logit_bias"
        )
    result: dict[int, float] = {}
    for key, bias in biases.items():
        plain = key.isascii() and key.isdigit() and len(key) <= 10 and (key == "0" or key[0] != "0")
        if not plain:
            raise bad_request(f"logit_bias keys must be token ids, got {shorten(key)}", "logit_bias")
        result[int(key)] = bias
    return result
