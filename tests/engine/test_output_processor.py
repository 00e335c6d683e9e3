"""From engine messages to answers: deltas, whole answers, stop strings, endings, log-probabilities."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx.engine.detokenizer import TokenTexts
from inferx.engine.output_processor import OutputProcessor, ProcessedOutput
from inferx.engine.protocol import EngineOutput, EngineRequest, RequestMetrics, TokenLogprobs
from inferx.loader.tokenizer import Tokenizer
from inferx.outputs import CompletionOutput, RequestOutput
from inferx.sampling_params import SamplingParams

sys.path.insert(0, str(Path(__file__).parent))
import toy_tokenizers as toys

PROMPT = [1, 2, 3]
METRICS = RequestMetrics(e2e_time=1.5, num_prompt_tokens=3)
TEXT = "Count: one, two, three.\n\nThe 😀歪é👨‍👩‍👧 END of the story"


def request(request_id: str = "r", prompt: Sequence[int] = PROMPT, **options: Any) -> EngineRequest:
    return EngineRequest(request_id, list(prompt), SamplingParams(max_tokens=None, **options), 0.0)


texts_of = cache(TokenTexts)


def processor(tokenizer: Tokenizer | None = None) -> OutputProcessor:
    tokenizer = tokenizer or toys.smollm2()
    return OutputProcessor(tokenizer, texts_of(tokenizer))


def entry(token: int) -> TokenLogprobs:
    return TokenLogprobs([token, 7, token], [-float(token % 10), -0.5, -float(token % 10)], 2)


def run(
    ids: Sequence[int],
    finish: str = "length",
    *,
    sizes: Sequence[int] = (1,),
    stop_reason: int | None = None,
    tokenizer: Tokenizer | None = None,
    prompt: Sequence[int] = PROMPT,
    **options: Any,
) -> tuple[CompletionOutput, list[RequestOutput]]:
    """Play an engine that produces ``ids``, ``sizes`` (repeated) at a time, and obeys ``to_finish``."""
    proc = processor(tokenizer)
    req = request(prompt=prompt, **options)
    proc.add_request(req)
    deltas: list[RequestOutput] = []
    whole = RequestOutput.empty("r", None, list(prompt))
    position = turn = 0
    closing = False
    while proc.has_request("r"):
        size = sizes[turn % len(sizes)]
        new = list(ids[position : position + size])
        position, turn = position + size, turn + 1
        done = closing or position >= len(ids)
        logprobs = [entry(t) for t in new] if options.get("logprobs") is not None else None
        reason: Any = ("abort" if closing else finish) if done else None
        result = proc.process(
            EngineOutput(
                "r",
                0,
                new,
                logprobs,
                None,
                reason,
                stop_reason if done else None,
                None,
                METRICS if done else None,
            )
        )
        assert result.error is None
        closing = closing or bool(result.to_finish)
        if result.request_output is not None:
            deltas.append(result.request_output)
            whole.add(result.request_output)
    assert whole.finished == deltas[-1].finished
    assert not any(d.finished for d in deltas[:-1])
    return whole.outputs[0], deltas


def encode(text: str) -> list[int]:
    return toys.smollm2().encode(text, add_special_tokens=False)


# ---- text


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (5,), (1000,)])
def test_deltas_join_to_the_answer(sizes: tuple[int, ...]) -> None:
    ids = encode(TEXT)
    answer, deltas = run(ids, sizes=sizes)
    assert answer.text == "".join(d.outputs[0].text for d in deltas) == TEXT
    assert answer.token_ids == ids
    assert answer.finish_reason == "length"
    assert answer.stop_reason is None
    assert answer.metrics is METRICS
    assert answer.logprobs is None
    assert answer.cumulative_logprob is None
    for delta in deltas:
        assert "\ufffd" not in delta.outputs[0].text
        assert (delta.outputs[0].finish_reason is not None) == (delta is deltas[-1])


def test_whole_answers() -> None:
    proc = processor()
    ids = encode(TEXT)
    proc.add_request(request(n=2, logprobs=0), prompt="the prompt", cumulative=True)
    seen = []
    for i, token in enumerate(ids):
        for index in (0, 1):
            last = i == len(ids) - 1
            out = proc.process(
                EngineOutput("r", index, [token], [entry(token)], finish_reason="length" if last else None)
            )
            assert out.request_output is not None
            seen.append(out.request_output)
    assert [len(s.outputs) for s in seen] == [2] * len(seen)
    assert seen[-1].finished
    assert not seen[-2].finished
    assert seen[0].prompt == "the prompt"
    assert seen[0].prompt_token_ids == PROMPT
    # Snapshots: what was handed out does not change any more.
    for k, snapshot in enumerate(seen):
        assert snapshot.outputs[0].token_ids == ids[: k // 2 + 1]
        assert TEXT.startswith(snapshot.outputs[1].text)
        assert len(snapshot.outputs[0].logprobs or []) == k // 2 + 1
    assert [o.text for o in seen[-1].outputs] == [TEXT, TEXT]


def test_incomplete_text_is_flushed_at_the_end() -> None:
    answer, _ = run(encode("歪")[:-1])
    assert answer.text == "\ufffd"


def test_without_detokenisation() -> None:
    answer, _ = run(encode(TEXT), detokenize=False, logprobs=1)
    assert answer.text == ""
    assert answer.token_ids == encode(TEXT)
    assert len(answer.logprobs or []) == len(answer.token_ids)


def test_the_space_after_the_prompt_stays() -> None:
    tokenizer = toys.sentencepiece("llama")
    ids = tokenizer.encode("Hello world", add_special_tokens=False)
    assert run(ids[1:], tokenizer=tokenizer, prompt=ids[:1])[0].text == " world"


# ---- stop strings


STOPS = {
    "a whole word": "two",
    "over several tokens": "e, two, th",
    "inside a token": "hre",
    "over a paragraph": ".\n\nT",
    "a character of several tokens": "歪",
    "part of a joined emoji": "👩\u200d",
    "near the end": "END",
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS.keys())
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("sizes", [(1,), (3, 1), (1000,)])
def test_stop_strings(stop: str, include: bool, sizes: tuple[int, ...]) -> None:
    at = TEXT.find(stop)
    assert at > 0
    ids = encode(TEXT)
    answer, deltas = run(
        ids, stop=[stop, "never"], include_stop_str_in_output=include, sizes=sizes, logprobs=0
    )
    assert answer.text == (TEXT[: at + len(stop)] if include else TEXT[:at])
    assert answer.finish_reason == "stop"
    assert answer.stop_reason == stop
    assert answer.metrics is METRICS
    # The token that completes the stop string is the last.
    complete = next(n for n in range(len(ids) + 1) if stop in toys.smollm2().decode(ids[:n]))
    assert answer.token_ids == ids[:complete]
    assert len(answer.logprobs or []) == complete
    assert answer.cumulative_logprob == sum(entry(t).logprobs[0] for t in ids[:complete])
    assert [d.outputs[0].finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.booleans())
def test_any_slice_as_stop(data: st.DataObject, include: bool) -> None:
    start = data.draw(st.integers(0, len(TEXT) - 1))
    stop = TEXT[start : start + data.draw(st.integers(1, 12))]
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    answer, deltas = run(encode(TEXT), stop=[stop], include_stop_str_in_output=include, sizes=sizes)
    at = TEXT.find(stop)
    assert answer.text == (TEXT[: at + len(stop)] if include else TEXT[:at])
    assert answer.stop_reason == stop
    so_far = ""
    for delta in deltas:
        so_far += delta.outputs[0].text
        assert answer.text.startswith(so_far)


def test_a_stop_is_reported_once_and_later_tokens_are_dropped() -> None:
    proc = processor()
    proc.add_request(request(n=2, stop=["END"]))
    first = proc.process(EngineOutput("r", 1, encode("go END here")))
    assert first.to_finish == [1]
    assert first.request_output is not None
    assert first.request_output.outputs[0].text == "go "
    assert first.request_output.outputs[0].finish_reason is None  # the engine has not let go of it yet
    # What the engine had under way is ignored, for this sample only.
    assert proc.process(EngineOutput("r", 1, encode(" more"))) == ProcessedOutput()
    other = proc.process(EngineOutput("r", 0, encode("more")))
    assert other.request_output is not None
    assert other.request_output.outputs[0].text == "more"
    last = proc.process(EngineOutput("r", 1, encode("x"), finish_reason="stop", metrics=METRICS))
    assert last.request_output is not None
    assert not last.request_output.finished
    sample = last.request_output.outputs[0]
    assert (sample.text, sample.token_ids, sample.finish_reason) == ("", [], "stop")
    assert sample.stop_reason == "END"
    assert last.request_output.metrics is METRICS
    assert last.to_finish == []
    end = proc.process(EngineOutput("r", 0, [], finish_reason="length"))
    assert end.request_output is not None
    assert end.request_output.finished
    assert proc.num_requests == 0


def test_a_stop_in_the_last_token_needs_no_finishing() -> None:
    proc = processor()
    proc.add_request(request(stop=["END"]))
    result = proc.process(EngineOutput("r", 0, encode("the END"), finish_reason="length", metrics=METRICS))
    assert result.to_finish == []
    assert result.request_output is not None
    assert result.request_output.finished
    sample = result.request_output.outputs[0]
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("the ", "stop", "END")


def test_min_tokens_before_stop_strings() -> None:
    ids = encode("END one END two END")
    texts = [toys.smollm2().decode(ids[:n]) for n in range(len(ids) + 1)]
    for min_tokens in range(len(ids)):
        answer, _ = run(ids, stop=["END"], min_tokens=min_tokens)
        # The first END that is completed by a token after the first min_tokens ones.
        late = [
            i
            for i in range(len(texts[-1]))
            if texts[-1].startswith("END", i) and i + 3 > len(texts[min_tokens])
        ]
        assert answer.text == texts[-1][: late[0]]


def test_held_text_is_flushed_when_no_stop_comes() -> None:
    answer, _ = run(encode("go EN"), stop=["END"])
    assert answer.text == "go EN"
    assert answer.finish_reason == "length"


# ---- endings by token


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_id(include: bool) -> None:
    ids = encode("one two three")
    answer, _ = run(ids, "stop", stop_reason=ids[-1], include_stop_str_in_output=include, logprobs=0)
    assert answer.text == ("one two three" if include else "one two")
    assert answer.token_ids == ids
    assert answer.stop_reason == ids[-1]
    assert len(answer.logprobs or []) == len(ids)


def test_the_end_token_has_no_text() -> None:
    end = toys.smollm2().eos_token_ids[0]
    for skip in (True, False):
        answer, _ = run([*encode("done"), end], "stop", skip_special_tokens=skip)
        assert answer.text == "done"
        assert answer.token_ids[-1] == end
        assert answer.stop_reason is None
    # With ignore_eos it is a token like others.
    assert run([*encode("done"), end, *encode("more")])[0].text == "donemore"


def test_a_stop_string_begun_before_the_end_token_is_text() -> None:
    end = toys.smollm2().eos_token_ids[0]
    answer, _ = run([*encode("go EN"), end], "stop", stop=["END"])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("go EN", "stop", None)


def test_a_stop_string_that_only_the_flush_completes() -> None:
    """A run of byte tokens becomes text when the answer ends."""
    tokenizer = toys.sentencepiece("gemma")
    ids = tokenizer.encode("a歪", add_special_tokens=False)
    answer, _ = run(ids, tokenizer=tokenizer, stop=["歪"])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("a", "stop", "歪")


def test_errors_and_aborts() -> None:
    proc = processor()
    for name in ("a", "b", "c"):
        proc.add_request(request(name, n=2))
    failed = proc.process(EngineOutput("a", 1, [], finish_reason="error", error="non-finite logits"))
    assert failed == ProcessedOutput(error="non-finite logits")
    assert not proc.has_request("a")
    assert proc.process(EngineOutput("a", 0, [5])) == ProcessedOutput()
    proc.abort("b")
    proc.abort("b")
    assert proc.process(EngineOutput("b", 0, [5])) == ProcessedOutput()
    aborted = proc.process(EngineOutput("c", 0, encode("half"), finish_reason="abort"))
    assert aborted.request_output is not None
    assert aborted.request_output.outputs[0].finish_reason == "abort"
    assert aborted.request_output.outputs[0].text == "half"
    assert proc.num_requests == 1
    with pytest.raises(ValueError, match="'c' is already in use"):
        proc.add_request(request("c"))


def test_requests_do_not_mix() -> None:
    rng = random.Random(5)
    proc = processor()
    texts = {f"r{i}": f"answer {i} 😀 " * (i + 1) for i in range(6)}
    left = {name: encode(text) for name, text in texts.items()}
    for name in texts:
        proc.add_request(request(name))
    got = dict.fromkeys(texts, "")
    while left:
        name = rng.choice(sorted(left))
        token = left[name].pop(0)
        reason: Any = None if left[name] else "length"
        out = proc.process(EngineOutput(name, 0, [token], finish_reason=reason)).request_output
        assert out is not None
        assert out.request_id == name
        got[name] += out.outputs[0].text
        if not left[name]:
            del left[name]
    assert got == texts
    assert proc.num_requests == 0


# ---- log-probabilities


def test_logprobs_as_in_vllm() -> None:
    ids = encode("Hi 歪")
    answer, deltas = run(ids, logprobs=2)
    assert answer.logprobs is not None
    assert [next(iter(p)) for p in answer.logprobs] == ids
    position = answer.logprobs[0]
    assert position.keys() == {ids[0], 7}
    assert len(position) == 2
    assert 7 in position
    assert position.get(12345) is None
    assert position[ids[0]].rank == 2
    assert position[ids[0]].logprob == -float(ids[0] % 10)
    assert position[ids[0]].decoded_token == "Hi"
    assert position[7].rank == 1
    assert dict(position) == dict(position.items())
    # The bytes of the tokens are the bytes of the text, also where a character has several tokens.
    joined = b"".join(p[t].token_bytes for p, t in zip(answer.logprobs, ids, strict=True))
    assert joined == "Hi 歪".encode()
    for delta in deltas:
        assert len(delta.outputs[0].logprobs or []) == len(delta.outputs[0].token_ids)
    assert answer.cumulative_logprob == sum(p[t].logprob for p, t in zip(answer.logprobs, ids, strict=True))


def test_prompt_logprobs_come_once() -> None:
    proc = processor()
    proc.add_request(request(n=2, prompt_logprobs=1))
    sent = [None, entry(2), entry(3)]
    first = proc.process(EngineOutput("r", 1, [5], None, sent, num_cached_tokens=2)).request_output
    second = proc.process(EngineOutput("r", 0, [5], None, sent)).request_output
    assert first is not None
    assert second is not None
    assert second.prompt_logprobs is None
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert first.prompt_logprobs[1] is not None
    assert first.prompt_logprobs[1][2].logprob == -2.0
    whole = RequestOutput.empty("r", "text", PROMPT, 2)
    whole.add(first)
    whole.add(second)
    assert whole.prompt_logprobs is first.prompt_logprobs
    assert whole.num_cached_tokens == 2


def test_metrics_of_the_slowest_sample() -> None:
    whole = RequestOutput.empty("r", None, PROMPT, 2)
    for index, seconds in ((0, 3.0), (1, 2.0)):
        sample = CompletionOutput(index, finish_reason="length", metrics=RequestMetrics(e2e_time=seconds))
        whole.add(RequestOutput("r", None, PROMPT, [sample], metrics=sample.metrics))
    assert whole.metrics is not None
    assert whole.metrics.e2e_time == 3.0
    assert whole.outputs[1].metrics is not None
    assert whole.outputs[1].metrics.e2e_time == 2.0
