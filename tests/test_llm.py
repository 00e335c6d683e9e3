"""LLM on the real default model: generate, chat, stream, options, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from inferx import LLM, SamplingParams
from inferx.errors import InvalidRequestError, LoadError
from inferx.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m-instruct", num_blocks=512)


def test_generate_answers_in_order(llm: LLM) -> None:
    prompts = ["The capital of France is", "Once upon a time", "1, 2, 3, 4, 5,"]
    outputs = llm.generate(prompts, GREEDY)
    assert [len(o.prompt_token_ids) > 0 for o in outputs] == [True] * 3
    assert outputs[0].outputs[0].text.startswith(" Paris")
    assert outputs[2].outputs[0].text.startswith(" 6, 7, 8")
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt == prompt
        assert output.finished
        assert output.metrics.e2e_time > 0
        assert llm.generate(prompt, GREEDY)[0].outputs[0].text == output.outputs[0].text


def test_prompts_come_in_four_forms(llm: LLM) -> None:
    text = "The capital of France is"
    ids = llm.get_tokenizer().encode(text)
    forms = [text, ids, {"prompt": text}, {"prompt_token_ids": ids}]
    answers = {llm.generate(form, GREEDY)[0].outputs[0].text for form in forms}
    answers |= {o.outputs[0].text for o in llm.generate(forms, GREEDY)}
    assert len(answers) == 1


def test_chat_uses_the_template(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of Germany?"}]
    (answer,) = llm.chat(question, GREEDY)
    assert "Berlin" in answer.outputs[0].text
    assert answer.outputs[0].finish_reason == "stop"
    two = llm.chat([question, [{"role": "user", "content": "Say hello."}]], GREEDY)
    assert two[0].outputs[0].text == answer.outputs[0].text


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, seed=3, max_tokens=24, n=2)])
def test_streamed_equals_whole(llm: LLM, params: SamplingParams) -> None:
    prompt = "Write a line with emoji: 😀"
    whole = llm.generate(prompt, params)[0]
    joined = RequestOutput.empty("x", None, whole.prompt_token_ids, params.n)
    for delta in llm.stream(prompt, params):
        joined.add(delta)
    for ours, theirs in zip(joined.outputs, whole.outputs, strict=True):
        assert (ours.text, ours.token_ids) == (theirs.text, theirs.token_ids)


def test_leaving_a_stream_frees_its_blocks(llm: LLM) -> None:
    for _ in llm.stream("Once upon a time", SamplingParams(max_tokens=200)):
        break
    stats = llm.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks
    assert not llm.engine.has_work


def test_stop_strings_end_inside_tokens(llm: LLM) -> None:
    """The text ends right before the match, wherever tokens begin and end (cases A01, A19x)."""
    whole = llm.generate("Count: 1 2 3 4 5 6", GREEDY)[0].outputs[0]
    text = whole.text
    for start, length in ((3, 1), (4, 5), (6, 9), (11, 3)):
        stop = text[start : start + length]
        expected = text[: text.find(stop)]
        params = SamplingParams(temperature=0, max_tokens=24, stop=[stop])
        (answer,) = llm.generate("Count: 1 2 3 4 5 6", params)
        assert answer.outputs[0].text == expected
        assert answer.outputs[0].finish_reason == "stop"
        assert answer.outputs[0].stop_reason == stop
        assert "".join(d.outputs[0].text for d in llm.stream("Count: 1 2 3 4 5 6", params)) == expected


def test_tiny_temperature_and_top_p_are_greedy(llm: LLM) -> None:
    """Case C01, in one batch with a hot row."""
    prompt = "The capital of France is"
    greedy = llm.generate(prompt, GREEDY)[0].outputs[0].token_ids
    options = [{"temperature": t} for t in (0, 1e-12, 1e-6, 1e-4, 1e-3)]
    options += [{"temperature": 1.0, "top_p": p} for p in (1e-9, 1e-4)]
    params = [SamplingParams(max_tokens=24, seed=1, **o) for o in options]
    params.append(SamplingParams(max_tokens=24, seed=1, temperature=1.5))
    outputs = llm.generate([prompt] * len(params), params)
    for output in outputs[:-1]:
        assert output.outputs[0].token_ids == greedy


def test_presence_and_frequency_count_the_output_only(llm: LLM) -> None:
    """Case C05: a penalty is a bias on what was generated, never on what was asked."""
    prompt = llm.get_tokenizer().encode("Paris Paris Paris Paris")

    def tokens(ids: list[int], count: int, **options: object) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **options)
        return llm.generate({"prompt_token_ids": ids}, params)[0].outputs[0].token_ids

    first = tokens(prompt, 1)
    assert tokens(prompt, 1, presence_penalty=2.0) == tokens(prompt, 1, frequency_penalty=2.0) == first
    assert tokens(prompt, 2, presence_penalty=2.0)[1:] == tokens(
        prompt + first, 1, logit_bias={first[0]: -2.0}
    )


def test_a_batch_with_a_bad_prompt_runs_nothing(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="at least one token"):
        llm.generate(["fine", {"prompt_token_ids": []}], GREEDY)
    assert not llm.engine.has_work
    with pytest.raises(InvalidRequestError, match="one for each of the 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(InvalidRequestError, match="prompt mapping"):
        llm.generate({"text": "a"}, GREEDY)
    with pytest.raises(InvalidRequestError, match=r"8192 tokens"):
        llm.generate({"prompt_token_ids": [1] * 9000}, GREEDY)
    assert llm.generate([], GREEDY) == []


def test_what_is_no_prompt_is_refused(llm: LLM) -> None:
    for prompts in (None, 5, b"hi", [b"hi"], [[True]], [[1.5]], [None], {"prompt_token_ids": "12"}):
        with pytest.raises(InvalidRequestError, match="prompt"):
            llm.generate(prompts, GREEDY)
    for messages in ([{"role": "user"}], [{"content": "x"}], [[{"role": "user"}]]):
        with pytest.raises(InvalidRequestError, match="messages"):
            llm.chat(messages, GREEDY)


def test_odd_arguments_are_refused_and_leave_nothing_behind(llm: LLM) -> None:
    for params in ({"temperature": 0}, "x", [None], 5):
        with pytest.raises(InvalidRequestError, match="sampling_params"):
            llm.generate(["Hi"], params)
    for priority in (["a", 1], [None, 1], [float("nan"), 1], [True, 1], 1, [1]):
        with pytest.raises(InvalidRequestError, match="priority"):
            llm.generate(["Hi", "Yo"], GREEDY, priority=priority)
    for messages in (None, "x", 5):
        with pytest.raises(InvalidRequestError, match="messages"):
            llm.chat(messages, GREEDY)
    assert not llm.engine.has_work
    assert llm.generate({"prompt_token_ids": None, "prompt": "Hi"}, GREEDY)[0].finished


def test_threads_and_nested_calls_share_the_engine(llm: LLM) -> None:
    prompts = [f"Number {i} is" for i in range(6)]
    expected = [llm.generate(p, GREEDY)[0].outputs[0].text for p in prompts]

    def ask(prompt: str) -> str:
        return llm.generate(prompt, GREEDY)[0].outputs[0].text

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, prompts)) == expected
    streams = [llm.stream(p, GREEDY) for p in prompts[:2]]
    texts = ["", ""]
    while streams[0] is not None or streams[1] is not None:  # in turn, with another call between
        for i, stream in enumerate(streams):
            delta = None if stream is None else next(stream, None)
            if delta is None:
                streams[i] = None
            else:
                texts[i] += delta.outputs[0].text
        if len(texts[0]) < 20:
            assert ask(prompts[2]) == expected[2]
    assert texts == expected[:2]
    assert not llm.engine.has_work


def test_construction_errors_name_the_option() -> None:
    with pytest.raises(InvalidRequestError, match=r"max_len.*max_model_len"):
        LLM(max_len=5)
    with pytest.raises(InvalidRequestError, match="block_size must be a multiple of 8"):
        LLM(block_size=12)
    for name, value in (
        ("block_size", "a"),
        ("max_model_len", 2.5),
        ("max_model_len", 1),
        ("block_size", None),
        ("enable_prefix_caching", "no"),
        ("seed", 1.5),
        ("num_threads", 10**10),
    ):
        with pytest.raises(InvalidRequestError, match=name):
            LLM(**{name: value})
    with pytest.raises(LoadError, match="no-such-model"):
        LLM("./no-such-model.gguf")
