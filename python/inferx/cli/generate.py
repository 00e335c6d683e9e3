"""``inferx generate``: complete one prompt and print the text as it comes."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from inferx.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    SamplingOptions,
    takes_engine_options,
    takes_sampling_options,
)
from inferx.cli.report import latency_line
from inferx.engine.args import EngineArgs
from inferx.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 256


@takes_engine_options
@takes_sampling_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")],
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask it as a question, through the chat template.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print where the time went, on stderr.")] = False,
    sampling: SamplingOptions = SamplingOptions({"generation_config": "auto"}),  # noqa: B008
    engine_args: EngineArgs = EngineArgs(),  # noqa: B008 (replaced by the flags)
) -> None:
    """Continue a prompt."""
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt:
        raise InvalidRequestError("the prompt is empty")
    from inferx.cli.load import load

    llm = load(msgspec.structs.replace(engine_args, model=model))
    params = sampling.params(llm.default_sampling_params())
    if params.max_tokens is None:
        params.max_tokens = DEFAULT_MAX_TOKENS
    ids: str | list[int] = prompt
    if chat:
        ids = llm.get_tokenizer().encode_chat([{"role": "user", "content": prompt}])
    metrics = None
    for output in llm.stream(ids, params):
        sample = output.outputs[0]
        sys.stdout.write(sample.text)
        sys.stdout.flush()
        metrics = sample.metrics or metrics
    sys.stdout.write("\n")
    sys.stdout.flush()
    if stats and metrics is not None:
        print(latency_line(metrics), file=sys.stderr)
