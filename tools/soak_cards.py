"""The requests of the soak: what is asked on each endpoint, and what of an answer must never change.

A card is one well-formed request with everything pinned (greedy, or a seed), so its answer is known once it
has been asked alone.  Streamed and whole answers are brought to the same form before they are compared.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# What several prompts begin with, so that they share blocks of the prefix cache.
SHARED_PREFIX = "The ferry leaves the harbour at eight and passes the lighthouse before noon. " * 6
WORDS = ("harbour", "lighthouse", "ferry", "captain", "storm", "anchor", "island", "sailor", "tide")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_tide",
        "description": "The tide at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 12}, "hour": {"type": "integer"}},
            "required": ["place", "hour"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 16}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}

Answer = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """kind: how the summary counts it.  whole, events: bring an answer to the comparable form."""

    kind: str
    path: str
    body: dict[str, Any]
    whole: Callable[[dict[str, Any]], Answer]
    events: Callable[[list[dict[str, Any]]], Answer] | None = None  # None: does not stream

    def streamed_body(self) -> dict[str, Any]:
        extra: dict[str, Any] = {"stream": True}
        if self.path in ("/v1/completions", "/v1/chat/completions"):
            extra["stream_options"] = {"include_usage": True}
        return {**self.body, **extra}


def text_of(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def all_cards(count: int, seed: int) -> list[Card]:
    """``count`` cards, every kind in turn."""
    makers = (
        _completion,
        _chat,
        _tools,
        _structured_chat,
        _embeddings,
        _responses,
        _messages,
        _samples,
        _shared_prefix,
        _structured_completion,
        _long_prompt,
        _growing,
        _scored,
    )
    return [makers[i % len(makers)](random.Random(f"{seed}-{i}")) for i in range(count)]


# ---- one maker per kind -------------------------------------------------------------------------


def _completion(rng: random.Random) -> Card:
    body = {
        "prompt": text_of(rng, rng.randrange(1, 30)),
        "max_tokens": rng.randrange(4, 64),
        "temperature": 0,
    }
    if rng.random() < 0.3:
        body["stop"] = [rng.choice(WORDS), ".\n", "é"]
    return Card("completions", "/v1/completions", body, completion_whole, completion_events)


def _samples(rng: random.Random) -> Card:
    body = {
        "prompt": [text_of(rng, 8), text_of(rng, 40)],
        "n": rng.randrange(2, 5),
        "max_tokens": rng.randrange(4, 32),
        "temperature": 0.9,
        "top_p": 0.9,
        "seed": rng.randrange(1000),
        "presence_penalty": rng.choice([0, 0.5]),
        "logprobs": rng.choice([None, 3]),
    }
    return Card("completions, n > 1", "/v1/completions", body, completion_whole, completion_events)


def _shared_prefix(rng: random.Random) -> Card:
    body = {
        "prompt": SHARED_PREFIX + text_of(rng, 3),
        "max_tokens": rng.randrange(8, 40),
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": rng.choice([None, "salt"]),
    }
    return Card("completions, shared prefix", "/v1/completions", body, completion_whole, completion_events)


def _long_prompt(rng: random.Random) -> Card:
    body = {
        "prompt": [rng.randrange(1000, 40000) for _ in range(rng.randrange(200, 400))],
        "max_tokens": rng.randrange(1, 48),
        "temperature": 0,
        "ignore_eos": True,
    }
    return Card("completions, long prompt", "/v1/completions", body, completion_whole, completion_events)


def _growing(rng: random.Random) -> Card:
    """Admitted while the pool has room, preempted when it has grown."""
    body = {
        "prompt": text_of(rng, 4),
        "max_tokens": rng.randrange(100, 300),
        "temperature": 0,
        "ignore_eos": True,
        "priority": rng.choice([0, 0, 1, -1]),
    }
    return Card("completions, growing", "/v1/completions", body, completion_whole, completion_events)


def _scored(rng: random.Random) -> Card:
    body = {"prompt": text_of(rng, 20), "max_tokens": 0, "echo": True, "logprobs": 2, "temperature": 0}
    return Card("completions, scoring", "/v1/completions", body, completion_whole, completion_events)


def _structured_completion(rng: random.Random) -> Card:
    constraint = rng.choice(
        [
            {"regex": "[a-z]{3,8}-[0-9]{2}"},
            {"choice": ["ebb", "flood", "slack water"]},
            {"json": SCHEMA},
            {"grammar": 'root ::= ("tide " [0-9]+ "\\n"){2}'},
        ]
    )
    body = {
        "prompt": text_of(rng, 10),
        "max_tokens": 40,
        "temperature": rng.choice([0, 1]),
        "seed": 5,
        "structured_outputs": constraint,
    }
    return Card("completions, structured", "/v1/completions", body, completion_whole, completion_events)


def _chat(rng: random.Random) -> Card:
    messages = [{"role": "system", "content": "You are brief."}] if rng.random() < 0.5 else []
    messages.append({"role": "user", "content": f"Tell me about the {text_of(rng, 4)} <|im_end|> 😀"})
    body = {
        "messages": messages,
        "max_tokens": rng.randrange(8, 64),
        "temperature": rng.choice([0, 0.7]),
        "seed": 3,
        "n": rng.choice([1, 1, 2]),
    }
    return Card("chat", "/v1/chat/completions", body, chat_whole, chat_events)


def _tools(rng: random.Random) -> Card:
    named = {"type": "function", "function": {"name": "get_tide"}}
    body = {
        "messages": [{"role": "user", "content": f"When is the tide at the {text_of(rng, 2)}?"}],
        "tools": [TOOL],
        "tool_choice": rng.choice(["required", named, "auto"]),
        "max_tokens": 60,
        "temperature": 0,
    }
    return Card("chat, tools", "/v1/chat/completions", body, chat_whole, chat_events)


def _structured_chat(rng: random.Random) -> Card:
    schema = {"type": "json_schema", "json_schema": {"name": "ship", "strict": True, "schema": SCHEMA}}
    body = {
        "messages": [{"role": "user", "content": f"A ship called {text_of(rng, 1)} as JSON."}],
        "response_format": rng.choice([schema, {"type": "json_object"}]),
        "max_tokens": 60,
        "temperature": 0,
    }
    return Card("chat, structured", "/v1/chat/completions", body, chat_whole, chat_events)


def _embeddings(rng: random.Random) -> Card:
    body = {"input": [text_of(rng, rng.randrange(1, 60)) for _ in range(rng.randrange(1, 4))]}
    return Card("embeddings", "/v1/embeddings", body, embeddings_whole)


def _responses(rng: random.Random) -> Card:
    body = {
        "input": f"Say something about the {text_of(rng, 3)}.",
        "max_output_tokens": rng.randrange(16, 48),
        "temperature": 0,
    }
    return Card("responses", "/v1/responses", body, responses_whole, responses_events)


def _messages(rng: random.Random) -> Card:
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": f"Say something about the {text_of(rng, 3)}."}],
        "max_tokens": rng.randrange(8, 48),
        "temperature": 0,
    }
    return Card("messages", "/v1/messages", body, messages_whole, messages_events)


# ---- answers in comparable form ----------------------------------------------------------------


def _counted(usage: dict[str, Any] | None) -> dict[str, Any]:
    """What of the usage is a function of the request: not how much came from the cache, which some APIs
    count apart from the rest of the prompt."""
    counts = {k: v for k, v in (usage or {}).items() if k.endswith("_tokens") and isinstance(v, int)}
    cached = counts.pop("cache_read_input_tokens", 0) + counts.pop("cache_creation_input_tokens", 0)
    return {k: v + cached if k == "input_tokens" else v for k, v in counts.items()}


def _logprobs(value: Any) -> str:
    """A digest: two answers with the same text must have the same bits behind it."""
    return "" if not value else hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def completion_whole(answer: dict[str, Any]) -> Answer:
    choices = {
        c["index"]: (c["text"], c["finish_reason"], _logprobs((c["logprobs"] or {}).get("token_logprobs")))
        for c in answer["choices"]
    }
    return {"choices": choices, "usage": _counted(answer["usage"])}


def completion_events(events: list[dict[str, Any]]) -> Answer:
    text: dict[int, str] = {}
    reason: dict[int, str] = {}
    logprobs: dict[int, list[Any]] = {}
    for choice in (c for event in events for c in event["choices"]):
        index = choice["index"]
        text[index] = text.get(index, "") + choice["text"]
        reason[index] = choice["finish_reason"] or reason.get(index)
        logprobs.setdefault(index, []).extend((choice["logprobs"] or {}).get("token_logprobs") or [])
    choices = {i: (text[i], reason[i], _logprobs(logprobs[i])) for i in text}
    return {"choices": choices, "usage": _counted(events[-1].get("usage"))}


def chat_whole(answer: dict[str, Any]) -> Answer:
    choices = {}
    for choice in answer["choices"]:
        message = choice["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
        choices[choice["index"]] = (message["content"] or "", calls, choice["finish_reason"])
    return {"choices": choices, "usage": _counted(answer["usage"])}


def chat_events(events: list[dict[str, Any]]) -> Answer:
    content: dict[int, str] = {}
    calls: dict[int, dict[int, list[str]]] = {}
    reason: dict[int, str] = {}
    for choice in (c for event in events for c in event["choices"]):
        index, delta = choice["index"], choice["delta"]
        content[index] = content.get(index, "") + (delta.get("content") or "")
        reason[index] = choice["finish_reason"] or reason.get(index)
        for call in delta.get("tool_calls") or []:
            parts = calls.setdefault(index, {}).setdefault(call["index"], ["", ""])
            parts[0] += call["function"].get("name") or ""
            parts[1] += call["function"].get("arguments") or ""
    choices = {
        i: (content[i], [tuple(parts) for _, parts in sorted(calls.get(i, {}).items())], reason[i])
        for i in content
    }
    return {"choices": choices, "usage": _counted(events[-1].get("usage"))}


def embeddings_whole(answer: dict[str, Any]) -> Answer:
    return {
        "choices": {d["index"]: _logprobs(d["embedding"]) for d in answer["data"]},
        "usage": _counted(answer["usage"]),
    }


def responses_whole(answer: dict[str, Any]) -> Answer:
    texts = [
        part.get("text", "")
        for item in answer["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]
    return {"choices": texts, "status": answer["status"], "usage": _counted(answer["usage"])}


def responses_events(events: list[dict[str, Any]]) -> Answer:
    """The last event has the whole; the deltas must come to the same text."""
    last = responses_whole(events[-1]["response"])
    deltas = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert deltas == "".join(last["choices"]), "deltas do not concatenate to the whole"
    return last


def messages_whole(answer: dict[str, Any]) -> Answer:
    blocks = [b.get("text", "") for b in answer["content"]]
    return {"choices": blocks, "status": answer["stop_reason"], "usage": _counted(answer["usage"])}


def messages_events(events: list[dict[str, Any]]) -> Answer:
    blocks: dict[int, str] = {}
    status, usage = None, {}
    for event in events:
        if event["type"] == "message_start":
            usage.update(_counted(event["message"]["usage"]))
        elif event["type"] == "content_block_start":
            blocks[event["index"]] = event["content_block"].get("text", "")
        elif event["type"] == "content_block_delta":
            blocks[event["index"]] += event["delta"].get("text", "")
        elif event["type"] == "message_delta":
            status = event["delta"]["stop_reason"]
            usage.update(_counted(event["usage"]))
    return {"choices": [blocks[i] for i in sorted(blocks)], "status": status, "usage": usage}


# ---- requests that must be refused -------------------------------------------------------------

BAD_REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/v1/completions", {}),
    ("/v1/completions", {"prompt": ""}),
    ("/v1/completions", {"prompt": [-1]}),
    ("/v1/completions", {"prompt": [10**9]}),
    ("/v1/completions", {"prompt": "x", "n": 0}),
    ("/v1/completions", {"prompt": "x", "n": 10**6}),
    ("/v1/completions", {"prompt": "x", "temperature": -1}),
    ("/v1/completions", {"prompt": "x", "top_p": 2}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 10**9}),
    ("/v1/completions", {"prompt": "word " * 5000}),
    ("/v1/completions", {"prompt": [5] * 5000, "stream": True}),
    ("/v1/completions", {"prompt": "x", "model": "../../etc/passwd"}),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"999999999": 1}}),
    ("/v1/completions", {"prompt": "x", "stop": [""] * 100}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": "hello"}),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 99}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": "none"}),
    ("/tokenize", {"prompt": 5}),
    ("/detokenize", {"tokens": [-5]}),
    ("/no/such/path", {}),
    ("/v1/completions", b"{"),
    ("/v1/completions", b"[" * 5000),
    ("/v1/completions", b"\xff\xfe"),
    ("/v1/completions", b'{"prompt": "\\ud800", "temperature": NaN}'),
)
# Only where the feature exists, or they would be answered.
BAD_STRUCTURED: tuple[tuple[str, Any], ...] = (
    ("/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "(["}}),
    ("/v1/completions", {"prompt": "x", "structured_outputs": {"grammar": "root ::= missing"}}),
    ("/v1/completions", {"prompt": "x", "structured_outputs": {"json": {"type": "nonsense"}}}),
)
