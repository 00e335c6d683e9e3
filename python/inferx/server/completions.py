"""``/v1/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferx.engine.protocol import TokenLogprobs
from inferx.outputs import RequestOutput
from inferx.server import structured
from inferx.server.choices import Choice, Delta, make_choices
from inferx.server.context import ServerContext, new_id
from inferx.server.errors import bad_request, shorten
from inferx.server.generation import Job, OutputStream
from inferx.server.logprobs import align_prompt, completion_logprobs, prompt_logprobs
from inferx.server.prompts import (
    check_token_ids,
    check_truncation,
    room_for_output,
    split_prompts,
    truncate_prompt,
)
from inferx.server.protocol import CompletionRequest, parse_request
from inferx.server.responses import json_response
from inferx.server.sampling import sampling_params
from inferx.server.streaming import EventData, respond_with_events, until_disconnect
from inferx.server.text_event import TextEvent
from inferx.server.usage import (
    UsageCounter,
    add_continuous_usage,
    latency_split,
    response_metrics,
)

DEFAULT_MAX_TOKENS = 16  # OpenAI's


async def create_completion(context: ServerContext, request: Request) -> Response:
    """Parse, validate, run; streamed or whole."""
    arrival = time.monotonic()
    body = parse_request(CompletionRequest, await context.read_json(request))
    model = context.check_model(body.model)
    _check(body)
    prompts = split_prompts(body.prompt)
    with context.admission.preparing_requests(len(prompts)):
        jobs = await _make_jobs(context, body, prompts, arrival)
        echoes = await _echoes(context, body, jobs)
    completion = Completion(context, body, model, jobs, echoes)
    outputs = OutputStream(context.engine, jobs, context.metrics)
    if body.stream:
        args = context.args
        return await respond_with_events(
            request,
            outputs,
            lambda: completion.events(outputs),
            args.first_output_grace,
            args.keep_alive_interval,
        )
    return json_response(await until_disconnect(request.receive, completion.whole(outputs)))


def _check(body: CompletionRequest) -> None:
    body.check_options()
    if body.suffix:
        raise bad_request("suffix is not supported", "suffix")
    if body.max_tokens is not None and body.max_tokens < (0 if body.echo else 1):
        hint = "" if body.echo else " (0 needs echo=true)"
        raise bad_request(
            f"max_tokens must be at least {0 if body.echo else 1}{hint}, got {shorten(body.max_tokens)}",
            "max_tokens",
        )


async def _make_jobs(
    context: ServerContext, body: CompletionRequest, prompts: list[str | list[int]], arrival: float
) -> list[Job]:
    special = body.add_special_tokens is not False
    engine = context.engine
    wanted = [body.prompt_logprobs, body.logprobs if body.echo else None]
    num_prompt_logprobs = max((w for w in wanted if w is not None), default=None)
    constraint = structured.constraint_of(body)
    structured_outputs = None if constraint is None else await structured.check(engine, constraint)
    keep = body.truncate_prompt_tokens
    check_truncation(keep, engine.max_model_len)
    reserved = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    jobs = []
    response_id = new_id("cmpl")
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            text: str | None = prompt
            whole = await context.text.encode(prompt, special, "prompt", to_be_cut=keep is not None)
        else:
            text, whole = None, prompt
        ids = truncate_prompt(whole, keep, engine.max_model_len, reserved)
        if len(ids) < len(whole):
            text = None  # what is echoed is what the model saw
        # The length first: it is O(1), the range is not.
        max_tokens = room_for_output(
            len(ids), body.max_tokens, engine.max_model_len, default=DEFAULT_MAX_TOKENS
        )
        check_token_ids(ids, engine.vocab_size)
        params = sampling_params(
            body,
            context.sampling_defaults,
            # Scoring a prompt takes one step; its token is dropped.
            max_tokens=max(1, max_tokens),
            logprobs=body.logprobs,
            prompt_logprobs=num_prompt_logprobs,
            vocab_size=engine.vocab_size,
            structured_outputs=structured_outputs,
        )
        jobs.append(
            Job(
                f"{response_id}-{number}",
                ids,
                params,
                text=text,
                priority=body.priority or 0,
                cache_salt=body.cache_salt,
                arrival_time=arrival,
            )
        )
    return jobs


async def _echoes(context: ServerContext, body: CompletionRequest, jobs: list[Job]) -> list[str]:
    if not body.echo:
        return [""] * len(jobs)
    skip_special = body.skip_special_tokens is not False
    return [
        job.text if job.text is not None else await context.text.decode(job.prompt_token_ids, skip_special)
        for job in jobs
    ]


@dataclass
class Completion:
    """One response: turns engine outputs into the API's objects."""

    context: ServerContext
    body: CompletionRequest
    model: str
    jobs: list[Job]
    echoes: list[str]

    def __post_init__(self) -> None:
        self.id = self.jobs[0].request_id.rpartition("-")[0]
        self.created = int(time.time())
        self.scoring = self.body.max_tokens == 0
        self.choices = make_choices(self.jobs, self.context.names, [len(echo) for echo in self.echoes])
        self.usage = UsageCounter([len(job.prompt_token_ids) for job in self.jobs])
        self.prompt_entries: list[list[TokenLogprobs | None]] = [[] for _ in self.jobs]
        self.text_events: dict[int, TextEvent] = {}

    async def whole(self, outputs: OutputStream) -> dict[str, Any]:
        """The response object once everything has finished."""
        deltas: dict[int, list[Delta]] = {}
        try:
            async for number, output in outputs:
                for choice, delta in self._deltas(number, output):
                    deltas.setdefault(choice.index, []).append(delta)
        finally:
            await outputs.aclose()
        choices = []
        for number, job_choices in enumerate(self.choices):
            for choice in job_choices:
                item = self._choice(choice, Delta.joined(deltas[choice.index]))
                if self.body.prompt_logprobs is not None:
                    item["prompt_logprobs"] = prompt_logprobs(self.prompt_entries[number], self.context.names)
                if self.body.return_token_ids:
                    item["prompt_token_ids"] = choice.job.prompt_token_ids
                choices.append(item)
        metrics = response_metrics([c.metrics for group in self.choices for c in group])
        return {**self._envelope(choices), "usage": self.usage.as_dict(), "metrics": metrics}

    async def events(self, outputs: OutputStream) -> AsyncGenerator[EventData, None]:
        """The chunks of a streamed response."""
        body = self.body
        only_text = body.logprobs is None and not body.return_token_ids and not body.continuous_usage
        announced: set[int] = set()  # choices whose prompt has been told
        async for number, output in outputs:
            for choice, delta in self._deltas(number, output):
                if delta.empty:
                    continue
                if only_text and delta.finish_reason is None:
                    yield self._text_event(choice)(delta.text)
                    continue
                item = self._choice(choice, delta)
                if self.body.return_token_ids and choice.index not in announced:
                    announced.add(choice.index)
                    item["prompt_token_ids"] = choice.job.prompt_token_ids
                chunk = self._envelope([item])
                add_continuous_usage(chunk, self.body.continuous_usage, self.usage)
                if delta.finish_reason is not None and choice.metrics is not None:
                    chunk["metrics"] = latency_split(choice.metrics)
                yield chunk
        if self.body.include_usage:
            metrics = response_metrics([c.metrics for group in self.choices for c in group])
            yield {**self._envelope([]), "usage": self.usage.as_dict(), "metrics": metrics}

    def _text_event(self, choice: Choice) -> TextEvent:
        made = self.text_events.get(choice.index)
        if made is None:
            made = TextEvent(lambda text: self._envelope([self._choice(choice, Delta(text))]))
            self.text_events[choice.index] = made
        return made

    def _deltas(self, number: int, output: RequestOutput) -> list[tuple[Choice, Delta]]:
        """What an output adds to each choice; the echoed prompt comes before a choice's first."""
        if output.prompt_logprobs is not None:
            self.prompt_entries[number] = list(output.prompt_logprobs)
        result = []
        for sample in output.outputs:
            choice = self.choices[number][sample.index]
            delta = choice.add(sample)
            if self.scoring:
                delta = Delta(finish_reason="length" if delta.finish_reason else None)
            self.usage.add(number, len(delta.token_ids), output.num_cached_tokens)
            if not self.body.return_token_ids:
                delta.token_ids = []
            if self.body.echo and not choice.started:
                self._prepend_prompt(number, delta)
            choice.started = True
            result.append((choice, delta))
        return result

    def _prepend_prompt(self, number: int, delta: Delta) -> None:
        echo = self.echoes[number]
        delta.text = echo + delta.text
        if self.body.logprobs is not None:
            ids = self.jobs[number].prompt_token_ids
            entries = self.prompt_entries[number]
            delta.tokens = align_prompt(ids, entries, echo, self.context.names) + delta.tokens

    def _choice(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        logprobs = None
        if self.body.logprobs is not None:
            logprobs = completion_logprobs(delta.tokens, self.context.names, self.body.logprobs)
        item = {
            "index": choice.index,
            "text": delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": choice.stop_reason if delta.finish_reason and not self.scoring else None,
        }
        if self.body.return_token_ids:
            item["token_ids"] = delta.token_ids
        return item

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
