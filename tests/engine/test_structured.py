"""Structured output on the real SmolLM2: every constraint is obeyed, and nobody else notices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from inferx import LLM, SamplingParams
from inferx.errors import InvalidRequestError, RequestFailedError
from inferx.outputs import CompletionOutput
from inferx.structured_outputs import StructuredOutputsParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "city": {"enum": ["Paris", "London", "São Paulo"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,5}$"}, "maxItems": 2},
        "owner": {"type": ["boolean", "null"]},
    },
    "required": ["name", "age", "city", "tags", "owner"],
    "additionalProperties": False,
}
EMOJI = "😀歪é👨‍👩‍👧"
DATE = r"(19|20)\d{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
LARK = """
start: sum
sum: product (("+" | "-") product)~0..3
product: NUMBER (("*" | "/") NUMBER)~0..2
NUMBER: /[1-9][0-9]?/
"""
GBNF = 'root ::= "move " [a-h] [1-8] ("-" | "x") [a-h] [1-8] check?\ncheck ::= "+" | "#"\n'


def tags(**format: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(structural_tag=json.dumps({"type": "structural_tag", "format": format}))


CALL = {
    "type": "tag",
    "begin": '<call name="person">',
    "content": {"type": "json_schema", "json_schema": PERSON},
    "end": "</call>",
}


def is_person(text: str) -> bool:
    return bool(jsonschema_rs.is_valid(PERSON, json.loads(text)))


def is_compact_person(text: str) -> bool:
    return is_person(text) and text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def is_call(text: str) -> bool:
    match = re.fullmatch(r'(?s).*?<call name="person">(.*)</call>', text)
    return match is not None and is_person(match.group(1))


def one_of(*texts: str) -> Callable[[str], bool]:
    return texts.__contains__


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


# Name: the constraint, and whether a whole answer obeys it; the latter knows nothing of grammars.
CASES: dict[str, tuple[StructuredOutputsParams, Callable[[str], bool]]] = {
    "json": (StructuredOutputsParams(json=PERSON), is_person),
    "json as text": (StructuredOutputsParams(json=json.dumps(PERSON)), is_person),
    "json compact": (StructuredOutputsParams(json=PERSON, disable_any_whitespace=True), is_compact_person),
    "json const": (
        StructuredOutputsParams(json={"const": {"x": EMOJI}}),
        lambda t: json.loads(t)["x"] == EMOJI,
    ),
    "regex": (StructuredOutputsParams(regex=DATE), matches(DATE)),
    "regex unicode": (
        StructuredOutputsParams(regex="[а-яё]{3,9} → [α-ω]{1,3}x"),
        matches("[а-яё]{3,9} → [α-ω]{1,3}x"),
    ),
    "choice": (
        StructuredOutputsParams(choice=["yes", "no", "yes and no"]),
        one_of("yes", "no", "yes and no"),
    ),
    "choice emoji": (StructuredOutputsParams(choice=[EMOJI]), one_of(EMOJI)),
    "choice control": (StructuredOutputsParams(choice=['a"\\\n\t/b']), one_of('a"\\\n\t/b')),
    "lark": (StructuredOutputsParams(grammar=LARK), lambda text: isinstance(eval(text), (int, float))),
    "gbnf": (StructuredOutputsParams(grammar=GBNF), matches("move [a-h][1-8][-x][a-h][1-8][+#]?")),
    "tag": (tags(**CALL), is_call),
    "tag sequence": (
        tags(
            type="sequence",
            elements=[
                {
                    "type": "tag",
                    "begin": "<b>",
                    "content": {"type": "regex", "pattern": "[a-z/]{1,9}"},
                    "end": "</b>",
                },
                {"type": "or", "elements": [{"type": "const_string", "value": w} for w in ("!", "?")]},
            ],
        ),
        matches("<b>[a-z/]{1,9}</b>[!?]"),
    ),
}
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "random": {"temperature": 1.0, "seed": 7},
    "hot": {"temperature": 1.7, "top_p": 0.95, "seed": 3},
}
PROMPT = "Tell me about Bob:"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m-instruct", num_blocks=1024)


@pytest.fixture(scope="module")
def plodding() -> LLM:
    """Samples every token."""
    return LLM("smollm2-135m-instruct", num_blocks=1024, enable_jump_ahead=False)


def ask(
    llm: LLM, structured: StructuredOutputsParams | None, prompt: str = PROMPT, **options: Any
) -> CompletionOutput:
    params = SamplingParams(**{"max_tokens": 200, "structured_outputs": structured, **options})
    return llm.generate(prompt, params)[0].outputs[0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CASES)
def test_the_answer_obeys_and_is_the_same_with_every_token_sampled(
    llm: LLM, plodding: LLM, name: str, sampling: str
) -> None:
    structured, obeys = CASES[name]
    options = SAMPLINGS[sampling]
    answer = ask(llm, structured, **options)
    assert answer.finish_reason == "stop", answer.text
    assert answer.stop_reason is None
    assert obeys(answer.text), answer.text
    assert "\ufffd" not in answer.text
    slow = ask(plodding, structured, **options)
    assert (slow.text, slow.token_ids, slow.finish_reason) == (answer.text, answer.token_ids, "stop")
    # Every token is counted and all of them spell the answer.
    assert llm.get_tokenizer().decode(answer.token_ids) == answer.text


def test_json_object(llm: LLM) -> None:
    for seed in range(3):
        answer = ask(llm, StructuredOutputsParams(json_object=True), "A JSON object about Paris:", seed=seed)
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(answer.text), dict)
        else:
            assert answer.text.lstrip().startswith("{")


def test_jumping_saves_steps(llm: LLM, plodding: LLM) -> None:
    steps = []
    for engine in (llm, plodding):
        before = engine.engine.stats().num_steps
        ask(engine, StructuredOutputsParams(json=PERSON, disable_any_whitespace=True), temperature=0)
        steps.append(engine.engine.stats().num_steps - before)
    assert steps[0] < steps[1] * 0.8


def test_logprobs_are_those_of_the_model(llm: LLM, plodding: LLM) -> None:
    """Of every token, forced ones too; asking for them changes no token."""
    structured = StructuredOutputsParams(choice=["The capital of France is Paris."])
    answers = [ask(engine, structured, logprobs=2, temperature=0) for engine in (llm, plodding)]
    tokens = ask(llm, structured, temperature=0).token_ids
    prompt = llm.get_tokenizer().encode(PROMPT)
    scored = llm.generate(
        {"prompt_token_ids": [*prompt, *tokens]}, SamplingParams(max_tokens=1, prompt_logprobs=2)
    )[0].prompt_logprobs
    assert scored is not None
    for answer in answers:
        assert answer.token_ids == tokens
        assert answer.logprobs is not None
        assert len(answer.logprobs) == len(tokens)
        for position, expected in zip(answer.logprobs, scored[len(prompt) :], strict=True):
            assert expected is not None
            assert position.token_ids == expected.token_ids
            assert position.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_streams_concatenate(llm: LLM) -> None:
    for structured, obeys in (CASES["json"], CASES["choice emoji"]):
        params = SamplingParams(temperature=0, max_tokens=200, structured_outputs=structured)
        whole = llm.generate(PROMPT, params)[0].outputs[0]
        deltas = [d.outputs[0] for d in llm.stream(PROMPT, params)]
        assert "".join(d.text for d in deltas) == whole.text
        assert [t for d in deltas for t in d.token_ids] == whole.token_ids
        assert not any("\ufffd" in d.text for d in deltas)
        assert obeys(whole.text)


def test_every_length_cuts_the_same_answer(llm: LLM) -> None:
    structured = StructuredOutputsParams(choice=["one two three four five six seven eight"])
    whole = ask(llm, structured).token_ids
    for n in range(1, len(whole) + 2):
        cut = ask(llm, structured, max_tokens=n)
        assert cut.token_ids == whole[:n]
        # Complete exactly at the limit is complete.
        assert cut.finish_reason == ("length" if n < len(whole) else "stop")


def test_stop_strings_and_stop_tokens_end_inside_what_is_forced(llm: LLM) -> None:
    text = "one two three four five six seven eight"
    structured = StructuredOutputsParams(choice=[text])
    answer = ask(llm, structured, stop=["four f"])
    assert (answer.text, answer.stop_reason) == ("one two three ", "four f")
    (token,) = llm.get_tokenizer().encode(" four")
    answer = ask(llm, structured, stop_token_ids=[token])
    assert (answer.text, answer.stop_reason, answer.token_ids[-1]) == ("one two three", token, token)
    later = ask(llm, structured, stop=["four f"], min_tokens=30)
    assert (later.text, later.finish_reason) == (text, "stop")


def test_samples_go_their_own_ways(llm: LLM, plodding: LLM) -> None:
    structured = StructuredOutputsParams(json=PERSON)
    params = SamplingParams(n=4, temperature=1.2, seed=5, max_tokens=200, structured_outputs=structured)
    outputs = llm.generate(PROMPT, params)[0].outputs
    assert len({o.text for o in outputs}) > 1
    assert all(o.finish_reason == "stop" and is_person(o.text) for o in outputs)
    slow = plodding.generate(PROMPT, params)[0].outputs
    assert [o.token_ids for o in slow] == [o.token_ids for o in outputs]


# ---- what complete means, and contradictions


@pytest.mark.parametrize("name", ["json const", "regex", "choice"])
@pytest.mark.parametrize("options", [{"min_tokens": 64}, {"ignore_eos": True}])
def test_a_complete_answer_ends(llm: LLM, name: str, options: dict[str, Any]) -> None:
    structured, obeys = CASES[name]
    answer = ask(llm, structured, temperature=0, **options)
    assert answer.finish_reason == "stop"
    assert obeys(answer.text)
    assert answer.token_ids == ask(llm, structured, temperature=0).token_ids


def test_ignore_eos_goes_on_where_the_grammar_does(llm: LLM) -> None:
    structured = StructuredOutputsParams(regex="[a-z ]+")
    assert ask(llm, structured, ignore_eos=True, max_tokens=40).finish_reason == "length"
    structured = StructuredOutputsParams(regex="[a-z ]{1,30}")
    answer = ask(llm, structured, ignore_eos=True, max_tokens=100)
    assert (len(answer.text), answer.finish_reason) == (30, "stop")
    at_least = ask(llm, StructuredOutputsParams(regex="(a b )*"), min_tokens=12, temperature=0, max_tokens=40)
    assert len(at_least.token_ids) >= 12


def test_contradictions_end_in_an_error(llm: LLM) -> None:
    """C11x: a legal token or none, never a foreign one; and the engine goes on."""
    choice = StructuredOutputsParams(choice=["red", "blue"])
    tokenizer = llm.get_tokenizer()
    both = [tokenizer.encode(w)[0] for w in ("red", "blue")]
    spelling = [
        t
        for t in range(tokenizer.vocab_size)
        if any(tokenizer.token_bytes(t) == w[:n] for w in (b"red", b"blue") for n in range(1, 5))
    ]
    elsewhere = tokenizer.encode("xyz")
    for options in (
        {"logit_bias": dict.fromkeys(spelling, -100.0)},
        {"allowed_token_ids": elsewhere},
        {"logit_bias": dict.fromkeys(both, -100.0), "allowed_token_ids": both},
        {"bad_words": ["r", "b", "re", "red", "bl", "blue", "blu"]},
    ):
        with pytest.raises(RequestFailedError, match="no legal token is left"):
            ask(llm, choice, **options)
    only = ask(llm, choice, logit_bias={both[0]: -100.0}, allowed_token_ids=[*both], temperature=0)
    assert only.text == "blue"
    assert ask(llm, choice).text in ("red", "blue")


# ---- invalid ones


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutputsParams(),
        StructuredOutputsParams(regex="a", choice=["a"]),
        StructuredOutputsParams(regex="(a"),
        StructuredOutputsParams(regex="(?=a)a"),
        StructuredOutputsParams(choice=[]),
        StructuredOutputsParams(choice=["a", 3]),  # type: ignore[list-item]
        StructuredOutputsParams(json="{"),
        StructuredOutputsParams(json={"type": "strin"}),
        StructuredOutputsParams(json=False),
        StructuredOutputsParams(json={"$ref": "#"}),
        StructuredOutputsParams(json={"$ref": "http://example.com/x"}),
        StructuredOutputsParams(grammar="start: missing"),
        StructuredOutputsParams(grammar="root ::= missing"),
        StructuredOutputsParams(grammar="nonsense"),
        StructuredOutputsParams(structural_tag="[]"),
        StructuredOutputsParams(structural_tag='{"structures": [{"begin": "a"}], "triggers": ["b"]}'),
        StructuredOutputsParams(structural_tag='{"format": {"type": "nonsense"}}'),
        StructuredOutputsParams(structural_tag='{"format": {"type": "__init__"}}'),
    ],
)
def test_invalid_constraints_are_refused_before_the_engine(
    llm: LLM, structured: StructuredOutputsParams
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(llm, structured)
    assert caught.value.param == "structured_outputs"
    assert len(str(caught.value)) < 500
    assert not llm.engine.has_work


def test_not_structured_outputs_at_all(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs must be StructuredOutputsParams"):
        ask(llm, {"regex": "a"})  # type: ignore[arg-type]


# ---- company


def test_neighbours_do_not_notice(llm: LLM) -> None:
    """Constrained and free requests in one batch: each as alone."""
    params = []
    for i, (structured, _) in enumerate(CASES.values()):
        options = SAMPLINGS["greedy" if i % 2 else "random"]
        params.append(SamplingParams(max_tokens=40, structured_outputs=structured, **options))
        params.append(SamplingParams(max_tokens=20, logprobs=1, **options))
    alone = [llm.generate(PROMPT, p)[0].outputs[0] for p in params]
    together = [o.outputs[0] for o in llm.generate([PROMPT] * len(params), params)]
    for one, other in zip(alone, together, strict=True):
        assert (other.text, other.token_ids, other.finish_reason) == (
            one.text,
            one.token_ids,
            one.finish_reason,
        )
        assert other.logprobs == one.logprobs
    assert not llm.engine.core._structured
    assert not llm.engine.has_work
