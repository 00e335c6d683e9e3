"""The table of limits: printed as the document, its flags exist, an excess of each is refused as it says."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import inferx
from inferx.cli.serve import serve
from inferx.server import limits_table
from inferx.server.limits_table import LIMITS, Limit

ROOT = Path(__file__).parents[2]
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"


def test_the_document_is_the_table() -> None:
    text = (ROOT / "docs" / "limits.md").read_text()
    assert text == limits_table.document(), "run: python -m inferx.server.limits_table > docs/limits.md"


def test_flags_exist_with_these_defaults() -> None:
    parameters = inspect.signature(serve).parameters
    flags = {
        flag: parameter.default
        for parameter in parameters.values()
        for option in getattr(parameter.annotation, "__metadata__", ())
        for flag in (getattr(option, "default", None), *(getattr(option, "param_decls", None) or ()))
        if isinstance(flag, str)
    }
    wanted = {limit.flag: limit.value for limit in LIMITS.values() if limit.flag is not None}
    assert wanted.keys() <= flags.keys()
    sizes = {"KiB": 1 << 10, "MiB": 1 << 20}
    for flag, value in wanted.items():
        default = flags[flag]
        if isinstance(default, str):
            default = int(default[:-3]) * sizes[default[-3:]]
        assert default == value, flag


def test_every_limit_is_used() -> None:
    """By its name in the code, or (sampling, structured output) as the constant that it stands for."""
    names = {id(value): name for name, value in vars(limits_table).items() if isinstance(value, Limit)}
    sources = Path(inferx.__file__).parent.rglob("*.py")
    code = "".join(p.read_text() for p in sources if p.name != "limits_table.py")
    elsewhere = {
        "json_nesting",  # the parser's own
        "prompt_tokens", "prompt_bytes", "allowed_token_ids",  # from the model
        "compile_seconds",
    }  # fmt: skip
    for limit in LIMITS.values():
        if limit.section in ("Sampling", "Structured output") or limit.name in elsewhere:
            continue
        assert re.search(rf"\b{names[id(limit)]}\b", code), f"{limit.name} is checked nowhere"


def user(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **more}]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# name in the table: (path, body with one more than allowed, the field that the error names)
EXCESS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "prompts": (COMPLETION, {"prompt": ["x"] * 2049}, "prompt"),
    "prompt_tokens": (COMPLETION, {"prompt": [5] * 512}, "prompt"),
    "prompt_bytes": (COMPLETION, {"prompt": "a" * 50_000}, "prompt"),
    "truncated_bytes": (COMPLETION, {"prompt": "a" * ((1 << 20) + 1), "truncate_prompt_tokens": 5}, "prompt"),
    "token_ids": ("/detokenize", {"tokens": [5] * 499_990}, "tokens"),
    "cache_salt_chars": (COMPLETION, {"prompt": "x", "cache_salt": "s" * 257}, "cache_salt"),
    "n": (COMPLETION, {"prompt": "x", "n": 129}, "n"),
    "logprobs": (COMPLETION, {"prompt": "x", "logprobs": 21}, "logprobs"),
    "stop": (COMPLETION, {"prompt": "x", "stop": ["x"] * 17}, "stop"),
    "stop_chars": (COMPLETION, {"prompt": "x", "stop": "x" * 1025}, "stop"),
    "stop_token_ids": (COMPLETION, {"prompt": "x", "stop_token_ids": [5] * 1025}, "stop_token_ids"),
    "logit_bias": (COMPLETION, {"prompt": "x", "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    "bad_words": (COMPLETION, {"prompt": "x", "bad_words": ["x"] * 257}, "bad_words"),
    "bad_word_chars": (COMPLETION, {"prompt": "x", "bad_words": ["x" * 1025]}, "bad_words"),
    "allowed_token_ids": (COMPLETION, {"prompt": "x", "allowed_token_ids": [5] * 2000}, "allowed_token_ids"),
    "messages": (CHAT, {"messages": [{"role": "user", "content": "x"}] * 10_001}, "messages"),
    "role_chars": (CHAT, user(role="r" * 65), "messages[0].role"),
    "tools": (CHAT, user() | {"tools": [{"type": "function", "function": {"name": "f"}}] * 257}, "tools"),
    "template_kwargs": (
        CHAT, user() | {"chat_template_kwargs": {f"k{i}": 1 for i in range(33)}}, "chat_template_kwargs"
    ),
    "template_kwarg_name_chars": (
        CHAT, user() | {"chat_template_kwargs": {"k" * 65: 1}}, "chat_template_kwargs"
    ),
    "template_kwarg_chars": (
        CHAT, user() | {"chat_template_kwargs": {"k": "v" * 4097}}, "chat_template_kwargs"
    ),
    "json_values": (COMPLETION, {"prompt": "x", "user": [0] * 1_000_000}, "the request body"),
    "json_nesting": (COMPLETION, {"prompt": "x", "user": nested(201)}, None),
    "body_bytes": (COMPLETION, {"prompt": "x" * ((16 << 20) + 1)}, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def roomy() -> Any:
    """A server with the default bounds; the session's has a smaller one on bodies."""
    from fake_engine import FakeEngine
    from fake_server import ThreadServer

    from inferx.server.args import ServerArgs

    server = ThreadServer(FakeEngine(), ServerArgs())
    yield server
    server.stop()


@pytest.mark.parametrize("name", EXCESS)
def test_an_excess_is_refused_before_the_engine(roomy: Any, name: str) -> None:
    path, body, param = EXCESS[name]
    roomy.engine.reset()
    content = json.dumps(body).encode()
    response = httpx.post(
        roomy.url + path, content=content, headers={"content-type": "application/json"}, timeout=60
    )
    assert response.status_code == LIMITS[name].status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert len(error["message"]) < 400
    assert roomy.engine.seen == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": ["x"] * 2048, "max_tokens": 1}),
        (COMPLETION, {"prompt": "x", "logit_bias": {str(i): 1 for i in range(256)}, "max_tokens": 1}),
        (COMPLETION, {"prompt": "x", "stop": ["q" * 1024] * 16, "max_tokens": 1}),
        (COMPLETION, {"prompt": "x", "cache_salt": "s" * 256, "max_tokens": 1}),
        (COMPLETION, {"prompt": "x", "user": nested(198), "max_tokens": 1}),
        (CHAT, user() | {"chat_template_kwargs": {f"k{i}": 1 for i in range(32)}}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_at_the_limit_is_served(roomy: Any, path: str, body: dict[str, Any]) -> None:
    response = httpx.post(roomy.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
