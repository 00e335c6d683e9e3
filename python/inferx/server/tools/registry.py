"""The formats by name, and which one a chat template speaks."""

from __future__ import annotations

from inferx.server.tools.hermes import HermesParser
from inferx.server.tools.llama3 import Llama3Parser
from inferx.server.tools.mistral import MistralParser
from inferx.server.tools.parser import ToolParser

# Every mark that a parser looks for: where it is a special token, it must show in the text.
MARKS: dict[str, tuple[str, ...]] = {
    "hermes": (*HermesParser.starts, *HermesParser.other_marks),
    "llama3": Llama3Parser.starts,
    "mistral": (*MistralParser.starts, *MistralParser.other_marks),
}
FORMATS = tuple(MARKS)


def make_parser(name: str, functions: frozenset[str], hidden: frozenset[str]) -> ToolParser:
    """A parser for one answer.  functions: those the request offers.  hidden: marks that are special tokens
    and must not show in content."""
    if name == "hermes":
        return HermesParser(hidden)
    if name == "llama3":
        return Llama3Parser(functions, hidden)
    return MistralParser(hidden)


def detect_format(template: str) -> str | None:
    """The format that a chat template tells its model to use; None when it knows of none."""
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in template):
        return "llama3"
    return None
