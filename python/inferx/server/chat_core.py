"""A conversation run on the engine, whatever API asked for it: validation and rendering, then deltas.

``/v1/chat/completions`` writes the deltas down as they are; other APIs make a ``ChatCompletionRequest`` of
their bodies and turn the deltas into their own events.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from inferx.engine.protocol import RequestMetrics, TokenLogprobs
from inferx.outputs import CompletionOutput, RequestOutput
from inferx.server import structured
from inferx.server.answer_forms import constrain
from inferx.server.answers import AnswerParser, AnswerPlan, ToolCallDelta
from inferx.server.choices import Choice, make_choices
from inferx.server.context import ServerContext, new_id
from inferx.server.errors import bad_request, shorten
from inferx.server.generation import Job, OutputStream
from inferx.server.logprobs import AlignedToken
from inferx.server.messages import check_continuation, conversation, template_kwargs
from inferx.server.prompts import check_truncation, room_for_output, truncate_prompt
from inferx.server.protocol import ChatCompletionRequest, TemplateFields
from inferx.server.reasoning import TAIL_TOKENS, Start, start_behind_prefill, start_behind_prompt
from inferx.server.sampling import sampling_params
from inferx.server.tools.choice import tool_plan
from inferx.server.usage import UsageCounter
from inferx.structured_outputs import StructuredOutputsParams

__all__ = ["ChatDelta", "ChatRun", "ToolCallDelta", "encode_conversation", "prepare_chat"]


@dataclass(slots=True)
class ChatDelta:
    """What one output of the engine added to one choice.

    content, reasoning: new text, "" for none.  tokens: the tokens whose text is out by now, with their
    log-probabilities (empty unless asked for).  token_ids: every new token, end tokens included.
    finish_reason, stop_reason, metrics: with the choice's last delta.
    """

    index: int
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    tokens: list[AlignedToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    metrics: RequestMetrics | None = None

    @property
    def has_text(self) -> bool:
        """Whether the message itself grew."""
        return bool(self.content or self.reasoning or self.tool_calls)

    @property
    def only_content(self) -> bool:
        """Whether content is all there is, as in nearly every delta."""
        return not (self.reasoning or self.tool_calls or self.finish_reason) and bool(self.content)

    @staticmethod
    def joined(deltas: list[ChatDelta]) -> ChatDelta:
        """The whole answer of a choice: ``tool_calls`` holds each call once, complete."""
        last = deltas[-1]
        calls: dict[int, ToolCallDelta] = {}
        arguments: dict[int, list[str]] = {}
        for delta in deltas:
            for part in delta.tool_calls:
                calls.setdefault(part.index, ToolCallDelta(part.index, part.id, part.name))
                arguments.setdefault(part.index, []).append(part.arguments)
        for index, call in calls.items():
            call.arguments = "".join(arguments[index])
        return ChatDelta(
            last.index,
            content="".join([d.content for d in deltas]),
            reasoning="".join([d.reasoning for d in deltas]),
            tool_calls=list(calls.values()),
            tokens=[token for d in deltas for token in d.tokens],
            token_ids=[token for d in deltas for token in d.token_ids],
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            metrics=last.metrics,
        )


async def prepare_chat(context: ServerContext, body: ChatCompletionRequest, arrival: float) -> ChatRun:
    """A validated and rendered conversation, ready to run; ApiError or InvalidRequestError (400, 404)."""
    model = context.check_model(body.model)
    body.check_options()
    tools = tool_plan(body)
    context.formats.warn_of_unread_calls(tools)
    constraint = structured.constraint_of(body)
    num_top = num_top_logprobs(body)
    keep = body.truncate_prompt_tokens
    check_truncation(keep, context.engine.max_model_len)
    with context.admission.preparing_requests():
        ids = await encode_conversation(context, body, tools.tools, to_be_cut=keep is not None)
    reserved = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    ids = truncate_prompt(ids, keep, context.engine.max_model_len, reserved)
    start = await answer_start(context, body, ids)
    plan = AnswerPlan(context.formats, tools, start, show_special=body.skip_special_tokens is False)
    constraint, plan = constrain(constraint, plan)
    outputs = None if constraint is None else await structured.check(context.engine, constraint)
    job = _make_job(context, body, ids, num_top, arrival, plan, outputs)
    return ChatRun(context, body, model, job, plan)


async def encode_conversation(
    context: ServerContext,
    body: TemplateFields,
    tools: list[dict[str, Any]] | None,
    *,
    to_be_cut: bool = False,
) -> list[int]:
    """Token ids of the rendered conversation.  The template writes BOS itself where the model has one."""
    kwargs = dict(template_kwargs(body))
    effort = getattr(body, "reasoning_effort", None)
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
    add_generation_prompt = body.add_generation_prompt is not False
    if body.continue_final_message:
        check_continuation(body)
        add_generation_prompt = False
        kwargs["continue_final_message"] = True
    return await context.text.encode_chat(
        conversation(body.messages), tools, add_generation_prompt, kwargs, to_be_cut=to_be_cut
    )


async def answer_start(context: ServerContext, body: ChatCompletionRequest, ids: list[int]) -> Start | None:
    """Where the answer begins as to reasoning; None when the model does none or it is not told apart."""
    if not context.formats.thinking:
        return None
    if body.continue_final_message:
        return start_behind_prefill(conversation(body.messages[-1:])[0]["content"])
    return start_behind_prompt(await context.text.decode(ids[-TAIL_TOKENS:], False))


def num_top_logprobs(body: ChatCompletionRequest) -> int | None:
    """SamplingParams.logprobs for the request: None without logprobs, 0 without alternatives."""
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= 20:
        raise bad_request(
            f"top_logprobs must be from 0 to 20, got {shorten(body.top_logprobs)}", "top_logprobs"
        )
    return (body.top_logprobs or 0) if body.logprobs else None


def _make_job(
    context: ServerContext,
    body: ChatCompletionRequest,
    ids: list[int],
    num_top: int | None,
    arrival: float,
    plan: AnswerPlan,
    structured_outputs: StructuredOutputsParams | None,
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
        structured_outputs=structured_outputs,
        shown_special_token_ids=plan.shown_token_ids,
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
class ChatRun:
    """One conversation being answered: state of its choices, and its usage so far.

    ``prompt_entries``: log-probabilities of the prompt, once they have come.
    """

    context: ServerContext
    body: ChatCompletionRequest
    model: str
    job: Job
    plan: AnswerPlan
    prompt_entries: list[TokenLogprobs | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.created = int(time.time())
        self.choices: list[Choice] = make_choices([self.job], self.context.names)[0]
        self.usage = UsageCounter([len(self.job.prompt_token_ids)])
        self._parsers = [self.plan.parser() for _ in self.choices]

    def start(self) -> OutputStream:
        """Run it.  The caller closes the stream."""
        return OutputStream(self.context.engine, [self.job], self.context.metrics)

    async def deltas(self, outputs: OutputStream) -> AsyncIterator[list[ChatDelta]]:
        """What each output adds, per choice; joined they are the answer."""
        async for _, output in outputs:
            yield self.advance(output)

    async def whole(self, outputs: OutputStream) -> list[ChatDelta]:
        """The answers of all choices once everything has finished; closes ``outputs``."""
        parts: list[list[ChatDelta]] = [[] for _ in self.choices]
        try:
            async for deltas in self.deltas(outputs):
                for delta in deltas:
                    parts[delta.index].append(delta)
        finally:
            await outputs.aclose()
        return [ChatDelta.joined(deltas) for deltas in parts]

    def advance(self, output: RequestOutput) -> list[ChatDelta]:
        """Take one output of the engine."""
        if output.prompt_logprobs is not None:
            self.prompt_entries = list(output.prompt_logprobs)
        deltas = []
        for sample in output.outputs:
            self.usage.add(0, len(sample.token_ids), output.num_cached_tokens)
            deltas.append(self._delta(self.choices[sample.index], sample))
        return deltas

    def _delta(self, choice: Choice, sample: CompletionOutput) -> ChatDelta:
        part = choice.add(sample)
        delta = ChatDelta(choice.index, content=part.text, tokens=part.tokens, token_ids=part.token_ids)
        parser = self._parsers[choice.index]
        final = part.finish_reason is not None
        if parser is not None and (part.text or final):
            parsed = parser.push(part.text, final=final)
            delta.content, delta.reasoning = parsed.content, parsed.reasoning
            delta.tool_calls = parsed.tool_calls
        if final:
            delta.finish_reason = choice.finish_reason = self._finish_reason(part.finish_reason, parser)
            delta.stop_reason = choice.stop_reason
            delta.metrics = choice.metrics
        return delta

    def _finish_reason(self, reason: str | None, parser: AnswerParser | None) -> str | None:
        """As OpenAI has it: an answer that ends with calls says so, unless the caller named the function.
        One that was cut inside of a call does not."""
        called = parser is not None and parser.complete and self.plan.tools.mode in ("auto", "required")
        return "tool_calls" if called and reason == "stop" else reason
