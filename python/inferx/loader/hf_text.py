"""Tokenizer and chat template of a Hugging Face directory."""

from __future__ import annotations

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


def tokenizer_json(directory: Path) -> str:
    """tokenizer.json as it is.  add_bos_token and add_eos_token of tokenizer_config.json have no say beside
    it (transformers 5 ignores them too): what is added stands in its post-processor."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise LoadError(f"{path}: missing; slow tokenizers (tokenizer.model, vocab.txt) are not supported")
    return read_text(path, MAX_TOKENIZER_BYTES)


def special_token_ids(directory: Path, names: dict[str, str]) -> dict[str, int]:
    """role -> id, for the special tokens of tokenizer_config.json that tokenizer.json knows."""
    path = directory / "tokenizer.json"
    if not names or not path.is_file():
        return {}
    try:
        ids = {
            entry["content"]: entry["id"] for entry in read_json(path, MAX_TOKENIZER_BYTES)["added_tokens"]
        }
    except (KeyError, TypeError) as error:
        raise LoadError(f"{path}: not a tokenizer: added_tokens: {error!r}") from error
    return {role: ids[text] for role, text in names.items() if type(ids.get(text)) is int}
