"""Outputs between the receiver and a request's reader: order, joining, waiting."""

from __future__ import annotations

import asyncio

import pytest

from inferx.engine.mailbox import JOIN_FROM, Mailbox
from inferx.engine.protocol import RequestMetrics
from inferx.outputs import CompletionOutput, PositionLogprobs, RequestOutput


def delta(token: int, *, index: int = 0, **options: object) -> RequestOutput:
    sample = CompletionOutput(index, f"<{token}>", [token])
    for name, value in options.items():
        setattr(sample, name, value)
    return RequestOutput("r", None, [1], [sample], finished=sample.finish_reason is not None)


async def taken(mailbox: Mailbox) -> list[RequestOutput]:
    items = []
    while len(mailbox):
        item = await mailbox.get()
        assert isinstance(item, RequestOutput)
        items.append(item)
    return items


async def test_a_reader_that_keeps_up_gets_each_output() -> None:
    mailbox = Mailbox()
    seen = []

    async def read() -> None:
        while len(seen) < 50:
            item = await mailbox.get()
            assert isinstance(item, RequestOutput)
            seen.append(item.outputs[0].token_ids)

    reader = asyncio.ensure_future(read())
    for token in range(50):
        mailbox.put_nowait(delta(token))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await reader
    assert seen == [[token] for token in range(50)]


async def test_what_waits_is_joined_and_nothing_is_lost() -> None:
    mailbox = Mailbox()
    for token in range(1000):
        mailbox.put_nowait(delta(token))
    metrics = RequestMetrics(e2e_time=3.0)
    mailbox.put_nowait(delta(1000, finish_reason="length", metrics=metrics))
    assert len(mailbox) == JOIN_FROM
    items = await taken(mailbox)
    assert "".join(i.outputs[0].text for i in items) == "".join(f"<{t}>" for t in range(1001))
    assert [t for i in items for t in i.outputs[0].token_ids] == list(range(1001))
    assert [i.finished for i in items] == [False] * (JOIN_FROM - 1) + [True]
    assert items[-1].outputs[0].finish_reason == "length"
    assert items[-1].outputs[0].metrics == metrics


async def test_log_probabilities_stay_one_a_token() -> None:
    mailbox = Mailbox()
    for token in range(20):
        entry = PositionLogprobs([token], [-float(token)], 1)
        mailbox.put_nowait(delta(token, logprobs=[entry], cumulative_logprob=-float(token)))
    items = await taken(mailbox)
    entries = [e for i in items for e in i.outputs[0].logprobs or []]
    assert [e.token_ids for e in entries] == [[t] for t in range(20)]
    assert items[-1].outputs[0].cumulative_logprob == -19.0


async def test_samples_are_not_mixed() -> None:
    mailbox = Mailbox()
    for token in range(40):
        mailbox.put_nowait(delta(token, index=token % 2))
    items = await taken(mailbox)
    assert [i.outputs[0].token_ids for i in items] == [[t] for t in range(40)]


async def test_prompt_log_probabilities_are_kept() -> None:
    mailbox = Mailbox()
    for token in range(10):
        item = delta(token)
        item.prompt_logprobs = [None] if token == 7 else None
        mailbox.put_nowait(item)
    items = await taken(mailbox)
    assert sum(i.prompt_logprobs is not None for i in items) == 1


async def test_errors_come_after_what_was_there() -> None:
    mailbox = Mailbox()
    for token in range(10):
        mailbox.put_nowait(delta(token))
    mailbox.put_nowait(ValueError("x"))
    mailbox.put_nowait(delta(10))
    kinds = [type(await mailbox.get()).__name__ for _ in range(len(mailbox))]
    assert kinds == ["RequestOutput"] * JOIN_FROM + ["ValueError", "RequestOutput"]


async def test_a_cancelled_reader_loses_nothing() -> None:
    mailbox = Mailbox()
    reader = asyncio.ensure_future(mailbox.get())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    mailbox.put_nowait(delta(1))
    item = await asyncio.wait_for(mailbox.get(), 1)
    assert isinstance(item, RequestOutput)
    assert item.outputs[0].token_ids == [1]
