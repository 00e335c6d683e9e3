"""Request fields of other servers that would change the answer and are not supported: refused by name, since
an answer that looks as if they had been followed would be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferx.server.errors import bad_request

_LOGITS = "; logit_bias, allowed_token_ids and bad_words choose among tokens"

# Of any body: name -> what its error says beyond that.
UNSUPPORTED: Mapping[str, str] = {
    "lora_request": "; a server has one model and no adapters",
    "prompt_embeds": "; a prompt is text or token ids",
    "logits_processors": _LOGITS,
    "vllm_xargs": "",
    "thinking_token_budget": "; max_tokens bounds reasoning and answer together",
    "documents": "; put their text into a message",
}

# Constraints under the names other servers have for them.
MISNAMED: Mapping[str, str] = {
    "grammar": "; use structured_outputs.grammar",
    "ebnf": "; use structured_outputs.grammar",
    "regex": "; use structured_outputs.regex",
    "json_schema": "; use response_format or structured_outputs.json",
}


def refuse(unsupported: Mapping[str, str], data: Any) -> None:
    """ApiError naming the first unsupported field that ``data`` asks for; null and false ask for nothing."""
    if isinstance(data, dict):
        for name, hint in unsupported.items():
            value = data.get(name)
            if value is not None and value is not False:
                raise bad_request(f"{name} is not supported{hint}", name)


def refuse_given(fields: Mapping[str, str], data: Any) -> None:
    """ApiError naming the first of ``fields`` that ``data`` gives; null and what is empty give nothing."""
    if isinstance(data, dict):
        for name, instead in fields.items():
            if data.get(name) not in (None, [], {}):
                raise bad_request(f"{name} is not supported: {instead}", name)
