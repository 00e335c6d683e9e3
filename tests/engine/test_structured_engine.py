"""Grammars inside the engine: same answer in any company, by jumps or not; faults are one request's.

On a tiny model whose tokens are single bytes, so that nearly all of a fixed text is forced.
"""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.engine.core_harness import EOS, Answer, assert_idle, drive, make_core, request, save_tiny_llama
from tests.engine.device_harness import staged_core

from inferx.engine import wire
from inferx.engine.core import EngineCore
from inferx.engine.protocol import EngineRequest
from inferx.engine.structured import compiler
from inferx.engine.structured.matcher import Matcher, MatcherError
from inferx.sampling_params import SamplingParams
from inferx.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.timeout(300)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "flag": {"type": "boolean"}},
    "required": ["name", "flag"],
}
CONSTRAINTS = [
    StructuredOutputsParams(json=json.dumps(PERSON), disable_any_whitespace=True),
    StructuredOutputsParams(regex="(first part|second part): [a-z]{1,9}( and so on){2}"),
    StructuredOutputsParams(choice=["forty-two characters of text, all of them", "forty-two", "x"]),
    StructuredOutputsParams(grammar='start: "begin " /[0-9]+/ " end " ("again " /[a-c]/)*'),
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def constrained(i: int = 0, **options: Any) -> SamplingParams:
    settings = {"temperature": 1.0, "seed": i, "max_tokens": 60, "eos_token_ids": [EOS], **options}
    return SamplingParams(**{"structured_outputs": CONSTRAINTS[i % len(CONSTRAINTS)], **settings})


def mixed_requests(rng: random.Random) -> list[EngineRequest]:
    requests = []
    for i in range(9):
        params = constrained(
            i,
            n=rng.choice([1, 1, 3]),
            temperature=rng.choice([0.0, 1.0]),
            max_tokens=rng.randint(5, 70),
            min_tokens=rng.choice([0, 0, 3]),
            presence_penalty=rng.choice([0.0, 0.5]),
            logprobs=rng.choice([None, None, None, 1]),
            ignore_eos=rng.random() < 0.3,
        )
        if i % 3 == 2:
            params.structured_outputs = None
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, 50))]
        requests.append(request(f"r{i}", prompt, params, priority=rng.choice([0, 0, 1])))
    return requests


def each_alone(core: EngineCore, requests: list[EngineRequest]) -> dict[tuple[str, int], Answer]:
    answers: dict[tuple[str, int], Answer] = {}
    for r in requests:
        answers |= drive(core, [(0, r)]).answers
    return answers


@pytest.mark.parametrize("case", range(2))
@pytest.mark.parametrize("kind", ["plain", "staged", "graphs"])
def test_alone_batched_preempted_and_one_at_a_time(tiny: Path, seed: int, case: int, kind: str) -> None:
    rng = random.Random(f"{seed}-{case}")
    requests = mixed_requests(rng)
    expected = each_alone(make_core(tiny, enable_prefix_caching=False), requests)
    assert sum(a.finish_reason == "stop" for a in expected.values()) >= 2
    preemptions = 0
    for options in (
        {},
        {"enable_jump_ahead": False},
        {"num_blocks": 16, "max_num_batched_tokens": 16},
        {"num_blocks": 18, "enable_jump_ahead": False, "long_prefill_token_threshold": 7},
    ):
        core = (
            make_core(tiny, **options)
            if kind == "plain"
            else staged_core(tiny, graphs=kind == "graphs", **options)
        )
        order = [(rng.randint(0, 30), r) for r in rng.sample(requests, len(requests))]
        run = drive(core, sorted(order, key=lambda item: item[0]))
        for key, answer in run.answers.items():
            assert answer == expected[key], f"{options}, request {key}"
        assert run.answers.keys() == expected.keys()
        assert_idle(core)
        assert not core._structured
        preemptions += sum(m.num_preemptions for m in run.metrics)
    assert preemptions > 0


def test_jumps_need_few_steps(tiny: Path) -> None:
    text = "forty-two characters of text, all of them"
    params = constrained(structured_outputs=StructuredOutputsParams(choice=[text]))
    answers = []
    for jump, most in ((True, 6), (False, 60)):
        core = make_core(tiny, enable_jump_ahead=jump)
        run = drive(core, [(0, request("r", [1, 2, 3], params))])
        answers.append(run.answers["r", 0])
        assert run.num_steps <= most
        assert core.stats().generation_tokens == len(text)
    assert answers[0] == answers[1]
    assert len(answers[0].tokens) == len(text)
    assert answers[0].finish_reason == "stop"


