"""Entry point: commands, and errors as one line on stderr with exit code 1."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from inferx.cli.chat import chat
from inferx.cli.env import env
from inferx.cli.generate import generate
from inferx.cli.run_batch import run_batch
from inferx.cli.serve import serve
from inferx.cli.vllm_flags import absent
from inferx.errors import InferxError

cli = typer.Typer(
    name="inferx",
    help="An LLM inference engine.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of flags on narrow terminals
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from inferx import __version__

        print(f"inferx {__version__}")
        raise typer.Exit


@cli.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


for command in (serve, generate, chat, run_batch, env):
    cli.command()(command)


def app(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code.  0 success, 1 error, 130 interrupted."""
    try:
        code = cli(args=arguments, standalone_mode=False)
    except BrokenPipeError:
        return _end_quietly()
    except (InferxError, OSError) as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        # typer's usage errors; their base class has moved between versions.
        if not hasattr(error, "format_message"):
            raise
        given = sys.argv[1:] if arguments is None else arguments
        return _fail(absent(getattr(error, "option_name", None) or "", given) or error.format_message())
    return code if isinstance(code, int) else 0


# Options whose flag is not their name with dashes.
FLAGS = {
    "num_blocks": "--num-gpu-blocks-override",
    "num_threads": "--threads",
    "kv_cache_memory_bytes": "--kv-cache-memory",
}
_OPTION = re.compile(rf"\b(?:{'|'.join(FLAGS)})\b")


def _fail(message: str) -> int:
    """Print an error, options by the names they have on the command line."""
    message = _OPTION.sub(lambda match: FLAGS[match[0]], message)
    print(f"inferx: error: {message}", file=sys.stderr)
    return 1


def _end_quietly() -> int:
    """The reader of our output has left (``inferx generate ... | head``); that is no error of ours."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(app())
