"""LLM: offline inference in the calling process, with vLLM's interface."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from rich.progress import Progress

from inferx.engine.args import DEFAULT_MODEL, EngineArgs
from inferx.engine.llm_engine import LLMEngine
from inferx.errors import InvalidRequestError, RequestFailedError
from inferx.loader.tokenizer import Tokenizer
from inferx.outputs import EmbeddingRequestOutput, RequestOutput
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams

# Options that vLLM calls otherwise.
VLLM_NAMES = {"num_gpu_blocks_override": "num_blocks"}
# Text, token ids, or a mapping with "prompt" or "prompt_token_ids".
Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"
Messages: TypeAlias = "Sequence[Mapping[str, Any]]"


class LLM:
    """A model loaded for offline use.

    model: a directory, a ``.gguf`` file, a hub id, or ``smollm2-135m-instruct``.  Further keyword
    arguments are those of ``EngineArgs``.  Raises LoadError, MemoryBudgetError or InvalidRequestError.

    >>> from inferx import LLM, SamplingParams
    >>> llm = LLM("smollm2-135m-instruct")
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text
    """

    def __init__(
        self, model: str = DEFAULT_MODEL, *, show_progress: bool = False, **engine_args: Any
    ) -> None:
        known = set(EngineArgs.__struct_fields__)
        for theirs, ours in VLLM_NAMES.items():
            if theirs in engine_args:
                engine_args.setdefault(ours, engine_args.pop(theirs))
        for name in engine_args:
            if name not in known:
                raise InvalidRequestError(
                    f"LLM has no option {name!r}; options: {', '.join(sorted(known))}", name
                )
        args = EngineArgs(model=str(model), **engine_args)
        args.validate()
        self.engine = LLMEngine(args, show_progress=show_progress)
        self._ids = itertools.count()
        # Several threads, and a stream with other calls between its items, may share the engine: whoever
        # steps it puts what came out into the inbox of whoever asked for it.
        self._lock = threading.RLock()
        self._inboxes: dict[str, deque[RequestOutput | RequestFailedError]] = {}

    # ---- public --------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def default_sampling_params(self) -> SamplingParams:
        """SamplingParams with the defaults of the model's generation_config.json."""
        defaults = self.engine.core.checkpoint.generation_config
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        return SamplingParams(**{n: defaults[n] for n in names if defaults.get(n) is not None})

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt; the answers come in the order of the prompts.

        All prompts are checked before the first one runs.  RequestFailedError when one of them failed
        inside the engine (the others are dropped).
        """
        return self._run(
            [self._encode(p) for p in _as_list(prompts)],
            sampling_params,
            use_tqdm=use_tqdm,
            priority=priority,
        )

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several: lists of ``{"role": ..., "content": ...}``."""
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise InvalidRequestError(
                f"messages must be a list of messages, or of such lists, got {type(messages).__name__}",
                "messages",
            )
        single = not messages or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if single else messages
        prompts = [
            (
                None,
                self.engine.tokenizer.encode_chat(
                    list(conversation),
                    add_generation_prompt=add_generation_prompt,
                    tools=tools,
                    **(chat_template_kwargs or {}),
                ),
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for every prompt, in their order.

        truncate_prompt_tokens: keep the last ones only; -1 keeps what fits the context.
        Errors as ``generate``.
        """
        pooling = pooling_params or PoolingParams()
        if not isinstance(pooling, PoolingParams):
            raise InvalidRequestError(
                f"pooling_params must be PoolingParams, got {type(pooling).__name__}", "pooling_params"
            )
        encoded = [
            (text, self._truncated(ids, truncate_prompt_tokens))
            for text, ids in map(self._encode, _as_list(prompts))
        ]
        merged: dict[str, RequestOutput] = {}
        try:
            for text, ids in encoded:
                request_id = str(next(self._ids))
                with self._lock:
                    self.engine.add_pooling_request(request_id, ids, pooling)
                    self._inboxes[request_id] = deque()
                merged[request_id] = RequestOutput.empty(request_id, text, ids)
            self._drain(merged, use_tqdm and len(encoded) > 1)
        finally:
            for request_id in merged:
                self._remove(request_id)
        return [EmbeddingRequestOutput.of(output) for output in merged.values()]

    def _truncated(self, ids: list[int], wanted: int | None) -> list[int]:
        if wanted is None:
            return ids
        most = self.engine.core.info.max_model_len
        if type(wanted) is not int or not (wanted == -1 or 1 <= wanted <= most):
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be -1 or from 1 to {most}, got {str(wanted)[:40]}",
                "truncate_prompt_tokens",
            )
        return ids[-(most if wanted == -1 else wanted) :]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yield deltas of one completion; leaving the iterator early aborts the request."""
        _, ids = self._encode(prompt)
        request_id = self._add(ids, sampling_params or self.default_sampling_params())
        try:
            finished = False
            while not finished:
                item = self._next(request_id)
                finished = item.finished
                yield item
        finally:
            self._remove(request_id)

    # ---- private -------------------------------------------------------------------------------

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self.engine.tokenizer.encode(prompt)
        if isinstance(prompt, Mapping):
            if prompt.get("prompt_token_ids") is not None:
                ids = prompt["prompt_token_ids"]
                if not _is_token_ids(ids):
                    raise InvalidRequestError(
                        f"prompt_token_ids must be a sequence of integers, got {type(ids).__name__}",
                        "prompts",
                    )
                return prompt.get("prompt"), list(ids)
            if isinstance(prompt.get("prompt"), str):
                return prompt["prompt"], self.engine.tokenizer.encode(prompt["prompt"])
            raise InvalidRequestError(
                f"a prompt mapping needs 'prompt' or 'prompt_token_ids', got keys {list(prompt)}", "prompts"
            )
        if _is_token_ids(prompt):
            return None, list(prompt)
        raise InvalidRequestError(
            f"a prompt must be text, token ids or a mapping, got {type(prompt).__name__}", "prompts"
        )

    def _run(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        use_tqdm: bool,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        params = self._params_list(sampling_params, len(prompts))
        if priority is not None and (not isinstance(priority, Sequence) or len(priority) != len(prompts)):
            raise InvalidRequestError(
                f"priority must have one entry per prompt ({len(prompts)}), got {priority!r}", "priority"
            )
        merged: dict[str, RequestOutput] = {}
        try:
            for i, ((text, ids), p) in enumerate(zip(prompts, params, strict=True)):
                request_id = self._add(ids, p, priority[i] if priority else 0)
                merged[request_id] = RequestOutput.empty(request_id, text, ids, p.n)
            self._drain(merged, use_tqdm and len(prompts) > 1)
        finally:
            for request_id in merged:
                self._remove(request_id)
        return list(merged.values())

    def _drain(self, merged: dict[str, RequestOutput], show: bool) -> None:
        with Progress(disable=not (show and sys.stderr.isatty()), transient=True) as bar:
            task = bar.add_task("prompts", total=len(merged))
            for request_id, output in merged.items():
                while not output.finished:
                    output.add(self._next(request_id))
                bar.advance(task)

    def _add(self, ids: list[int], params: SamplingParams, priority: int = 0) -> str:
        request_id = str(next(self._ids))
        with self._lock:
            self.engine.add_request(request_id, ids, params, priority=priority)
            self._inboxes[request_id] = deque()
        return request_id

    def _next(self, request_id: str) -> RequestOutput:
        """The request's next delta, stepping the engine until there is one.  RequestFailedError."""
        while True:
            # Taken anew for each step, so that other threads get their turn.
            with self._lock:
                inbox = self._inboxes[request_id]
                if inbox:
                    item = inbox.popleft()
                    break
                if not self.engine.has_work:
                    raise RequestFailedError(f"request {request_id} is not running any more")
                for owner, output in self.engine.step():
                    if owner in self._inboxes:
                        self._inboxes[owner].append(output)
        if isinstance(item, RequestFailedError):
            raise item
        return item

    def _remove(self, request_id: str) -> None:
        """Forget a request; it is aborted when it still runs."""
        with self._lock:
            self.engine.abort(request_id)
            self._inboxes.pop(request_id, None)

    def _params_list(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if params is None:
            params = self.default_sampling_params()
        if isinstance(params, SamplingParams):
            return [params] * count
        if not isinstance(params, Sequence) or isinstance(params, str) or len(params) != count:
            got = len(params) if isinstance(params, (list, tuple)) else repr(params)
            raise InvalidRequestError(
                f"sampling_params must be SamplingParams, or one for each of the {count} prompts, got {got}",
                "sampling_params",
            )
        return list(params)


def _is_token_ids(value: Any) -> TypeGuard[Sequence[int]]:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes, bytearray))
        and all(isinstance(t, int) and not isinstance(t, bool) for t in value)
    )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt may be given bare; a list of ints is one prompt of token ids."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, (bytes, bytearray)):
        raise InvalidRequestError(
            f"prompts must be a prompt or a sequence of prompts, got {type(prompts).__name__}", "prompts"
        )
    if prompts and _is_token_ids(prompts):
        return [prompts]
    return list(prompts)  # type: ignore[arg-type]
