"""Body of ``POST /v1/responses``.

Fields follow OpenAI's API; those it does not have and the chat endpoint does (``seed``, ``stop``, ``top_k``,
...) are handed to the chat request as they are.  What this server cannot do is refused by name: ignoring it
would answer 200 with something else than was asked for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inferx.server import limits_table as limits
from inferx.server.chat_extensions import ChatExtensions
from inferx.server.errors import bad_request, shorten
from inferx.server.unsupported_fields import refuse_given

# Field -> what to do instead.
REFUSED_FIELDS = {
    "conversation": "use previous_response_id",
    "prompt": "prompt templates are not kept here; send the text as input",
    "context_management": "send a shorter input, or truncation='auto'",
    "moderation": "there is no moderation",
}
# Additions to the answer that may be asked for; those about tools that do not exist here add nothing.
INCLUDABLE = frozenset(
    (
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class TextConfig(_Strict):
    """``text``.  verbosity is a hint that no model here takes; it is echoed."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(_Strict):
    """``reasoning``.  summary is echoed: the reasoning itself is in the answer."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(_Strict):
    include_obfuscation: bool | None = None  # padding against size analysis; never sent


class ResponsesRequest(ChatExtensions):
    """``/v1/responses``."""

    input: Any = None  # str | list of items; see convert.py
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1, max_length=limits.LABEL_CHARS.most)
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None  # counts calls of built-in tools, of which there are none
    tools: Annotated[list[Any], Field(max_length=limits.TOOLS.most, fail_fast=True)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: list[str] | None = Field(default=None, max_length=len(INCLUDABLE))
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = Field(default=None, max_length=limits.LABEL_CHARS.most)
    safety_identifier: str | None = Field(default=None, max_length=limits.LABEL_CHARS.most)
    prompt_cache_key: str | None = Field(default=None, max_length=limits.LABEL_CHARS.most)
    service_tier: str | None = Field(default=None, max_length=limits.LABEL_CHARS.most)
    stop: Any = None  # not in OpenAI's Responses API; the chat request checks it

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        refuse_given(REFUSED_FIELDS, data)
        return data

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def with_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    def check(self) -> None:
        """ApiError for values that types cannot express and for fields that exclude each other."""
        self._check_metadata()
        for i, name in enumerate(self.include or ()):
            if name not in INCLUDABLE:
                raise bad_request(f"include[{i}]: unknown value {shorten(name)}", f"include[{i}]")
        if self.top_logprobs and not self.with_logprobs:
            raise bad_request("top_logprobs needs include=['message.output_text.logprobs']", "top_logprobs")
        if self.background and not self.stored:
            raise bad_request("background needs store=true: there would be nothing to fetch", "background")
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream=true", "stream_options")

    def _check_metadata(self) -> None:
        entries = self.metadata or {}
        limits.METADATA.check(len(entries), "metadata")
        for key, value in entries.items():
            limits.METADATA_KEY_CHARS.check(len(key), "metadata (a key)")
            limits.METADATA_VALUE_CHARS.check(len(value), f"metadata.{key}")
