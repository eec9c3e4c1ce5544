"""`train` in a driver process of its own, for programs whose TensorFlow, Ray and signal handlers stay untouched.

Both processes exchange messages over one connection, in MessagePack: the call, and requests to stop, go
to the child; events and the outcome come back. The child inherits the connection as `python -m launch.driver
DESCRIPTOR`. The child's output is not read.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, Literal, Unpack

import msgspec

from launch.interrupts import Interrupts, StopRequest, blocked, take_all
from launch.machine import module_command, module_environment, open_standard_streams
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, resilient_stdio
from launch.run.events import Event
from launch.run.folder import trust_environment
from launch.settings.resolve import TrainOptions
from launch.tensorflow_setup import set_tensorflow_variables
from launch.train import OnEvent, Result, train
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError

_POLL_SECONDS = 0.2


class _Call(msgspec.Struct, frozen=True):
    config: RunConfig
    folder: Path
    options: TrainOptions
    command: list[str]


class _Request(msgspec.Struct, frozen=True):
    """The caller's `StopRequest`. `finish`: the reason of a request to stop. Sent again after every change."""

    finish: str | None = None
    at_once: bool = False
    numbers: dict[str, float] = {}


class _Outcome(msgspec.Struct, frozen=True, tag=True):
    """The result of `train`, or the message of its error."""

    kind: Literal["returned", "refused", "failed"]
    error: str = ""
    folder: str = ""
    summary: dict[str, Any] = {}
    trained: bool = True


_DECODER: msgspec.msgpack.Decoder[Event | _Outcome] = msgspec.msgpack.Decoder(Event | _Outcome)


def train_in_process(
    config: RunConfig,
    folder: Path,
    on_event: OnEvent,
    *,
    stop: StopRequest | None = None,
    command: Sequence[str] | None = None,
    output: IO[str] | int | None = None,
    **options: Unpack[TrainOptions],
) -> Result:
    """Train in a process of its own; see `train`, whose arguments and errors it has. Thread-safe.

    The run is saved when this process dies. `stop.at_once` ends it without saving.

    Args:
        command: the command line for the run's manifest. None: that of this process.
        output: file of the child's standard output and errors. None: those of this process.
    """
    # The connection must not have the number of a stream, which the child replaces.
    open_standard_streams()
    trust_environment(config.environment)
    call = _Call(config, folder.absolute(), options, list(command or ["tributary", *sys.argv[1:]]))
    here, there = Pipe()
    with here:
        with there:
            process = subprocess.Popen(
                module_command("launch.driver", str(there.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                # Ctrl-C and a closed terminal reach it by this process, once.
                process_group=0,
                env=module_environment(),
                pass_fds=[there.fileno()],
            )
        # MessagePack has no paths.
        _send(here, msgspec.msgpack.encode(call, enc_hook=str))
        outcome = _follow(here, on_event, stop or StopRequest())
        code = process.wait()
    if isinstance(outcome, BaseException):
        raise outcome
    return _result(outcome, code)


def _send(connection: Connection, message: bytes) -> None:
    # The other process may have ended: its exit code has the reason, and a run without its caller is saved.
    with suppress(OSError):
        connection.send_bytes(message)


def _follow(connection: Connection, on_event: OnEvent, stop: StopRequest) -> "_Outcome | BaseException | None":
    """Pass events and requests on until the child has ended. Returns its outcome, or the caller's error."""
    # A thread receives: a KeyboardInterrupt in the middle of a message would lose the rest of it, and a slow `on_event`
    # would block the child.
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), daemon=True).start()
    outcome: _Outcome | None = None
    error: BaseException | None = None
    sent = _Request()
    while True:
        try:
            request = _Request(stop.reason if stop.requested else None, stop.at_once, take_all(stop.numbers))
            # The same number may come again.
            if request != sent or request.numbers:
                _send(connection, msgspec.msgpack.encode(request))
                sent = request
            try:
                received = messages.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if received is None:
                return outcome if error is None else error
            message = _DECODER.decode(received)
            if isinstance(message, _Outcome):
                outcome = message
            elif error is None and on_event(message) is False:
                stop.request("a callback")
        except KeyboardInterrupt as interrupt:
            error = interrupt
            stop.at_once |= stop.interrupted
            stop.requested = stop.interrupted = True
        # SystemExit too: the run would go on without its caller.
        except BaseException as raised:
            error = raised
            stop.request("a callback")


def _receive(connection: Connection, messages: "queue.SimpleQueue[bytes | None]") -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv_bytes())
    messages.put(None)


def _result(outcome: _Outcome | None, code: int) -> Result:
    """The result of a process that sent `outcome` and ended with an exit code; or its error, raised."""
    if outcome is not None and outcome.kind == "returned":
        return Result(Path(outcome.folder), outcome.summary, outcome.trained)
    if outcome is not None:
        raise (ConfigurationError if outcome.kind == "refused" else TrainingFailedError)(outcome.error)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    raise TrainingFailedError(f"the process of the run {ended}")


def main(descriptor: str) -> int:
    """Train by the call that comes over a connection. Returns the exit code."""
    connection = Connection(int(descriptor))
    call = msgspec.msgpack.decode(connection.recv_bytes(), type=_Call, dec_hook=lambda kind, text: kind(text))
    # The command of the manifest.
    sys.argv = call.command
    # A worker of Ray has it blocked, and its children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)
    with Interrupts() as interrupts:
        # SIGTERM goes to the main thread, which holds it back while Ray starts.
        with blocked(signal.SIGTERM):
            threading.Thread(target=_take_requests, args=(connection, interrupts), daemon=True).start()

        def send(message: Event | _Outcome) -> None:
            _send(connection, msgspec.msgpack.encode(message))

        try:
            result = train(call.config, call.folder, send, stop=interrupts, **call.options)
            send(_Outcome("returned", "", str(result.folder), result.summary, result.trained))
        except ConfigurationError as error:
            send(_Outcome("refused", str(error)))
        except TrainingFailedError as error:
            send(_Outcome("failed", str(error)))
        except KeyboardInterrupt:
            # At once: a thread that trains would be waited for.
            os._exit(EXIT_INTERRUPTED)
        except Exception as error:
            traceback.print_exc()
            send(_Outcome("failed", f"{type(error).__name__}: {error}"))
            return EXIT_FAILED
    return EXIT_DONE


def _take_requests(connection: Connection, interrupts: Interrupts) -> None:
    """Pass requests on to the run. Without a parent it is saved and ends, for nobody would stop it."""
    try:
        while True:
            request = msgspec.msgpack.decode(connection.recv_bytes(), type=_Request)
            interrupts.numbers.append(request.numbers)
            if request.finish is not None:
                interrupts.request(request.finish)
                # `at_once` is a second one.
                interrupts.interrupted = True
            if request.at_once:
                os.kill(os.getpid(), signal.SIGINT)
    except (EOFError, OSError):
        # Not as a second Ctrl-C.
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    set_tensorflow_variables()
    with resilient_stdio():
        code = main(*sys.argv[1:])
    sys.exit(code)
