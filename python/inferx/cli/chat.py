"""``inferx chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from inferx.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    SamplingOptions,
    takes_engine_options,
    takes_sampling_options,
)
from inferx.cli.report import latency_line
from inferx.engine.args import EngineArgs
from inferx.errors import InferxError, InvalidRequestError

if TYPE_CHECKING:
    from inferx.engine.protocol import RequestMetrics
    from inferx.llm import LLM
    from inferx.sampling_params import SamplingParams

HELP = (
    "/reset forgets the conversation, /system TEXT sets the system prompt, /stats toggles timings, /exit ends"
)
MIN_ANSWER_TOKENS = 64  # history is dropped until at least this much room is left


class Conversation:
    """Messages so far; the oldest exchanges leave when the context is full."""

    def __init__(self, llm: LLM, system: str | None) -> None:
        self.llm = llm
        self.system = system
        self.turns: list[dict[str, str]] = []

    def reset(self) -> None:
        self.turns = []

    def ask(self, text: str) -> tuple[list[int], int]:
        """Add the question; the prompt's token ids, and how many exchanges had to be dropped.

        InvalidRequestError when the question alone is too long; the conversation is then unchanged.
        """
        self.turns.append({"role": "user", "content": text})
        room = self.llm.engine.inputs.max_model_len - MIN_ANSWER_TOKENS
        dropped = 0
        try:
            ids = self._encode(self.turns)
            while len(ids) > room and len(self.turns) - 2 * dropped > 1:
                dropped += 1
                ids = self._encode(self.turns[2 * dropped :])
            if len(ids) > room:
                raise InvalidRequestError(
                    f"the question has {len(ids)} tokens; the context takes {room} beside an answer"
                )
        except Exception:
            self.turns.pop()
            raise
        del self.turns[: 2 * dropped]
        return ids, dropped

    def answer(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def _encode(self, turns: list[dict[str, str]]) -> list[int]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages: list[dict[str, Any]] = [*system, *turns]
        return self.llm.get_tokenizer().encode_chat(messages)


@takes_engine_options
@takes_sampling_options
def chat(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEFAULT_MODEL,
    model_option: Annotated[str | None, typer.Option("--model", "-m", hidden=True)] = None,
    system: Annotated[str | None, typer.Option("--system", help="System prompt.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print where the time went, on stderr.")] = False,
    sampling: SamplingOptions = SamplingOptions({"generation_config": "auto"}),  # noqa: B008
    engine_args: EngineArgs = EngineArgs(),  # noqa: B008 (replaced by the flags)
) -> None:
    """Talk to a model.  Ctrl-C stops an answer, Ctrl-D or /exit ends."""
    from inferx.cli.load import load

    llm = load(msgspec.structs.replace(engine_args, model=model_option or model))
    if not llm.get_tokenizer().has_chat_template:
        raise InvalidRequestError(f"{model_option or model} has no chat template; use inferx generate")
    params = sampling.params(llm.default_sampling_params())
    session = Session(Conversation(llm, system), params, stats)
    session.run()


class Session:
    """Reads lines, answers them."""

    def __init__(self, conversation: Conversation, params: SamplingParams, stats: bool) -> None:
        self.conversation = conversation
        self.params = params
        self.stats = stats
        self.notes = Console(stderr=True, highlight=False)
        self.interactive = sys.stdin.isatty()

    def run(self) -> None:
        if self.interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (line editing and history for input())
            self.notes.print(f"[dim]{HELP}[/dim]")
        for line in self._lines():
            if line.startswith("/"):
                if not self._command(line):
                    return
            elif line.strip():
                try:
                    self._answer(line)
                except InferxError as error:
                    self._note(f"error: {error}")

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                yield input("> " if self.interactive else "")
            except EOFError:
                return
            except KeyboardInterrupt:
                print()

    def _command(self, line: str) -> bool:
        """Run a command; False means end."""
        name, _, rest = line.partition(" ")
        if name in ("/exit", "/quit", "/bye"):
            return False
        if name == "/reset":
            self.conversation.reset()
            self._note("the conversation starts anew")
        elif name == "/system":
            self.conversation.system = rest.strip() or None
            self.conversation.reset()
            self._note("system prompt set; the conversation starts anew")
        elif name == "/stats":
            self.stats = not self.stats
        else:
            self._note(HELP)
        return True

    def _answer(self, question: str) -> None:
        ids, dropped = self.conversation.ask(question)
        if dropped:
            self._note(f"the context is full: forgot the oldest {dropped} exchange(s)")
        pieces: list[str] = []
        metrics: RequestMetrics | None = None
        stream = self.conversation.llm.stream(ids, self.params)
        try:
            for output in stream:
                sample = output.outputs[0]
                pieces.append(sample.text)
                metrics = sample.metrics or metrics
                sys.stdout.write(sample.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            self._note("\nstopped")
        finally:
            stream.close()  # type: ignore[attr-defined]  # a generator: closing it aborts the request
            sys.stdout.write("\n")
            sys.stdout.flush()
            self.conversation.answer("".join(pieces))
        if self.stats and metrics is not None:
            self._note(latency_line(metrics))

    def _note(self, text: str) -> None:
        self.notes.print(text, style="dim", markup=False, soft_wrap=True)