def test_constraints_travel(tiny: Path) -> None:
    for i in range(len(CONSTRAINTS)):
        sent = wire.AddRequest(request("r", [1], constrained(i)))
        assert wire.to_core_decoder.decode(wire.encoder.encode(sent)) == sent


# ---- waiting for a grammar


def test_others_go_on_while_a_grammar_is_compiled(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    real = compiler.compile_source

    def slowly(tokenizer: Any, source: Any) -> Any:
        assert may_go_on.wait(60)
        return real(tokenizer, source)

    monkeypatch.setattr(compiler, "compile_source", slowly)
    core = make_core(tiny)
    core.add_request(request("slow", [1, 2], constrained(1)))
    core.add_request(request("same", [1, 2, 3], constrained(1)))
    core.add_request(request("gone", [1, 2, 3, 4], constrained(2)))
    assert core.stats().num_waiting == 3
    free = drive_while_held(core, request("free", [5, 6], constrained(structured_outputs=None)), held=3)
    assert len(free.tokens) > 0
    core.abort("gone")
    core.scheduler.check_invariants()
    assert core.step() == []
    assert core.has_work
    may_go_on.set()
    answers = drive(core, []).answers
    assert {key[0] for key in answers} == {"slow", "same"}
    assert all(a.finish_reason in ("stop", "length") for a in answers.values())
    assert_idle(core)
    assert not core._structured


def drive_while_held(core: EngineCore, free: EngineRequest, held: int) -> Answer:
    core.add_request(free)
    answer = Answer()
    while answer.finish_reason is None:
        for output in core.step():
            assert output.request_id == free.request_id
            answer.take(output)
        core.scheduler.check_invariants()
    assert len(core.scheduler.held) == held
    return answer


@pytest.mark.parametrize("n", [1, 3])
def test_a_grammar_that_is_none_ends_its_request(tiny: Path, n: int) -> None:
    """The front end refuses it; should one come through, it is that request's error."""
    core = make_core(tiny)
    bad = constrained(n=n, structured_outputs=StructuredOutputsParams(regex="(a"))
    answers = drive(core, [(0, request("bad", [1], bad)), (0, request("good", [1], constrained(1)))]).answers
    assert len(answers) == n + 1
    for (name, _), answer in answers.items():
        if name == "bad":
            assert answer.finish_reason == "error"
            assert "unclosed group" in (answer.error or "")
        else:
            assert answer.finish_reason in ("stop", "length")
    assert_idle(core)
    assert not core._structured


# ---- faults


@pytest.mark.parametrize("method", ["fill_mask", "take", "_consume"])
@pytest.mark.parametrize("error", [MatcherError("out of its mind"), ZeroDivisionError("out of its mind")])
def test_a_matcher_that_raises_ends_its_sample_only(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    requests = [request(f"r{i}", [1, 2, i], constrained(i, n=2)) for i in range(4)]
    expected = each_alone(make_core(tiny), requests)
    real = getattr(Matcher, method)

    def failing(self: Matcher, *args: Any) -> Any:
        if self._params.seed == 1:
            raise error
        return real(self, *args)

    monkeypatch.setattr(Matcher, method, failing)
    core = make_core(tiny)
    answers = drive(core, [(0, r) for r in requests]).answers
    for key, answer in answers.items():
        if key[0] == "r1":
            assert answer.finish_reason == "error"
            assert "out of its mind" in (answer.error or "")
        else:
            assert answer == expected[key]
    assert_idle(core)
    assert not core._structured


def test_tokens_outside_the_grammar_are_never_taken(tiny: Path) -> None:
    """A matcher that is given a foreign token says so, and keeps saying it."""
    core = make_core(tiny)
    core.add_request(request("r", [1], constrained(2)))
    core._structured.wait(60)
    matcher = core._structured.new_matcher("r")
    assert matcher is not None
    for _ in range(2):
        with pytest.raises(MatcherError):
            matcher.take(7)
    core.abort("r")
    assert_idle(core)
