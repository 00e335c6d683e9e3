"""``inferx chat``: history, its commands, and what happens when the context is full."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from inferx.cli.chat import MIN_ANSWER_TOKENS, Conversation, Session
from inferx.engine.protocol import RequestMetrics
from inferx.errors import InvalidRequestError, RequestFailedError
from inferx.outputs import CompletionOutput, RequestOutput
from inferx.sampling_params import SamplingParams


class FakeLLM:
    """One token per word; answers ``ok N`` where N counts the calls."""

    def __init__(self, context: int = MIN_ANSWER_TOKENS + 40) -> None:
        self.engine = SimpleNamespace(inputs=SimpleNamespace(max_model_len=context))
        self.conversations: list[list[dict[str, str]]] = []
        self.interrupt = False
        self.closed = 0
        self.fail = False

    def get_tokenizer(self) -> FakeLLM:
        return self

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        self.conversations.append([dict(m) for m in messages])
        return [0] * sum(len(m["content"].split()) for m in messages)

    def stream(self, ids: list[int], params: SamplingParams) -> Iterator[RequestOutput]:
        try:
            if self.fail:
                raise RequestFailedError("non-finite logits")
            for piece in ("ok ", str(len(self.conversations))):
                sample = CompletionOutput(0, text=piece, metrics=RequestMetrics(num_prompt_tokens=len(ids)))
                yield RequestOutput("0", None, ids, [sample])
                if self.interrupt:
                    raise KeyboardInterrupt
        finally:
            self.closed += 1


@pytest.fixture
def llm() -> FakeLLM:
    return FakeLLM()


def talk(
    llm: Any, monkeypatch: pytest.MonkeyPatch, *lines: str, system: str | None = None, **options: Any
) -> Session:
    waiting = iter(lines)

    def read(prompt: str = "") -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", read)
    session = Session(Conversation(llm, system), SamplingParams(), options.get("stats", False))
    session.run()
    return session


def test_history_goes_along(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    talk(llm, monkeypatch, "first", "", "second", system="be brief")
    assert capsys.readouterr().out == "ok 1\nok 2\n"
    assert [(m["role"], m["content"]) for m in llm.conversations[-1]] == [
        ("system", "be brief"),
        ("user", "first"),
        ("assistant", "ok 1"),
        ("user", "second"),
    ]


def test_commands(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    talk(
        llm,
        monkeypatch,
        "one",
        "/reset",
        "two",
        "/system be kind",
        "three",
        "/stats",
        "four",
        "/what",
        "/exit",
        "x",
    )
    roles = [[m["content"] for m in c] for c in llm.conversations]
    assert roles == [["one"], ["two"], ["be kind", "three"], ["be kind", "three", "ok 3", "four"]]
    err = capsys.readouterr().err
    assert "prompt 6 tokens" in err
    assert "/reset" in err  # the help, for an unknown command


def test_oldest_exchanges_leave_a_full_context(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    talk(llm, monkeypatch, *(f"{n} " * 11 for n in "abcd"), system="s")
    assert [m["content"][:2].strip() for m in llm.conversations[-1]] == ["s", "b", "ok", "c", "ok", "d"]
    assert "forgot the oldest 1 exchange" in capsys.readouterr().err


def test_question_that_is_too_long_changes_nothing(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    session = talk(llm, monkeypatch, "a", "b " * 41, "c")
    assert "41 tokens; the context takes 40" in capsys.readouterr().err
    assert [m["content"] for m in session.conversation.turns] == ["a", "ok 1", "c", "ok 4"]
    with pytest.raises(InvalidRequestError):
        session.conversation.ask("b " * 41)


def test_interrupt_keeps_what_was_said(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    llm.interrupt = True
    session = talk(llm, monkeypatch, "a")
    assert session.conversation.turns[-1] == {"role": "assistant", "content": "ok "}
    assert llm.closed == 1
    assert "stopped" in capsys.readouterr().err


def test_a_failed_answer_does_not_end_the_session(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    llm.fail = True
    talk(llm, monkeypatch, "a", "/exit")
    assert "non-finite logits" in capsys.readouterr().err
