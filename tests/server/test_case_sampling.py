"""Acceptance cases about sampling (C05, C07, C09, D10) on the real model, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_server import wait_until
from real_server import RealServer, streamed_text

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
PARIS = "Paris Paris Paris Paris"
STORY = "Once upon a time there was a little girl who"
SEEDS = range(20)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer("--max-num-seqs", "32", "--max-model-len", "1024")
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.fixture(autouse=True)
def _unharmed(server: RealServer) -> Iterator[None]:
    before = server.text()
    yield
    wait_until(server.idle, 5)
    assert server.text() == before


def ids(server: RealServer, prompt: Any, count: int, **options: Any) -> list[int]:
    answer = server.complete(prompt, max_tokens=count, ignore_eos=True, return_token_ids=True, **options)
    return answer["choices"][0]["token_ids"]


class TestPenalties:
    """C05: presence and frequency count what was generated; repetition counts the prompt too."""

    def test_the_prompt_is_not_punished(self, server: RealServer) -> None:
        first = ids(server, PARIS, 1)
        assert ids(server, PARIS, 1, presence_penalty=2) == first
        assert ids(server, PARIS, 1, frequency_penalty=2) == first

    def test_presence_is_a_bias_of_what_was_generated(self, server: RealServer) -> None:
        prompt = server.tokenize(PARIS)
        (first,) = ids(server, prompt, 1)
        biased = ids(server, [*prompt, first], 1, logit_bias={str(first): -2.0})
        assert ids(server, prompt, 2, presence_penalty=2)[1:] == biased

    def test_frequency_counts(self, server: RealServer) -> None:
        prompt = server.tokenize(PARIS)
        tokens = ids(server, prompt, 4, frequency_penalty=0.5)
        for step in range(1, 4):
            before = tokens[:step]
            bias = {str(token): -0.5 * before.count(token) for token in before}
            assert ids(server, prompt + before, 1, logit_bias=bias) == tokens[step : step + 1]

    @pytest.mark.parametrize("value", [2.5, -2.5])
    def test_beyond_two_is_refused(self, server: RealServer, value: float) -> None:
        error = server.complete(PARIS, expect=400, presence_penalty=value)["error"]
        assert error["param"] == "presence_penalty"


class TestBadWords:
    """C07: a banned word is banned in all its spellings."""

    def test_the_word_does_not_come_in_either_form(self, server: RealServer) -> None:
        word = self.one_token_only_after_a_space(server)
        for spelling in (word, f" {word}"):
            for seed in SEEDS:
                options = {"bad_words": [spelling], "max_tokens": 24, "temperature": 1.0, "seed": seed}
                text = server.text(STORY, **options)
                assert word not in text
                if seed < 3:
                    assert streamed_text(server.complete(STORY, stream=True, **options)) == text

    @staticmethod
    def one_token_only_after_a_space(server: RealServer) -> str:
        """A word of the plain answer; naming it without its space says nothing about that token."""

        def pieces(text: str) -> int:
            return len(server.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"])

        words = server.text(STORY, max_tokens=32).replace(",", " ").replace(".", " ").split()
        return next(w for w in words if len(w) > 3 and pieces(f" {w}") == 1 and pieces(w) > 1)

    def test_a_phrase_leaves_its_first_word_alone(self, server: RealServer) -> None:
        plain = server.text(STORY, max_tokens=32)
        phrase = plain.split()[0] + " " + plain.split()[1]
        assert phrase in plain
        assert phrase not in server.text(STORY, max_tokens=32, bad_words=[phrase])

    def test_an_empty_entry_is_refused(self, server: RealServer) -> None:
        error = server.complete(STORY, expect=400, bad_words=[""])["error"]
        assert error["param"] == "bad_words"

    def test_a_control_character_is_a_word_like_any_other(self, server: RealServer) -> None:
        assert "\0" not in server.text(STORY, max_tokens=8, bad_words=["\0"])


class TestTokenIds:
    """C09: ids outside the vocabulary are refused by name, and a neighbour does not notice."""

    @pytest.mark.parametrize(
        "field",
        [
            {"logit_bias": {"999999": -100}},
            {"logit_bias": {"-1": 5}},
            {"logit_bias": {"abc": 1}},
            {"stop_token_ids": [999_999], "min_tokens": 1},
            {"stop_token_ids": [-1]},
            {"allowed_token_ids": []},
            {"allowed_token_ids": [999_999]},
        ],
    )
    def test_outside(self, server: RealServer, field: dict[str, Any]) -> None:
        (name, *_) = field
        for stream in (False, True):
            error = server.complete(STORY, expect=400, stream=stream, **field)["error"]
            assert error["param"] == name


class TestEndTokens:
    """D10: the end token ends, whichever asks for it; ignore_eos lets it pass."""

    def test_a_forced_end_token(self, server: RealServer) -> None:
        question = [{"role": "user", "content": "Hi"}]
        end = server.post("/tokenize", prompt="<|im_end|>", add_special_tokens=False)["tokens"]
        assert len(end) == 1
        bias = {str(end[0]): 100}
        for path, body in (
            ("/v1/completions", {"prompt": STORY}),
            ("/v1/chat/completions", {"messages": question}),
        ):
            answer = server.post(path, logit_bias=bias, max_tokens=5, **body)
            choice = answer["choices"][0]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert (choice["finish_reason"], text) == ("stop", "")
            on = server.post(path, logit_bias=bias, max_tokens=5, ignore_eos=True, **body)
            assert on["choices"][0]["finish_reason"] == "length"
            assert on["usage"]["completion_tokens"] == 5

    def test_at_the_limit_it_is_still_a_stop(self, server: RealServer) -> None:
        end = server.post("/tokenize", prompt="<|im_end|>", add_special_tokens=False)["tokens"]
        answer = server.complete(STORY, logit_bias={str(end[0]): 100}, max_tokens=1)
        assert answer["choices"][0]["finish_reason"] == "stop"
        # A token of stop_token_ids ends too, with ignore_eos as well.
        (first,) = ids(server, STORY, 1)
        answer = server.complete(STORY, stop_token_ids=[first], ignore_eos=True, max_tokens=1)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["choices"][0]["stop_reason"] == first
