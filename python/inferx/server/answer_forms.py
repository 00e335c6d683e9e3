"""What the whole output of a chat must look like: the request's own constraint, calls that it demands, and
the reasoning that may come first."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from inferx.server import structured
from inferx.server.answers import AnswerPlan
from inferx.server.errors import bad_request
from inferx.server.reasoning import CLOSE, OPEN
from inferx.server.structured import Constraint
from inferx.server.tools.forms import (
    answer_or_call_format,
    arguments_schema,
    calls_schema,
    strict_format,
)
from inferx.structured_outputs import StructuredOutputsParams

_ANY_TEXT = {"type": "any_text"}
_SPACE = {"type": "regex", "pattern": "[ \\n]{0,4}"}


def constrain(constraint: Constraint | None, plan: AnswerPlan) -> tuple[Constraint | None, AnswerPlan]:
    """The constraint on all of the output, and how it is read then; ApiError for two that exclude each other.

    Reasoning comes before what is constrained.  A grammar or structural tag of the caller's own describes all
    of the output: it holds from the first token.
    """
    mode = plan.tools.mode
    if mode in ("named", "required"):
        if constraint is not None:
            raise bad_request(
                f"{constraint.param} cannot be combined with a tool_choice that demands calls",
                constraint.param,
            )
        constraint = _demanded(plan)
    elif mode == "auto":
        constraint = _with_calls(constraint, plan)
    if constraint is None or plan.start in (None, "closed"):
        return constraint, plan
    if constraint.whole:
        # Inside a block that the template has opened, what holds from the first token would be reasoning.
        return constraint, replace(plan, start="closed") if plan.start == "open" else plan
    return _behind_reasoning(constraint, plan.start == "open"), plan


def _demanded(plan: AnswerPlan) -> Constraint:
    """Calls in one form for all models, since grammars can force that one."""
    if plan.tools.mode == "required":
        schema = calls_schema(plan.tools)
    else:
        assert plan.tools.function is not None
        schema = arguments_schema(plan.tools.functions[plan.tools.function])
    found = Constraint(StructuredOutputsParams(json=schema), "tools", _arguments(plan))
    structured.validate(found)
    return found


def _arguments(plan: AnswerPlan) -> tuple[Constraint, ...]:
    """A constraint per function, so that an error names the one whose schema is wrong."""
    return tuple(
        Constraint(
            StructuredOutputsParams(json=arguments_schema(function)), f"{plan.tools.places[name]}.parameters"
        )
        for name, function in plan.tools.functions.items()
    )


def _with_calls(constraint: Constraint | None, plan: AnswerPlan) -> Constraint | None:
    """Calls that the model may make: strict ones follow their schema; beside a form for answers they are the
    other thing that it may write."""
    form = plan.formats.tool_format
    if form is None or (constraint is not None and constraint.whole):
        return constraint
    if constraint is None:
        value = strict_format(plan.tools, form) if plan.tools.strict else None
        return None if value is None else Constraint(structured.from_format(value), "tools", _arguments(plan))
    either = answer_or_call_format(structured.as_format(constraint.params), plan.tools, form)
    return _formatted(constraint, either, (constraint, *_arguments(plan)))


def _formatted(constraint: Constraint, value: dict[str, Any], parts: tuple[Constraint, ...]) -> Constraint:
    params = structured.from_format(value, compact=constraint.params.disable_any_whitespace)
    return Constraint(params, constraint.param, parts)


def _behind_reasoning(constraint: Constraint, is_open: bool) -> Constraint:
    """A block of reasoning first: the template has opened it, or the model may."""
    params = constraint.params
    if params.kind == "structural_tag":
        answer = json.loads(params.structural_tag or "")["format"]
    else:
        answer = structured.as_format(params)
    block = {"type": "tag", "begin": "" if is_open else OPEN, "content": _ANY_TEXT, "end": CLOSE}
    behind: dict[str, Any] = {"type": "sequence", "elements": [block, _SPACE, answer]}
    if not is_open:
        behind = {"type": "or", "elements": [behind, answer]}
    return _formatted(constraint, behind, constraint.parts or (constraint,))
