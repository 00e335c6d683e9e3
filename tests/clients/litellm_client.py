"""litellm over the OpenAI and the Anthropic route: python litellm_client.py URL MODEL."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it fetches a price list when it is imported
import litellm

MESSAGES = [{"role": "user", "content": "Name a ship."}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_tide",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"enum": [6, 12]}},
            "required": ["hour"],
            "additionalProperties": False,
        },
    },
}


def report(what: str, value: object) -> None:
    print(f"  {what}: {str(value)[:100]!r}", flush=True)


def main(url: str, model: str, key: str = "none") -> None:
    common: Any = {
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": key,
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 24,
        "num_retries": 0,
    }
    whole = litellm.completion(**common)
    text = whole.choices[0].message.content
    streamed = litellm.completion(**common, stream=True, stream_options={"include_usage": True})
    chunks = list(streamed)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert whole.usage.completion_tokens > 0
    report("chat, streamed and whole", text)

    forced = {"type": "function", "function": {"name": "get_tide"}}
    call = litellm.completion(**common, tools=[TOOL], tool_choice=forced).choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["hour"] in (6, 12)
    report("tool call", call.function.arguments)

    async def several() -> list[str]:
        answers = await asyncio.gather(*(litellm.acompletion(**common) for _ in range(4)))
        return [a.choices[0].message.content for a in answers]

    assert asyncio.run(several()) == [text] * 4
    report("4 at once", text)

    text_completion = litellm.text_completion(
        model=f"text-completion-openai/{model}",
        api_base=f"{url}/v1",
        api_key=key,
        prompt="Count: 1 2 3",
        max_tokens=8,
        temperature=0,
    )
    report("text completion", text_completion.choices[0].text)
    vectors = litellm.embedding(model=f"openai/{model}", api_base=f"{url}/v1", api_key=key, input=["a", "b"])
    assert len(vectors.data) == 2
    report("embeddings of size", len(vectors.data[0]["embedding"]))
    try:
        litellm.completion(**{**common, "temperature": -1})
    except litellm.BadRequestError as error:
        report("BadRequestError", error.message)
    else:
        raise AssertionError("BadRequestError expected")
    claude = litellm.completion(**{**common, "model": f"anthropic/{model}", "api_base": url})
    assert claude.choices[0].message.content
    report("through /v1/messages", claude.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:])
