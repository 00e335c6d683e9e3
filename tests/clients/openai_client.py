"""The official client, sync and async, with all that it can do here: python openai_client.py URL MODEL."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel


class Ship(BaseModel):
    """What the model has to answer with."""

    size: Literal["small", "large"]
    masts: Literal[1, 2, 3]


MESSAGES: list[Any] = [{"role": "user", "content": "Describe a ship as JSON."}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_tide",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["Dover", "Calais"]}, "hour": {"enum": [6, 12]}},
            "required": ["place", "hour"],
            "additionalProperties": False,
        },
    },
}


def report(what: str, value: object) -> None:
    print(f"  {what}: {str(value)[:100]!r}", flush=True)


def check_arguments(arguments: str) -> None:
    value = json.loads(arguments)
    assert value["place"] in ("Dover", "Calais"), value
    assert value["hour"] in (6, 12), value


def sync(client: openai.OpenAI, model: str) -> None:
    names = [m.id for m in client.models.list()]
    assert model in names, names
    whole = client.completions.create(model=model, prompt="Count: 1 2 3", max_tokens=12, temperature=0)
    parts = client.completions.create(
        model=model, prompt="Count: 1 2 3", max_tokens=12, temperature=0, stream=True
    )
    text = "".join(p.choices[0].text for p in parts)
    assert text == whole.choices[0].text
    report("completion, streamed and whole", text)
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_completion_tokens=16, temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.usage is not None
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or []) == answer.usage.completion_tokens
    report("chat", answer.choices[0].message.content)
    vectors = client.embeddings.create(model=model, input=["a ship", "a boat"]).data
    assert len(vectors) == 2
    assert len(vectors[0].embedding) == len(vectors[1].embedding) > 100
    report("embeddings of size", len(vectors[0].embedding))
    response = client.responses.create(model=model, input="Hello", max_output_tokens=16, temperature=0)
    assert response.output_text
    report("responses", response.output_text)


def errors(client: openai.OpenAI, model: str) -> None:
    for wanted, call in (
        (openai.NotFoundError, lambda: client.completions.create(model="no-such-model", prompt="x")),
        (openai.BadRequestError, lambda: client.completions.create(model=model, prompt="x", temperature=-1)),
        (
            openai.BadRequestError,
            lambda: client.chat.completions.create(model=model, messages=MESSAGES, top_logprobs=99),
        ),
    ):
        try:
            call()
        except wanted as error:
            report(wanted.__name__, error.message)
        else:
            raise AssertionError(f"{wanted.__name__} expected")


def tools(client: openai.OpenAI, model: str) -> None:
    named: Any = {"type": "function", "function": {"name": "get_tide"}}
    choices: list[tuple[Any, str]] = [(named, "stop"), ("required", "tool_calls")]
    for choice, reason in choices:
        options: Any = {
            "model": model,
            "messages": MESSAGES,
            "tools": [TOOL],
            "tool_choice": choice,
            "temperature": 0,
            "max_tokens": 100,
        }
        whole = client.chat.completions.create(**options).choices[0]
        assert whole.finish_reason == reason, whole
        assert whole.message.tool_calls, whole
        arguments = whole.message.tool_calls[0].function.arguments
        check_arguments(arguments)
        with client.chat.completions.stream(**options) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0]
        assert final.message.tool_calls, final
        assert final.message.tool_calls[0].function.arguments == arguments
        report(f"tool call, {reason}", arguments)


def parsed(client: openai.OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": MESSAGES, "response_format": Ship, "max_tokens": 60}
    whole = client.chat.completions.parse(**options, temperature=0).choices[0].message.parsed
    assert isinstance(whole, Ship)
    with client.chat.completions.stream(**options, temperature=0) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert streamed == whole
    report("parsed", whole)


async def asynchronous(url: str, model: str, key: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Count to {number % 2 + 3}."}],
                max_tokens=16,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            text, usage = "", None
            async for chunk in stream:
                usage = chunk.usage or usage
                text += "".join(c.delta.content or "" for c in chunk.choices)
            assert usage is not None
            assert usage.completion_tokens > 0
            return text

        answers = await asyncio.gather(*(one(i) for i in range(8)))
    assert answers[0::2] == [answers[0]] * 4
    assert answers[1::2] == [answers[1]] * 4
    report("8 at once, async, streamed", answers[0])


def main(url: str, model: str, key: str = "none") -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        sync(client, model)
        errors(client, model)
        tools(client, model)
        parsed(client, model)
    asyncio.run(asynchronous(url, model, key))


if __name__ == "__main__":
    main(*sys.argv[1:])
