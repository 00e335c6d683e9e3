"""``/v1/responses`` and ``/v1/messages`` on the real model, through OpenAI's and Anthropic's own clients.

A tiny model complies with nothing by itself: calls and JSON are forced, so what is checked does not depend
on what it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from fake_server import wait_until
from pydantic import BaseModel
from real_server import RealServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(180)]

GREEDY = {"temperature": 0}  # Anthropic's client has no argument for it any more


class City(BaseModel):
    name: str
    size: Literal["small", "large"]
    districts: int


WEATHER = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 12},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["place", "unit"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer(
        "--max-num-seqs",
        "8",
        "--max-num-batched-tokens",
        "256",
        "--max-model-len",
        "2048",
        "--api-key",
        "sk-1",
    )
    server.client.headers["authorization"] = "Bearer sk-1"
    yield server
    # A background response that still runs does not keep the server from ending.
    server.post("/v1/responses", input="hi", background=True, ignore_eos=True)
    wait_until(lambda: not server.idle(), 10)
    assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.fixture(autouse=True)
def _idle(server: RealServer) -> Iterator[None]:
    yield
    wait_until(server.idle, 5)


@pytest.fixture(scope="module")
def model(server: RealServer) -> str:
    name: str = server.client.get("/v1/models").json()["data"][0]["id"]
    return name


@pytest.fixture(scope="module")
def oai(server: RealServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-1", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: RealServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="sk-1", max_retries=0) as client:
        yield client


def check_weather(arguments: str | dict[str, object]) -> None:
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(value) == {"place", "unit"}
    assert value["unit"] in ("celsius", "fahrenheit")


class TestResponses:
    def test_same_answer_as_chat_streamed_and_whole(
        self, server: RealServer, oai: openai.OpenAI, model: str
    ) -> None:
        question = "Name three colours."
        chat = server.chat(question, max_tokens=24)
        arguments: Any = {"model": model, "input": question, "max_output_tokens": 24, "temperature": 0}
        whole = oai.responses.create(**arguments)
        assert whole.output_text == chat["choices"][0]["message"]["content"]
        assert whole.usage is not None
        assert whole.usage.input_tokens == chat["usage"]["prompt_tokens"]
        assert whole.usage.output_tokens == chat["usage"]["completion_tokens"]
        deltas = []
        for event in oai.responses.create(stream=True, **arguments):
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
        assert "".join(deltas) == whole.output_text
        last: Any = event
        assert last.type == f"response.{whole.status}"
        assert last.response.usage.output_tokens == whole.usage.output_tokens
        assert last.response.usage.input_tokens == whole.usage.input_tokens

    def test_a_conversation_hits_the_prefix_cache(self, oai: openai.OpenAI, model: str) -> None:
        text = "Count with me. " * 20
        first = oai.responses.create(model=model, input=text, max_output_tokens=8, temperature=0)
        second = oai.responses.create(
            model=model, input="Go on.", previous_response_id=first.id, max_output_tokens=8, temperature=0
        )
        assert second.usage is not None
        assert second.usage.input_tokens_details.cached_tokens >= 64
        again = oai.responses.create(
            model=model,
            input=[
                {"role": "user", "content": text},
                {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "Go on."},
            ],
            max_output_tokens=8,
            temperature=0,
        )
        assert again.output_text == second.output_text

    def test_parse_with_a_model(self, oai: openai.OpenAI, model: str) -> None:
        arguments: Any = {
            "model": model,
            "input": "Describe Paris.",
            "text_format": City,
            "temperature": 0,
            "max_output_tokens": 400,
        }
        parsed = oai.responses.parse(**arguments)
        assert isinstance(parsed.output_parsed, City)
        with oai.responses.stream(**arguments) as stream:
            final = stream.get_final_response()
        assert final.output_parsed == parsed.output_parsed
        assert final.output_text == parsed.output_text

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
    def test_forced_calls(self, oai: openai.OpenAI, model: str, choice: Any) -> None:
        tool: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
        arguments: Any = {
            "model": model,
            "input": "How warm is it in Rome?",
            "tools": [tool],
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_output_tokens": 300,
        }
        whole = oai.responses.create(**arguments)
        assert whole.status == "completed"
        call: Any = whole.output[0]
        assert (call.type, call.name) == ("function_call", "get_weather")
        check_weather(call.arguments)
        deltas = []
        with oai.responses.stream(**arguments) as stream:
            for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    deltas.append(event.delta)
            final: Any = stream.get_final_response()
        assert "".join(deltas) == final.output[0].arguments == call.arguments
        assert len(deltas) > 1
        answer = oai.responses.create(
            model=model,
            previous_response_id=whole.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}],
            tools=[tool],
            temperature=0,
            max_output_tokens=8,
        )
        assert answer.status in ("completed", "incomplete")

    def test_background(self, oai: openai.OpenAI, model: str) -> None:
        arguments: Any = {"model": model, "input": "Tell a story.", "temperature": 0, "max_output_tokens": 40}
        whole = oai.responses.create(**arguments)
        response = oai.responses.create(background=True, **arguments)
        assert response.status in ("queued", "in_progress")
        wait_until(lambda: oai.responses.retrieve(response.id).status not in ("queued", "in_progress"), 60)
        done = oai.responses.retrieve(response.id)
        assert done.output_text == whole.output_text
        assert done.status == whole.status
        events = list(oai.responses.retrieve(response.id, stream=True, starting_after=2))
        assert events[0].sequence_number == 3
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text
        assert [item.type for item in oai.responses.input_items.list(response.id)] == ["message"]

    def test_cancel_stops_the_engine(self, server: RealServer, oai: openai.OpenAI, model: str) -> None:
        response = oai.responses.create(
            model=model, input="hi", background=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
        )
        wait_until(lambda: oai.responses.retrieve(response.id).output_text, 30)
        cancelled = oai.responses.cancel(response.id)
        assert cancelled.status == "cancelled"
        wait_until(server.idle, 2)
        assert oai.responses.retrieve(response.id).output_text == cancelled.output_text
        oai.responses.delete(response.id)

    def test_a_client_that_leaves(self, server: RealServer, oai: openai.OpenAI, model: str) -> None:
        stream = oai.responses.create(
            model=model, input="hi", stream=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
        )
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        stream.close()
        wait_until(server.idle, 2)

    def test_errors(self, oai: openai.OpenAI, model: str) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            oai.responses.create(model=model, input="hi", tools=[{"type": "web_search"}])
        assert caught.value.param == "tools[0].type"
        broken: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}}
        with pytest.raises(openai.BadRequestError) as caught:
            oai.responses.create(model=model, input="hi", text=broken)
        assert str(caught.value.param).startswith("text.format")
        with pytest.raises(openai.NotFoundError):
            oai.responses.create(model="nope", input="hi")


class TestMessages:
    def test_same_answer_as_chat_streamed_and_whole(
        self, server: RealServer, claude: anthropic.Anthropic, model: str
    ) -> None:
        question = "Name three colours."
        chat = server.chat(question, max_tokens=24)
        arguments: Any = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 24,
            "extra_body": GREEDY,
        }
        whole: Any = claude.messages.create(**arguments)
        assert whole.content[0].text == chat["choices"][0]["message"]["content"]
        usage = whole.usage
        prompt = chat["usage"]["prompt_tokens"]
        assert usage.input_tokens + usage.cache_read_input_tokens == prompt
        assert usage.output_tokens == chat["usage"]["completion_tokens"]
        with claude.messages.stream(**arguments) as stream:
            text = "".join(stream.text_stream)
            final: Any = stream.get_final_message()
        assert text == final.content[0].text == whole.content[0].text
        assert final.stop_reason == whole.stop_reason
        assert final.usage.output_tokens == usage.output_tokens
        assert final.usage.input_tokens + final.usage.cache_read_input_tokens == prompt
        count = claude.messages.count_tokens(model=model, messages=arguments["messages"])
        assert count.input_tokens == prompt

    def test_system_and_prefill(self, claude: anthropic.Anthropic, model: str) -> None:
        message: Any = claude.messages.create(
            model=model,
            system=[{"type": "text", "text": "You count."}],
            messages=[
                {"role": "user", "content": "Count from 1 to 9."},
                {"role": "assistant", "content": "1, 2, 3, 4,"},
            ],
            max_tokens=40,
            extra_body=GREEDY,
            stop_sequences=["7"],
        )
        assert message.content[0].text.startswith(" 5, 6")
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "7")

    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
    def test_forced_calls(self, claude: anthropic.Anthropic, model: str, choice: Any) -> None:
        choice = {**choice, "disable_parallel_tool_use": True}
        tool: Any = {"name": "get_weather", "description": "The weather.", "input_schema": WEATHER}
        question: Any = {"role": "user", "content": "How warm is it in Rome?"}
        arguments: Any = {
            "model": model,
            "messages": [question],
            "tools": [tool],
            "tool_choice": choice,
            "max_tokens": 300,
            "extra_body": GREEDY,
        }
        whole: Any = claude.messages.create(**arguments)
        assert whole.stop_reason == "tool_use"
        use = whole.content[0]
        assert (use.type, use.name) == ("tool_use", "get_weather")
        check_weather(use.input)
        pieces = []
        with claude.messages.stream(**arguments) as stream:
            for event in stream:
                if event.type == "input_json":
                    pieces.append(event.partial_json)
            final: Any = stream.get_final_message()
        assert final.content[0].input == use.input == json.loads("".join(pieces))
        assert final.stop_reason == "tool_use"
        result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "21 degrees"}
        answer = claude.messages.create(
            model=model,
            messages=[
                question,
                {"role": "assistant", "content": whole.content},
                {"role": "user", "content": [result]},
            ],
            tools=[tool],
            max_tokens=8,
            extra_body=GREEDY,
        )
        assert answer.role == "assistant"

    def test_parse_with_a_model(self, claude: anthropic.Anthropic, model: str) -> None:
        parsed = claude.messages.parse(
            model=model,
            messages=[{"role": "user", "content": "Describe Paris."}],
            output_format=City,
            max_tokens=400,
            extra_body=GREEDY,
        )
        assert isinstance(parsed.parsed_output, City)

    def test_a_client_that_leaves(self, server: RealServer, claude: anthropic.Anthropic, model: str) -> None:
        stream = claude.messages.create(
            model=model,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for event in stream:
            if event.type == "content_block_delta":
                break
        stream.close()
        wait_until(server.idle, 2)

    def test_errors(self, server: RealServer, claude: anthropic.Anthropic, model: str) -> None:
        hi: Any = [{"role": "user", "content": "hi"}]
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.create(model="nope", messages=hi, max_tokens=5)
        image: Any = {"type": "image", "source": {"type": "url", "url": "x"}}
        with pytest.raises(anthropic.BadRequestError, match="images are not supported"):
            claude.messages.create(model=model, messages=[{"role": "user", "content": [image]}], max_tokens=5)
        stranger = anthropic.Anthropic(base_url=server.url, api_key="sk-2", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            stranger.messages.create(model=model, messages=hi, max_tokens=5)
