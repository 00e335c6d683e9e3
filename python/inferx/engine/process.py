"""The engine process: ``python -m inferx.engine.process``, started by ``AsyncEngine``.

It reads its options as one JSON line on standard input, connects to the front end's two sockets, loads
the model, answers Ready or StartupFailed, then steps while there is work.  Standard input stays open:
its end means that the front end is gone, and the process ends with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import msgspec

# The spin count must be in the environment before libgomp is loaded (with torch); inferx sets it.
import inferx  # noqa: F401  isort: skip
import zmq

from inferx.engine import wire
from inferx.engine.args import EngineArgs
from inferx.engine.core import EngineCore
from inferx.engine.scheduler import QueueFullError
from inferx.errors import InvalidRequestError, LoadError, MemoryBudgetError
from inferx.heap import settle_heap

logger = logging.getLogger("inferx.engine")


class LaunchOptions(msgspec.Struct):
    """The line on standard input."""

    args: EngineArgs
    to_core: str  # socket addresses, bound by the front end
    from_core: str
    show_progress: bool = False


def main() -> int:
    """Run until Shutdown arrives or the front end goes away; the exit code."""
    # The front end decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=LaunchOptions)
    sockets = Path(options.to_core.removeprefix("ipc://")).parent
    threading.Thread(target=_exit_with_parent, args=(sockets,), daemon=True).start()
    context = zmq.Context()
    inbox = context.socket(zmq.PULL)
    inbox.connect(options.to_core)
    outbox = context.socket(zmq.PUSH)
    outbox.connect(options.from_core)
    try:
        core = _load(options, outbox)
        if core is None:
            return 1
        settle_heap()
        outbox.send(wire.encoder.encode(wire.Ready(core.info)))
        _serve(core, inbox, outbox)
        return 0
    finally:
        inbox.close(linger=0)
        outbox.close(linger=2000)
        context.term()


def _load(options: LaunchOptions, outbox: zmq.Socket[bytes]) -> EngineCore | None:
    try:
        return EngineCore.load(options.args, show_progress=options.show_progress)
    except MemoryBudgetError as error:
        failure = wire.StartupFailed("memory", str(error))
    except LoadError as error:
        failure = wire.StartupFailed("load", str(error))
    except InvalidRequestError as error:
        failure = wire.StartupFailed("invalid", str(error), error.param)
    except Exception as error:  # the front end must hear of it, whatever it is
        logger.exception("the engine failed to start")
        failure = wire.StartupFailed("internal", f"{type(error).__name__}: {error}")
    outbox.send(wire.encoder.encode(failure))
    return None


def _serve(core: EngineCore, inbox: zmq.Socket[bytes], outbox: zmq.Socket[bytes]) -> None:
    idle_work = False
    while True:
        # Idle: wait for a message.  Busy: take what has come and go on with the next step.
        if inbox.poll(timeout=0 if core.has_work or idle_work else None):
            while True:
                try:
                    raw = inbox.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if not _handle(core, wire.to_core_decoder.decode(raw), outbox):
                    return
        if core.has_work:
            outbox.send(wire.encoder.encode(wire.Step(core.step(), core.stats())))
            idle_work = True
        elif idle_work:
            idle_work = core.work_while_idle()


def _handle(core: EngineCore, message: wire.ToCore, outbox: zmq.Socket[bytes]) -> bool:
    """Apply one message; False means stop."""
    if isinstance(message, wire.AddRequest):
        try:
            core.add_request(message.request)
        except InvalidRequestError as error:
            rejection = wire.Rejected(message.request.request_id, str(error), error.param)
            outbox.send(wire.encoder.encode(rejection))
        except QueueFullError as error:
            rejection = wire.Rejected(message.request.request_id, str(error), kind="queue_full")
            outbox.send(wire.encoder.encode(rejection))
        except Exception as error:  # a bug that one request has found must not end the others
            logger.exception("admitting %s failed", message.request.request_id)
            core.abort(message.request.request_id)
            text = f"the engine could not take the request: {type(error).__name__}: {error}"
            rejection = wire.Rejected(message.request.request_id, text, kind="failed")
            outbox.send(wire.encoder.encode(rejection))
    elif isinstance(message, wire.AbortRequest):
        core.abort(message.request_id)
        # The aborted may have been the last one: report the idle state now, no step will.
        outbox.send(wire.encoder.encode(wire.Step([], core.stats())))
    elif isinstance(message, wire.FinishSample):
        last = core.finish_sample(message.request_id, message.index)
        outbox.send(wire.encoder.encode(wire.Step(last, core.stats())))
    else:
        return False
    return True


def _exit_with_parent(sockets: Path) -> None:
    # Not through sys.stdin: a thread inside its lock would abort the interpreter's own exit.
    while os.read(0, 4096):
        pass
    # A front end that was killed could not clean up.
    shutil.rmtree(sockets, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
