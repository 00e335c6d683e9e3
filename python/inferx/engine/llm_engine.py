"""LLMEngine: engine core, tokeniser and output processing in one process, stepped by the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from inferx.engine.args import EngineArgs
from inferx.engine.core import EngineCore
from inferx.engine.input_processor import InputProcessor
from inferx.engine.output_processor import OutputProcessor
from inferx.engine.protocol import EngineStats
from inferx.engine.structured.validator import GrammarValidator
from inferx.errors import RequestFailedError, request_failure
from inferx.outputs import RequestOutput
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams


class LLMEngine:
    """The synchronous engine behind ``LLM``.

    ``step`` computes one batch and returns a delta for every request that moved.  A request that failed
    inside the engine is returned once, as its RequestFailedError, and is forgotten; others go on.
    """

    def __init__(self, args: EngineArgs, *, show_progress: bool = False) -> None:
        self.core = EngineCore.load(args, show_progress=show_progress)
        self.tokenizer = self.core.tokenizer
        self.inputs = InputProcessor(
            self.tokenizer,
            vocab_size=self.core.info.vocab_size,
            max_model_len=self.core.info.max_model_len,
            max_num_seqs=self.core.info.max_num_seqs,
            eos_token_ids=self.core.model.config.eos_token_ids,
        )
        self.outputs = OutputProcessor(self.tokenizer)
        self.grammars = GrammarValidator(self.core.make_vocabulary())

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Queue a request; InvalidRequestError when it is malformed or can never fit.

        A grammar that is new is tried first, in a child process.
        """
        request = self.inputs.make_request(
            request_id, prompt_token_ids, params, priority=priority, cache_salt=cache_salt
        )
        if request.sampling_params.structured_outputs is not None:
            self.grammars.check(request.sampling_params.structured_outputs)
        self.core.add_request(request)
        self.outputs.add_request(request)

    def add_pooling_request(
        self, request_id: str, prompt_token_ids: list[int], params: PoolingParams, *, priority: int = 0
    ) -> None:
        """The same for an embedding of the prompt."""
        request = self.inputs.make_pooling_request(request_id, prompt_token_ids, params, priority=priority)
        params.validate(self.core.model.config.hidden_size)
        self.core.add_request(request)
        self.outputs.add_request(request)

    def abort(self, request_id: str) -> None:
        """Drop a request and free what it holds; unknown ids are ignored."""
        self.core.abort(request_id)
        self.outputs.abort(request_id)

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    def step(self) -> Iterator[tuple[str, RequestOutput | RequestFailedError]]:
        """Run one step; yields (request id, delta or failure)."""
        pending = deque(self.core.step())
        while pending:
            output = pending.popleft()
            result = self.outputs.process(output)
            for index in result.to_finish:
                pending.extend(self.core.finish_sample(output.request_id, index))
            if result.error is not None:
                self.abort(output.request_id)
                yield output.request_id, request_failure(result.error)
            elif result.request_output is not None:
                yield output.request_id, result.request_output

    def stats(self) -> EngineStats:
        return self.core.stats()
