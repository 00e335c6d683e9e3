"""LangChain's ChatOpenAI: python langchain_client.py URL MODEL."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Ship(BaseModel):
    """A ship."""

    size: Literal["small", "large"]
    masts: Literal[1, 2, 3]


@tool
def get_tide(place: Literal["Dover", "Calais"], hour: Literal[6, 12]) -> str:
    """The tide at a place."""
    return f"high at {place}, {hour}"


def report(what: str, value: object) -> None:
    print(f"  {what}: {str(value)[:100]!r}", flush=True)


def main(url: str, model: str, key: str = "none") -> None:
    options: Any = {"base_url": f"{url}/v1", "api_key": key, "model": model, "temperature": 0}
    chat = ChatOpenAI(**options, max_tokens=24, max_retries=0)
    whole = chat.invoke("Name a ship.")
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    parts = list(chat.stream("Name a ship."))
    assert "".join(str(p.content) for p in parts) == whole.content
    assert len(parts) > 3
    report("invoke and stream", whole.content)
    answers = asyncio.run(chat.abatch(["Name a ship."] * 3))
    assert [a.content for a in answers] == [whole.content] * 3
    report("abatch", len(answers))

    longer = ChatOpenAI(**options, max_tokens=100, max_retries=0)
    question = "What is the tide in Dover at 6?"
    call = longer.bind_tools([get_tide], tool_choice="get_tide").invoke(question).tool_calls[0]
    assert call["name"] == "get_tide"
    assert get_tide.invoke(call["args"]).startswith("high at ")
    report("tool call", call["args"])
    merged: Any = None
    for chunk in longer.bind_tools([get_tide], tool_choice="any").stream(question):
        merged = chunk if merged is None else merged + chunk
    assert get_tide.invoke(merged.tool_calls[0]["args"]).startswith("high at ")
    report("tool call, streamed", merged.tool_calls[0]["args"])
    for method in ("json_schema", "function_calling"):
        ship = longer.with_structured_output(Ship, method=method).invoke("Describe a ship.")
        assert isinstance(ship, Ship)
        report(f"with_structured_output, {method}", ship)


if __name__ == "__main__":
    main(*sys.argv[1:])
