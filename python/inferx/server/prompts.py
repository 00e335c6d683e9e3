"""The prompts of a completion request, and whether they fit the context."""

from __future__ import annotations

from typing import Any

from inferx.server import limits_table as limits
from inferx.server.errors import ApiError, bad_request, shorten


def split_prompts(prompt: Any, param: str = "prompt") -> list[str | list[int]]:
    """One entry per prompt: OpenAI allows a string, a list of strings, token ids, or lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _malformed(prompt, param)
    if set(map(type, prompt)) == {int}:
        return [prompt]
    limits.PROMPTS.check(len(prompt), param)
    for i, item in enumerate(prompt):
        ids = isinstance(item, list) and set(map(type, item)) == {int}  # one C loop; bool is not int
        if not ids and not isinstance(item, str):
            raise _malformed(item, param, f"{param}[{i}]")
    return prompt


def _malformed(value: Any, param: str, where: str | None = None) -> ApiError:
    given = "nothing" if value is None else shorten(value)
    return bad_request(
        f"{where or param}: must be a string, a list of strings, a list of token ids or a list of such "
        f"lists, and not empty; got {given}",
        param,
    )


def check_truncation(keep: int | None, max_model_len: int) -> None:
    """400 unless ``truncate_prompt_tokens`` is -1 or a length that a prompt may have."""
    if keep is not None and keep != -1 and not 1 <= keep <= max_model_len:
        raise bad_request(
            f"truncate_prompt_tokens must be -1 or from 1 to {max_model_len}, got {shorten(keep)}",
            "truncate_prompt_tokens",
        )


def truncate_prompt(ids: list[int], keep: int | None, max_model_len: int, reserved: int | None) -> list[int]:
    """The last ``keep`` ids; for -1 as many as fit with ``reserved`` tokens of output (at least one)."""
    if keep is None:
        return ids
    if keep == -1:
        keep = max(1, max_model_len - max(1, reserved or 1))
    return ids[-keep:]


def check_token_ids(ids: list[int], vocab_size: int, param: str = "prompt") -> None:
    """400 unless every id is in the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise bad_request(f"{param}: token ids must be from 0 to {vocab_size - 1}, got {shorten(bad)}", param)


def room_for_output(
    num_prompt_tokens: int,
    max_tokens: int | None,
    max_model_len: int,
    *,
    default: int | None = None,
    prompt_param: str = "prompt",
    max_tokens_param: str = "max_tokens",
) -> int:
    """How many tokens may be generated.

    max_tokens: what the caller asked for, which must fit; else ``default``, cut to what fits; else all
    that fits.  The errors carry the true numbers, since callers shorten their prompts by them.
    """
    room = max_model_len - num_prompt_tokens
    if num_prompt_tokens == 0:
        raise bad_request(f"{prompt_param}: must have at least one token, got none", prompt_param)
    if room < 1:
        raise bad_request(
            f"the maximum context length is {max_model_len} tokens, but the prompt has {num_prompt_tokens} "
            "tokens, and at least 1 must be left for the output",
            prompt_param,
            "context_length_exceeded",
        )
    if max_tokens is None:
        return room if default is None else min(default, room)
    if max_tokens > room:
        raise bad_request(
            f"the maximum context length is {max_model_len} tokens, but "
            f"{shorten(num_prompt_tokens + max_tokens)} were asked for: "
            f"{num_prompt_tokens} in the prompt and {shorten(max_tokens)} as {max_tokens_param}",
            max_tokens_param,
            "context_length_exceeded",
        )
    return max_tokens
