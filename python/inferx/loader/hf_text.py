"""Tokenizer and chat template of a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferx.errors import LoadError
from inferx.loader.json_file import MAX_TOKENIZER_BYTES, read_json, read_text

TEMPLATE_FILE = "chat_template.jinja"
LEGACY_TEMPLATE_FILE = "chat_template.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def special_tokens(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Special tokens by role; entries are strings or added-token objects."""
    result = {}
    for name in _SPECIAL:
        value = tokenizer_config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            result[name] = text
    return result


def chat_template(directory: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """chat_template.jinja wins over the field of tokenizer_config.json, which is a template or a list of
    named ones, of which "default" counts."""
    if (directory / TEMPLATE_FILE).is_file():
        return read_text(directory / TEMPLATE_FILE)
    value = tokenizer_config.get("chat_template")
    if value is None and (directory / LEGACY_TEMPLATE_FILE).is_file():
        value = read_json(directory / LEGACY_TEMPLATE_FILE).get("chat_template")
    if isinstance(value, list):
        value = {
            item["name"]: item.get("template")
            for item in value
            if isinstance(item, dict) and isinstance(item.get("name"), str)
        }
    if isinstance(value, dict):
        value = value.get("default") or next(iter(value.values()), None)
    if value is not None and not isinstance(value, str):
        raise LoadError(
            f"{directory / 'tokenizer_config.json'}: chat_template: expected text, got {str(value)[:100]}"
        )
    return value


def tokenizer_json(directory: Path, tokenizer_config: dict[str, Any]) -> str:
    """tokenizer.json, with the BOS and EOS flags of tokenizer_config.json applied where it sets them."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise LoadError(f"{path}: missing; slow tokenizers (tokenizer.model, vocab.txt) are not supported")
    text = read_text(path, MAX_TOKENIZER_BYTES)
    try:
        parsed = json.loads(text)
        added = parsed["added_tokens"]
        ids = {entry["content"]: int(entry["id"]) for entry in added}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LoadError(f"{path}: not a tokenizer: {error}") from error
    flags = {name: tokenizer_config.get(f"add_{name}_token") for name in ("bos", "eos")}
    if all(flag is None for flag in flags.values()):
        return text
    tokens = special_tokens(tokenizer_config)
    wanted = [tokens.get(f"{name}_token") if flags[name] else None for name in ("bos", "eos")]
    for token in wanted:
        if token is not None and token not in ids:
            raise LoadError(
                f"{path}: the special token {token!r} of tokenizer_config.json is not an added token"
            )
    parsed["post_processor"] = _template(wanted[0], wanted[1], ids)
    return json.dumps(parsed, ensure_ascii=False)


def _template(bos: str | None, eos: str | None, ids: dict[str, int]) -> dict[str, Any]:
    """A post-processor that puts ``bos`` before and ``eos`` after each sequence."""

    def sequence(name: str, type_id: int) -> list[dict[str, Any]]:
        def special(token: str | None) -> list[dict[str, Any]]:
            return [] if token is None else [{"SpecialToken": {"id": token, "type_id": type_id}}]

        return [*special(bos), {"Sequence": {"id": name, "type_id": type_id}}, *special(eos)]

    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in (bos, eos)
            if token is not None
        },
    }
