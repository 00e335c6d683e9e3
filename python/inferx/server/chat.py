"""``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferx.engine.protocol import TokenLogprobs
from inferx.outputs import RequestOutput
from inferx.server.choices import Choice, Delta, make_choices
from inferx.server.context import ServerContext, new_id
from inferx.server.errors import bad_request, shorten
from inferx.server.generation import Job, OutputStream
from inferx.server.logprobs import chat_logprobs, prompt_logprobs
from inferx.server.messages import active_tools, conversation, template_kwargs
from inferx.server.prompts import room_for_output
from inferx.server.protocol import ChatCompletionRequest, TemplateFields, parse_request
from inferx.server.responses import json_response
from inferx.server.sampling import sampling_params
from inferx.server.streaming import respond_with_events, until_disconnect
from inferx.server.usage import UsageCounter, latency_split, response_metrics


async def create_chat_completion(context: ServerContext, request: Request) -> Response:
    """Parse, validate, render, run; streamed or whole."""
    arrival = time.monotonic()
    body = parse_request(ChatCompletionRequest, await context.read_json(request))
    model = context.check_model(body.model)
    body.check_stream_options()
    tools = active_tools(body)
    num_top = _num_top_logprobs(body)
    ids = await encode_conversation(context, body, tools)
    job = _make_job(context, body, ids, num_top, arrival)
    chat = ChatCompletion(context, body, model, job)
    outputs = OutputStream(context.engine, [job], context.metrics)
    if body.stream:
        args = context.args
        return await respond_with_events(
            request, outputs, lambda: chat.events(outputs), args.first_output_grace, args.keep_alive_interval
        )
    return json_response(await until_disconnect(request.receive, chat.whole(outputs)))


async def encode_conversation(
    context: ServerContext, body: TemplateFields, tools: list[dict[str, Any]] | None
) -> list[int]:
    """Token ids of the rendered conversation.  The template writes BOS itself where the model has one."""
    if body.continue_final_message:
        raise bad_request("continue_final_message is not supported", "continue_final_message")
    kwargs = template_kwargs(body)
    add_generation_prompt = body.add_generation_prompt is not False
    return await context.text.encode_chat(conversation(body.messages), tools, add_generation_prompt, kwargs)


def _num_top_logprobs(body: ChatCompletionRequest) -> int | None:
    """SamplingParams.logprobs for the request: None without logprobs, 0 without alternatives."""
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= 20:
        raise bad_request(
            f"top_logprobs must be from 0 to 20, got {shorten(body.top_logprobs)}", "top_logprobs"
        )
    return (body.top_logprobs or 0) if body.logprobs else None


def _make_job(
    context: ServerContext, body: ChatCompletionRequest, ids: list[int], num_top: int | None, arrival: float
) -> Job:
    newer = body.max_completion_tokens is not None
    name = "max_completion_tokens" if newer else "max_tokens"
    asked = body.max_completion_tokens if newer else body.max_tokens
    if asked is not None and asked < 1:
        raise bad_request(f"{name} must be at least 1, got {shorten(asked)}", name)
    max_tokens = room_for_output(
        len(ids), asked, context.engine.max_model_len, prompt_param="messages", max_tokens_param=name
    )
    params = sampling_params(
        body,
        context.sampling_defaults,
        max_tokens=max_tokens,
        logprobs=num_top,
        prompt_logprobs=body.prompt_logprobs,
        vocab_size=context.engine.vocab_size,
    )
    return Job(
        new_id("chatcmpl"),
        ids,
        params,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        arrival_time=arrival,
    )


@dataclass
class ChatCompletion:
    """One response: turns engine outputs into the API's objects."""

    context: ServerContext
    body: ChatCompletionRequest
    model: str
    job: Job
    prompt_entries: list[TokenLogprobs | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.created = int(time.time())
        self.choices = make_choices([self.job], self.context.names)[0]
        self.usage = UsageCounter([len(self.job.prompt_token_ids)])

    async def whole(self, outputs: OutputStream) -> dict[str, Any]:
        """The response object once everything has finished."""
        deltas: list[list[Delta]] = [[] for _ in self.choices]
        try:
            async for _, output in outputs:
                for choice, delta in self._deltas(output):
                    deltas[choice.index].append(delta)
        finally:
            await outputs.aclose()
        choices = [
            self._whole_choice(choice, Delta.joined(parts))
            for choice, parts in zip(self.choices, deltas, strict=True)
        ]
        response = self._envelope("chat.completion", choices)
        response["usage"] = self.usage.as_dict()
        response["metrics"] = response_metrics([c.metrics for c in self.choices])
        if self.body.prompt_logprobs is not None:
            response["prompt_logprobs"] = prompt_logprobs(self.prompt_entries, self.context.names)
        if self.body.return_token_ids:
            response["prompt_token_ids"] = self.job.prompt_token_ids
        return response

    async def events(self, outputs: OutputStream) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed response; each choice begins with its role."""
        async for _, output in outputs:
            for choice, delta in self._deltas(output):
                if not choice.started:
                    choice.started = True
                    yield self._chunk(choice, {"role": "assistant", "content": ""}, None)
                if delta.empty:
                    continue
                content = {"content": delta.text} if delta.text else {}
                chunk = self._chunk(choice, content, delta)
                if delta.finish_reason is not None and choice.metrics is not None:
                    chunk["metrics"] = latency_split(choice.metrics)
                yield chunk
        if self.body.include_usage:
            chunk = self._envelope("chat.completion.chunk", [])
            chunk["usage"] = self.usage.as_dict()
            chunk["metrics"] = response_metrics([c.metrics for c in self.choices])
            yield chunk

    def _deltas(self, output: RequestOutput) -> list[tuple[Choice, Delta]]:
        if output.prompt_logprobs is not None:
            self.prompt_entries = list(output.prompt_logprobs)
        result = []
        for sample in output.outputs:
            choice = self.choices[sample.index]
            delta = choice.add(sample)
            self.usage.add(0, len(delta.token_ids), output.num_cached_tokens)
            if not self.body.return_token_ids:
                delta.token_ids = []
            result.append((choice, delta))
        return result

    def _logprobs(self, delta: Delta | None) -> dict[str, Any] | None:
        if delta is None or not self.body.logprobs:
            return None
        return chat_logprobs(delta.tokens, self.context.names, self.body.top_logprobs or 0)

    def _whole_choice(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        item = {
            "index": choice.index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.return_token_ids:
            item["token_ids"] = delta.token_ids
        return item

    def _chunk(self, choice: Choice, content: dict[str, Any], delta: Delta | None) -> dict[str, Any]:
        finish_reason = None if delta is None else delta.finish_reason
        item: dict[str, Any] = {
            "index": choice.index,
            "delta": content,
            "logprobs": self._logprobs(delta),
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            item["stop_reason"] = choice.stop_reason
        if self.body.return_token_ids and delta is not None:
            item["token_ids"] = delta.token_ids
        return self._envelope("chat.completion.chunk", [item])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.job.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
