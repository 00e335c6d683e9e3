"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``.

Fields follow Anthropic's API.  What this server cannot do is refused by name: ignoring it would answer 200
with something else than was asked for.  What is there to save cost (cache_control, context_management,
service_tier, ...) has no effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inferx.server import limits_table as limits
from inferx.server.chat_extensions import ChatExtensions
from inferx.server.unsupported_fields import refuse_given

# Field -> what to do instead.
REFUSED_FIELDS = {
    "container": "there is no code execution",
    "mcp_servers": "call the servers yourself and offer their tools as tools",
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class InputMessage(_Strict):
    role: Literal["user", "assistant", "system"]
    content: Any = None  # str | list of blocks; see convert.py


class Thinking(_Strict):
    """``thinking``.  budget_tokens is taken as the hint it is for a model; display='omitted' leaves the
    text of the thinking out of the answer."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(default=None, ge=1)
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(_Strict):
    format: dict[str, Any] | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Conversation(ChatExtensions):
    """What the prompt is made of: the body of ``/v1/messages/count_tokens``."""

    messages: Annotated[
        list[InputMessage], Field(min_length=1, max_length=limits.MESSAGES.most, fail_fast=True)
    ]
    system: Any = None  # str | list of text blocks
    tools: Annotated[list[Any], Field(max_length=limits.TOOLS.most, fail_fast=True)] | None = None
    tool_choice: Any = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Without effect here; named so that they do not count as unknown.
    cache_control: Any = None
    context_management: Any = None  # leaves parts of the conversation out, to save tokens
    speed: Any = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        refuse_given(REFUSED_FIELDS, data)
        return data

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"


class MessagesRequest(Conversation):
    """``/v1/messages``."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    diagnostics: Any = None
    inference_geo: Any = None
