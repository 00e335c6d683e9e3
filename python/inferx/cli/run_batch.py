"""``inferx run-batch``: answer a file of requests, without a server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from inferx.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    check_generation_config,
    parse_bytes,
    takes_engine_options,
)
from inferx.engine.args import EngineArgs
from inferx.errors import InferxError, InvalidRequestError
from inferx.pooling_params import DEFAULT_POOLING, POOLINGS

if TYPE_CHECKING:
    from inferx.server.args import ServerArgs
    from inferx.server.batch.record import CustomIds, Record

# Without a terminal: a line about as often.
REPORT_SECONDS = 10.0
SHOWN_ERRORS = 20


@takes_engine_options
def run_batch(
    file: Annotated[Path | None, typer.Argument(help="The requests: OpenAI's batch format, .jsonl.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input-file", "-i", help="The same.")] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output-file", "-o", help="The answers (FILE.output.jsonl).")
    ] = None,
    error_file: Annotated[
        Path | None, typer.Option("--error-file", "-e", help="Requests that failed (FILE.errors.jsonl).")
    ] = None,
    model: Annotated[str, typer.Option("--model", help=MODEL_HELP)] = DEFAULT_MODEL,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option("--served-model-name", help="Name in the requests; may be repeated."),
    ] = None,
    generation_config: Annotated[
        str, typer.Option("--generation-config", help="Sampling defaults: auto (the model's) or none.")
    ] = "auto",
    pooling: Annotated[
        str, typer.Option("--pooling", help=f"Of /v1/embeddings: {' or '.join(POOLINGS)}.")
    ] = DEFAULT_POOLING,
    max_body_size: Annotated[
        str, typer.Option("--max-body-size", help="Largest body of a request, for instance 16MiB.")
    ] = "16MiB",
    engine_args: EngineArgs = EngineArgs(),  # noqa: B008 (replaced by the flags)
) -> None:
    """Answer a file of requests.  Run again after any interruption, it goes on with what is missing."""
    source = _one_of(file, input_file)
    if pooling not in POOLINGS:
        raise InvalidRequestError(f"--pooling must be {' or '.join(POOLINGS)}, got {pooling!r}")
    from inferx.server.args import ServerArgs

    names = tuple(served_model_name or ())
    args = ServerArgs(
        served_model_names=names,
        generation_config=check_generation_config(generation_config),
        pooling=pooling,  # type: ignore[arg-type]
        max_body_bytes=parse_bytes(max_body_size, "max_body_size"),
    )
    engine_args = msgspec.structs.replace(
        engine_args, model=model, served_model_name=names[0] if names else None
    )
    output = output_file or source.with_name(f"{source.stem}.output.jsonl")
    errors = error_file or (output if output_file else source).with_suffix(".errors.jsonl")
    _check_paths(source, output, errors)
    ids = _check_input(source)
    from inferx.server.batch.record import Record

    record = Record(output, errors, ids)
    try:
        if record.num_cut:
            _say(f"cut off the {record.num_cut} bytes of lines that were not written to their end")
        if record.num_done:
            _say(f"{record.num_done} of {record.total} requests are done already")
        if record.num_done < record.total:
            asyncio.run(_run(engine_args, args, source, record))
    finally:
        record.close()
    _say(_summary(record, output, errors))


def _one_of(file: Path | None, input_file: Path | None) -> Path:
    if (file is None) == (input_file is None):
        raise InvalidRequestError("run-batch takes one file of requests: FILE or -i FILE")
    source = file or input_file
    assert source is not None
    if not source.is_file():
        raise InvalidRequestError(f"{source}: there is no such file")
    return source


def _check_paths(source: Path, output: Path, errors: Path) -> None:
    paths = {path.resolve() for path in (source, output, errors)}
    if len(paths) < 3:
        raise InvalidRequestError(
            f"input, output and errors must be three files, got {source}, {output}, {errors}"
        )


def _check_input(source: Path) -> CustomIds:
    from inferx.server.batch.answer import URLS
    from inferx.server.batch.run import check_file

    checked = check_file(source, URLS, None)
    if checked.errors:
        for error in checked.errors[:SHOWN_ERRORS]:
            where = "" if error["line"] is None else f", line {error['line']}"
            _say(f"{source}{where}: {error['message']}")
        raise InferxError(f"{source} is not a batch: {len(checked.errors)} errors, nothing was run")
    return checked.ids


async def _run(engine_args: EngineArgs, args: ServerArgs, source: Path, record: Record) -> None:
    from inferx.engine.async_engine import AsyncEngine
    from inferx.server.batch.answer import URLS, EngineGoneError, answer
    from inferx.server.batch.lines import request_lines
    from inferx.server.batch.run import BatchRun, concurrency
    from inferx.server.context import ServerContext

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    engine = AsyncEngine(engine_args, show_progress=True)
    try:
        await engine.start()
        context = ServerContext(engine, args)
        slots = asyncio.Semaphore(concurrency(context))
        with _progress(record) as on_answer:
            run = BatchRun(
                request_lines(source),
                URLS,
                record,
                lambda url, body: answer(context, url, body),
                slots,
                on_answer,
            )
            await run.run()
    except asyncio.CancelledError:
        _say(
            f"stopped with {record.num_done} of {record.total} requests done; the same command goes on with "
            "the others"
        )
        raise KeyboardInterrupt from None
    except EngineGoneError as error:
        raise InferxError(
            f"{error}, with {record.num_done} of {record.total} requests done; the same command goes on with "
            "the others"
        ) from error
    finally:
        await engine.shutdown()


@contextlib.contextmanager
def _progress(record: Record) -> Iterator[Callable[[], None]]:
    """What to call after each answer."""
    if not sys.stderr.isatty():
        yield _Lines(record)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("", total=record.total, completed=record.num_done, failed=record.failed)
        yield lambda: bar.update(task, completed=record.num_done, failed=record.failed)


class _Lines:
    """A line now and then, for logs."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._begun = self._last = time.monotonic()
        self._before = record.num_done

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last < REPORT_SECONDS:
            return
        self._last = now
        record = self._record
        rate = (record.num_done - self._before) / (now - self._begun)
        _say(f"{record.num_done} of {record.total} requests, {record.failed} failed, {rate:.1f} per second")


def _summary(record: Record, output: Path, errors: Path) -> str:
    text = f"{record.completed} answers in {output}"
    return f"{text}, {record.failed} failed requests in {errors}" if record.failed else text


def _say(text: str) -> None:
    print(f"inferx run-batch: {text}", file=sys.stderr, flush=True)
