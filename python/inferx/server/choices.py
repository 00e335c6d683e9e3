"""The state of one choice while its deltas come in; the same for streamed and whole answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferx.engine.protocol import RequestMetrics
from inferx.outputs import CompletionOutput
from inferx.server.generation import Job
from inferx.server.logprobs import AlignedToken, TokenAligner, TokenNames


@dataclass
class Delta:
    """What one output added to a choice."""

    text: str = ""
    tokens: list[AlignedToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def empty(self) -> bool:
        return not (self.text or self.tokens or self.token_ids or self.finish_reason)

    @staticmethod
    def joined(deltas: list[Delta]) -> Delta:
        """The whole answer of a choice."""
        return Delta(
            text="".join(d.text for d in deltas),
            tokens=[token for d in deltas for token in d.tokens],
            token_ids=[token for d in deltas for token in d.token_ids],
            finish_reason=deltas[-1].finish_reason if deltas else None,
        )


class Choice:
    """One sample of one prompt.  ``start``: characters of the choice's text that precede the output."""

    def __init__(self, index: int, job: Job, names: TokenNames, *, start: int = 0) -> None:
        self.index = index
        self.job = job
        self.started = False
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.metrics: RequestMetrics | None = None
        self._length = start
        self._aligner: TokenAligner | None = None
        if job.params.logprobs is not None:
            self._aligner = TokenAligner(
                names,
                start=start,
                show_special_tokens=not job.params.skip_special_tokens,
                shown=job.params.shown_special_token_ids,
            )

    def add(self, output: CompletionOutput) -> Delta:
        """Take an output of the engine; the text, and the tokens whose text is out by now."""
        self._length += len(output.text)
        delta = Delta(text=output.text, token_ids=list(output.token_ids))
        finished = output.finish_reason is not None
        if finished:
            self.finish_reason = delta.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason
            self.metrics = output.metrics
        if self._aligner is not None:
            self._aligner.push(output.token_ids, list(output.logprobs or []))
            cut = isinstance(output.stop_reason, str) and not self.job.params.include_stop_str_in_output
            delta.tokens = self._aligner.release(self._length, finished=finished, trim=finished and cut)
        return delta


def make_choices(jobs: list[Job], names: TokenNames, starts: list[int] | None = None) -> list[list[Choice]]:
    """Per job its samples; choice indices run through all of them, prompts first."""
    choices: list[list[Choice]] = []
    index = 0
    for number, job in enumerate(jobs):
        start = starts[number] if starts else 0
        choices.append([Choice(index + i, job, names, start=start) for i in range(job.params.n)])
        index += job.params.n
    return choices
