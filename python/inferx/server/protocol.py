"""Request bodies.  Fields follow OpenAI's API and, beyond it, vLLM's.

Unknown fields are ignored: SDKs and proxies add them freely.  Types are strict ("5" is not a number), and
``null`` means "not given" everywhere, as OpenAI has it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from inferx.engine.protocol import BACKGROUND_PRIORITY
from inferx.server import limits_table as limits
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.unknown_fields import unknown_fields
from inferx.server.unsupported_fields import MISNAMED, UNSUPPORTED, refuse

StopTokenIds = Annotated[list[int], Field(max_length=limits.STOP_TOKEN_IDS.most, fail_fast=True)]
TokenIds = Annotated[list[int], Field(max_length=limits.TOKEN_IDS.most, fail_fast=True)]
StopStrings = Annotated[list[str], Field(max_length=limits.STOP.most, fail_fast=True)]
BadWords = Annotated[list[str], Field(max_length=limits.BAD_WORDS.most, fail_fast=True)]


class RequestModel(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    # Ignoring one of these would answer 200 with something that breaks a promise.
    unsupported: ClassVar[Mapping[str, str]] = UNSUPPORTED

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        refuse(cls.unsupported, data)
        return data


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(RequestModel):
    """What both generating endpoints share."""

    unsupported: ClassVar[Mapping[str, str]] = {**UNSUPPORTED, **MISNAMED, "use_beam_search": ""}

    n: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=limits.LOGIT_BIAS.most)] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: BadWords | None = None
    seed: int | None = None
    stop: StopStrings | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = Field(default=None, ge=-(2**31), lt=BACKGROUND_PRIORITY)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=limits.CACHE_SALT_CHARS.most)
    return_token_ids: bool | None = None
    # What the output must look like; see structured.py.
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: bool | None = None
    structural_tag: Any = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Every chunk says how many tokens there were so far; only beside ``include_usage``."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check_options(self) -> None:
        """ApiError for options that do not go together, or only with (or without) streaming."""
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise bad_request("best_of is not supported; ask for n choices and take the best", "best_of")
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream=true", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise bad_request("prompt_logprobs is not available with stream=true", "prompt_logprobs")


class CompletionRequest(GenerationFields):
    """``/v1/completions``."""

    prompt: Any = None  # str | list[str] | list[int] | list[list[int]]; see prompts.split_prompts
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    # The role goes into the prompt as it stands, so it may not carry control tokens.
    role: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")
    content: Any = None  # str | list of parts | None; see messages.py
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same by its newer name


class TemplateFields(RequestModel):
    """What rendering a conversation needs; also the chat form of ``/tokenize``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=limits.MESSAGES.most, fail_fast=True)]
    tools: Annotated[list[dict[str, Any]], Field(max_length=limits.TOOLS.most, fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_templates(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("chat_template") is not None:
            raise bad_request("chat_template cannot be set per request", "chat_template")
        return data


class ChatCompletionRequest(GenerationFields, TemplateFields):
    """``/v1/chat/completions``."""

    unsupported: ClassVar[Mapping[str, str]] = {
        **GenerationFields.unsupported,
        "echo": " in conversations; /v1/completions has it",
    }

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(default=None, max_length=limits.ROLE_CHARS.most)
    functions: Any = None
    function_call: Any = None


class TokenizeRequest(RequestModel):
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(TemplateFields):
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    tokens: TokenIds
    skip_special_tokens: bool | None = None


Model = TypeVar("Model", bound=BaseModel)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``; ApiError for anything else.  Nesting is bounded by the parser, the number
    of values here: what parsing makes of them takes the event loop's time."""
    limits.JSON_VALUES.check(sum(body.count(mark) for mark in b"[{,:"), "the request body")
    try:
        # Collecting garbage while a hundred thousand objects are made takes ten times as long.
        with _no_garbage_collection():
            value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        # The parser's message names the place and holds none of the caller's bytes.
        raise bad_request(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise bad_request(f"the request body must be a JSON object, got {kind}", code="invalid_json")
    return value


def parse_request(model: type[Model], data: dict[str, Any]) -> Model:
    """``data`` as ``model``; ApiError naming the first field that is wrong."""
    unknown_fields.observe(model, data)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _validation_error(error) from None


def _validation_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = first["msg"]
    if first["type"] == "missing":
        message = "required"
    elif not isinstance(first["input"], dict):
        message += f", got {shorten(first['input'])}"
    return bad_request(f"{path}: {message}" if path else message, path or None)
