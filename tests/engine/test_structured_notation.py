"""What is done to a grammar before the library sees it, and what is refused since it would get lost."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models_fixtures import smollm2_path

from inferx import LLM, SamplingParams
from inferx.engine.structured.grammar import source_of
from inferx.engine.structured.regex import ascii_classes, ascii_patterns
from inferx.errors import ContradictionError, InvalidRequestError
from inferx.structured_outputs import StructuredOutputsParams

PIECES = st.sampled_from(
    [r"\d", r"\w", r"\D", r"\W", r"\\d", r"\.", "a", "[ab]", r"[\d-]", r"[^\w]", r"[\\d]", "(?:x)"]
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(str(smollm2_path()), num_blocks=256, num_threads=1)


def answer(llm: LLM, max_tokens: int = 30, **constraint: object) -> str:
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, structured_outputs=StructuredOutputsParams(**constraint)
    )
    output = llm.generate("x", params)[0].outputs[0]
    assert output.finish_reason == "stop"
    return output.text


class TestClassesAreAscii:
    @given(st.lists(PIECES, min_size=1, max_size=6), st.text("ab1_-.\\dx ٣é", max_size=8))
    def test_as_pythons_ascii_mode(self, pieces: list[str], text: str) -> None:
        regex = "".join(pieces)
        ours = re.fullmatch(ascii_classes(regex), text)
        assert (ours is None) == (re.fullmatch(regex, text, re.ASCII) is None)

    def test_patterns_of_a_schema(self) -> None:
        schema = {
            "properties": {"pattern": {"type": "string", "pattern": r"\d"}},
            "patternProperties": {r"^\w$": {"const": {"pattern": r"\d"}}},
            "enum": [{"pattern": r"\d"}],
        }
        assert ascii_patterns(schema) == {
            "properties": {"pattern": {"type": "string", "pattern": "[0-9]"}},
            "patternProperties": {"^[0-9A-Za-z_]$": {"const": {"pattern": r"\d"}}},
            "enum": [{"pattern": r"\d"}],
        }

    def test_on_the_model(self, llm: LLM) -> None:
        assert re.fullmatch("[0-9]{4}", answer(llm, regex=r"\d{4}"))
        text = answer(llm, json={"type": "string", "pattern": r"^\d{3}-\w{2}$"})
        assert re.fullmatch('"[0-9]{3}-[0-9A-Za-z_]{2}"', text)

    def test_in_structural_tags_too(self, llm: LLM) -> None:
        digits = {"type": "string", "pattern": r"^\d{3}$"}
        vocabulary = llm.engine.core.make_vocabulary()
        overlapping = {"oneOf": [digits, {"type": "string", "maxLength": 3}]}
        for content, wanted in (
            ({"type": "regex", "pattern": r"\d{4}"}, "<[0-9]{4}>"),
            (
                {"type": "json_schema", "json_schema": digits},
                '<"[0-9]{3}">',
            ),
            ({"type": "json_schema", "json_schema": overlapping}, '<".{0,3}">'),
        ):
            tag = {"type": "tag", "begin": "<", "content": content, "end": ">"}
            params = StructuredOutputsParams(
                structural_tag=json.dumps({"type": "structural_tag", "format": tag})
            )
            # Which digits a model prefers says little; so what the library gets to see.
            assert r"\d" not in source_of(params, vocabulary).text.replace("\\\\", "\\")
            text = answer(llm, structural_tag=params.structural_tag)
            assert re.fullmatch(wanted, text)


class TestEbnf:
    def test_numeric_escapes(self, llm: LLM) -> None:
        assert answer(llm, grammar=r'root ::= "\x41\u00e9\U0001F389" [\u00e8-\u00e8]') == "Aé🎉è"

    def test_a_rule_that_is_there_twice(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequestError, match="the rule 'root' twice"):
            answer(llm, grammar='root ::= "a"\nroot ::= "b"')

    def test_larks_rule_options_are_not_taken_for_gbnf(self, llm: LLM) -> None:
        assert answer(llm, grammar='?start: "ab"') == "ab"

    def test_many_choices(self, llm: LLM) -> None:
        assert answer(llm, choice=[f"{i:05}" for i in range(10_000)]) in {f"{i:05}" for i in range(10_000)}


class TestWhatWouldBeRounded:
    @pytest.mark.parametrize(
        "schema",
        [
            {"const": 2**53 + 1},
            {"enum": [1, -(2**53) - 1]},
            {"type": "integer", "minimum": 10**30, "maximum": 10**30 + 5},
        ],
    )
    def test_is_refused(self, llm: LLM, schema: dict[str, object]) -> None:
        with pytest.raises(InvalidRequestError, match="too large to be held exactly"):
            answer(llm, json=schema)

    def test_bounds_of_64_bits_are_fine(self, llm: LLM) -> None:
        schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
        assert 0 <= int(answer(llm, 40, json=schema)) < 2**63

    def test_the_librarys_own_options_are_not_for_callers(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequestError, match="x-guidance"):
            answer(llm, json={"const": [1, 2], "x-guidance": {"item_separator": ";"}})


def test_a_grammar_whose_cost_grows_with_the_answer_ends(llm: LLM) -> None:
    """It passes its trial; then every token takes longer than the one before."""
    grammar = "start: e\ne: /[a-z]/ | e e | e e e | e e e e"
    params = SamplingParams(
        temperature=0.9, seed=0, max_tokens=250, structured_outputs=StructuredOutputsParams(grammar=grammar)
    )
    with pytest.raises(ContradictionError, match="the grammar cannot go on"):
        llm.generate("x", params)
    assert llm.generate("x", SamplingParams(temperature=0, max_tokens=4))[0].finished
