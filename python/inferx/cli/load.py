"""Loading a model for a command that runs it in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inferx.engine.args import EngineArgs

if TYPE_CHECKING:
    from inferx.llm import LLM


def load(args: EngineArgs) -> LLM:
    """The model; the memory table and, on a terminal, a progress bar go to standard error.

    LoadError and its kin name what is wrong.
    """
    # Here and not above: torch takes a second to import, which --help and wrong flags need not wait for.
    from inferx.llm import LLM

    return LLM(show_progress=True, **msgspec.structs.asdict(args))
