"""Hostile grammars: refused or harmless, within seconds, whatever they do to the process that tries them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.models_fixtures import smollm2_path

from inferx.engine.structured import native, validator
from inferx.engine.structured.validator import GrammarValidator
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.errors import InvalidRequestError
from inferx.loader import load_tokenizer, open_checkpoint
from inferx.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    checkpoint = open_checkpoint(str(smollm2_path()))
    tokenizer = load_tokenizer(checkpoint)
    return Vocabulary(tokenizer, tokenizer.eos_token_ids, checkpoint.config.vocab_size)


@pytest.fixture(scope="module")
def grammars(vocabulary: Vocabulary) -> Iterator[GrammarValidator]:
    made = GrammarValidator(vocabulary)
    yield made
    made.close()


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '{"type":"string"}' + "}" * depth


def doubling(rules: int) -> str:
    lines = [f"r{i} ::= r{i + 1} r{i + 1}" for i in range(rules)]
    return "\n".join(["root ::= r0", *lines, f'r{rules} ::= "a"', ""])


MUTUAL = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
TREE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
HOSTILE = {
    "arrays 1000 deep": StructuredOutputsParams(json=nested(1000)),
    "arrays 100000 deep": StructuredOutputsParams(json=nested(100_000)),
    "objects 1000 deep": StructuredOutputsParams(json=json.loads(nested(400))),
    "$ref to itself": StructuredOutputsParams(json={"$ref": "#"}),
    "mutual $ref": StructuredOutputsParams(json=MUTUAL),
    "pattern of brackets": StructuredOutputsParams(json={"type": "string", "pattern": "(" * 60_000}),
    "enum of 100000": StructuredOutputsParams(json={"enum": [f"value {i}" for i in range(100_000)]}),
    "maxLength 10^9": StructuredOutputsParams(json={"type": "string", "maxLength": 10**9}),
    "maxLength 1e300": StructuredOutputsParams(json={"type": "string", "maxLength": 1e300}),
    "regex of brackets": StructuredOutputsParams(regex="(" * 16_000),
    "regex count": StructuredOutputsParams(regex="a{1,1000000000}"),
    "ebnf of brackets": StructuredOutputsParams(grammar="root ::= " + "(" * 60_000),
    "lark of brackets": StructuredOutputsParams(grammar="start: " + "(" * 60_000),
    "ebnf of square brackets": StructuredOutputsParams(grammar="root ::= " + "[" * 60_000),
    "ebnf count": StructuredOutputsParams(grammar='root ::= "a"{1000000000}'),
    "lark count": StructuredOutputsParams(grammar='start: "a"~1..1000000000'),
    "100000 choices": StructuredOutputsParams(choice=[str(i) for i in range(100_000)]),
    "a long choice": StructuredOutputsParams(choice=["a" * 10_000_000]),
    "a long grammar": StructuredOutputsParams(grammar="start: " + '"a" ' * 1_000_000),
    "half a surrogate pair": StructuredOutputsParams(choice=["\ud800"]),
    "quotes without end": StructuredOutputsParams(json='"' + '\\"' * 120_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused(grammars: GrammarValidator, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        grammars.check(HOSTILE[name])
    assert caught.value.param == "structured_outputs"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutputsParams(json=nested(50)),
        StructuredOutputsParams(json=TREE),
        StructuredOutputsParams(json=True),
        StructuredOutputsParams(json={"type": "string", "maxLength": 100_000}),
        StructuredOutputsParams(json={"properties": {"pattern": {"type": "string"}, "maxLength": {}}}),
        StructuredOutputsParams(regex=r"(\[|\(|\{){1,9}[)\]}(]"),
        StructuredOutputsParams(choice=[f"choice {i}" for i in range(2000)]),
        StructuredOutputsParams(grammar='start: "((((" "[[[[" /[(]+/'),
    ],
)  # fmt: skip
def test_what_only_looks_hostile_is_fine(
    grammars: GrammarValidator, structured: StructuredOutputsParams
) -> None:
    grammars.check(structured)
    assert grammars.known(structured)


def test_too_slow_is_refused_and_the_next_one_is_fine(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator, "COMPILE_SECONDS", 0.02)
    slow = StructuredOutputsParams(regex="(?:a{1000}){1000}")  # a third of a second and more
    grammars = GrammarValidator(vocabulary)
    with pytest.raises(InvalidRequestError, match=r"takes more than 0\.02 s"):
        grammars.check(slow)
    monkeypatch.setattr(validator, "COMPILE_SECONDS", 30)
    grammars.check(StructuredOutputsParams(regex="fine"))
    # The verdict is known, and nothing is tried again until it may have been the machine's fault.
    start = time.monotonic()
    with pytest.raises(InvalidRequestError):
        grammars.check(slow)
    assert time.monotonic() - start < 5
    monkeypatch.setattr(validator.time, "monotonic", lambda: start + 2 * validator.DOUBT_SECONDS)
    assert not grammars.known(slow)
    monkeypatch.undo()
    grammars.close()


def test_a_child_that_dies_takes_only_its_grammar_along(vocabulary: Vocabulary) -> None:
    grammars = GrammarValidator(vocabulary)
    grammars.check(StructuredOutputsParams(regex="first"))
    for child in grammars._children:
        if child._process is not None:
            child._process.kill()
            child._process.wait()
    grammars.check(StructuredOutputsParams(regex="second"))  # a dead one is noticed before
    (child,) = (c for c in grammars._children if c._process is not None)
    assert child._process is not None
    slow = StructuredOutputsParams(regex="(?:a{1000}){1000}")
    threading.Timer(0.03, child._process.kill).start()
    with pytest.raises(InvalidRequestError, match="ended the process"):
        grammars.check(slow)
    grammars.check(StructuredOutputsParams(regex="third"))
    grammars.close()


def test_many_threads_share_the_children(grammars: GrammarValidator) -> None:
    def check(i: int) -> bool:
        try:
            grammars.check(StructuredOutputsParams(regex="(" if i % 3 == 0 else f"a{{{i // 2}}}"))
        except InvalidRequestError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(check, range(40))) == [i % 3 != 0 for i in range(40)]


def test_memory_of_the_child_is_bounded(vocabulary: Vocabulary) -> None:
    """Of the process itself, so that what a grammar takes does not matter."""
    grammars = GrammarValidator(vocabulary)
    grammars.check(StructuredOutputsParams(regex="a"))
    (child,) = (c for c in grammars._children if c._process is not None)
    assert child._process is not None
    with open(f"/proc/{child._process.pid}/limits") as file:
        limits = {line[:26].strip(): line[26:].split()[0] for line in file}
    assert limits["Max address space"] == str(native.CHILD_MEMORY_BYTES)
    with open(f"/proc/{child._process.pid}/maps") as file:
        assert "torch" not in file.read()
    grammars.close()
    assert child._process is None


def test_the_library_sees_exactly_our_tokens(vocabulary: Vocabulary) -> None:
    for i in (0, 2, 81, 1000, vocabulary.num_ids - 1):
        token = vocabulary.tokens[i]
        if token[0] != 0xFF:
            assert vocabulary.native.decode_bytes([i]) == token
        else:
            assert vocabulary.native.is_special_token(i)
    assert vocabulary.special_ids["<|im_end|>"] in vocabulary.eos_token_ids
