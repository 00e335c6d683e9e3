"""What the whole output of a chat must look like: the request's own constraint, calls that it demands, and
the reasoning that may come first."""

from __future__ import annotations

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

    Reasoning comes before what is constrained.  A grammar of the caller's own cannot be put behind something
    else: it holds from the first token, and there is no reasoning.
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
    if constraint is None or plan.start is None:
        return constraint, plan
    return _behind_reasoning(constraint, plan)


def _demanded(plan: AnswerPlan) -> Constraint:
    """Calls in one form for all models, since grammars can force that one."""
    if plan.tools.mode == "required":
        schema = calls_schema(plan.tools)
    else:
        assert plan.tools.functions is not None
        assert plan.tools.function is not None
        schema = arguments_schema(plan.tools.functions[plan.tools.function])
    found = Constraint(StructuredOutputsParams(json=schema), "tools")
    structured.validate(found)
    return found


def _with_calls(constraint: Constraint | None, plan: AnswerPlan) -> Constraint | None:
    """Calls that the model may make: strict ones follow their schema; beside a form for answers they are the
    other thing that it may write."""
    form = plan.formats.tool_format
    if form is None:
        return constraint
    if constraint is None:
        value = strict_format(plan.tools, form) if plan.tools.strict else None
        return None if value is None else Constraint(structured.from_format(value), "tools")
    answer = structured.as_format(constraint.params)
    if answer is None:
        raise bad_request(
            f"{constraint.param}: this constraint cannot be combined with tools; use tool_choice 'none'",
            constraint.param,
        )
    either = answer_or_call_format(answer, plan.tools, form)
    return _formatted(constraint, either)


def _formatted(constraint: Constraint, value: dict[str, Any]) -> Constraint:
    params = structured.from_format(value, compact=constraint.params.disable_any_whitespace)
    return Constraint(params, constraint.param)


def _behind_reasoning(constraint: Constraint, plan: AnswerPlan) -> tuple[Constraint, AnswerPlan]:
    if plan.start == "closed":
        return constraint, plan
    answer = structured.as_format(constraint.params)
    if answer is None:
        return constraint, replace(plan, start="closed")
    block = {"type": "tag", "begin": "" if plan.start == "open" else OPEN, "content": _ANY_TEXT, "end": CLOSE}
    behind: dict[str, Any] = {"type": "sequence", "elements": [block, _SPACE, answer]}
    if plan.start == "possible":
        behind = {"type": "or", "elements": [behind, answer]}
    return _formatted(constraint, behind), plan
