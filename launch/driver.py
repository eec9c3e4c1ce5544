"""`train` in a driver process of its own, for programs whose TensorFlow, Ray and signal handlers stay untouched.

Both processes exchange messages over one connection, in MessagePack: the call, and requests to stop or for weights, go
to the child; events and the outcome come back. The child inherits the connection as `python -m launch.driver
DESCRIPTOR`. What the child prints is not read.
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

from launch.interrupts import Interrupts, StopRequest, blocked
from launch.machine import module_command, module_environment, open_standard_streams
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, resilient_stdio
from launch.run.events import Event
from launch.run.folder import trust_environment
from launch.tensorflow_setup import filter_tensorflow_notices
from launch.train import OnEvent, Result, TrainingFailedError, TrainOptions, train
from shared.config import RunConfig
from shared.errors import ConfigurationError

_POLL_SECONDS = 0.2
_FINISH, _LEAVE, _WEIGHTS, _NUMBERS = b"finish", b"leave", b"weights", b"numbers"


class _Call(msgspec.Struct, frozen=True, tag=True):
    config: RunConfig
    folder: Path
    options: TrainOptions
    command: list[str]


class _Outcome(msgspec.Struct, frozen=True, tag=True):
    """What `train` returned, or the message of the error that it raised."""

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
        output: where the child's standard output and errors go. None: where those of this process go.
    """
    # The connection must not have the number of a stream, which the child replaces.
    open_standard_streams()
    stop = stop or StopRequest()
    trust_environment(config.environment)
    call = _Call(config, folder.absolute(), options, list(command or ["tributary", *sys.argv[1:]]))
    here, there = Pipe()
    with here:
        with there:
            errors = None if output is None else subprocess.STDOUT
            process = subprocess.Popen(
                module_command("launch.driver", str(there.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # Ctrl-C and a closed terminal reach it by this process, once.
                process_group=0,
                env=module_environment(),
                pass_fds=[there.fileno()],
            )
        child = _Child(process, here, on_event, stop)
        # MessagePack has no paths.
        child.send(msgspec.msgpack.encode(call, enc_hook=str))
        return child.follow()


class _Child:
    """The caller's side of a driver process."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection, on_event: OnEvent, stop: StopRequest):
        self._process, self._connection, self._on_event, self._stop = process, connection, on_event, stop
        self._finish_sent = self._leave_sent = False
        self._error: BaseException | None = None
        # A thread receives: a KeyboardInterrupt in the middle of a message would lose the rest of it, and a slow
        # `on_event` would block the child.
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(self, message: bytes) -> None:
        # A process that has ended takes no more, and its exit code has the reason.
        with suppress(OSError):
            self._connection.send_bytes(message)

    def follow(self) -> Result:
        """Pass its events on until it has ended. Returns or raises its outcome."""
        outcome: _Outcome | None = None
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            try:
                self._pass_stop_on()
                try:
                    received = self._messages.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    continue
                if received is None:
                    break
                message = _DECODER.decode(received)
                if isinstance(message, _Outcome):
                    outcome = message
                elif self._error is None and self._on_event(message) is False:
                    self._stop.request("a callback")
            except KeyboardInterrupt as error:
                if self._stop.interrupted:
                    self._stop.at_once = True
                self._error = error
                self._stop.requested = self._stop.interrupted = True
            except Exception as error:
                self._error = error
                self._stop.request("a callback")
        code = self._process.wait()
        if self._error is not None:
            raise self._error
        return self._result(outcome, code)

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._messages.put(self._connection.recv_bytes())
        self._messages.put(None)

    def _pass_stop_on(self) -> None:
        if self._stop.weights:
            self._stop.weights = False
            self.send(_WEIGHTS)
        if self._stop.numbers:
            self.send(_NUMBERS + msgspec.msgpack.encode(self._stop.take_numbers()))
        if self._stop.requested and not self._finish_sent:
            self._finish_sent = True
            self.send(_FINISH + self._stop.reason.encode())
        if self._stop.at_once and not self._leave_sent:
            self._leave_sent = True
            self.send(_LEAVE)

    def _result(self, outcome: _Outcome | None, code: int) -> Result:
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
    # What the manifest names.
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
            # Nobody may be there any more: the run is saved all the same.
            with suppress(OSError):
                connection.send_bytes(msgspec.msgpack.encode(message))

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
            request = connection.recv_bytes()
            if request.startswith(_FINISH):
                interrupts.request(request.removeprefix(_FINISH).decode())
                # The other request is a second one.
                interrupts.interrupted = True
            elif request == _WEIGHTS:
                interrupts.weights = True
            elif request.startswith(_NUMBERS):
                interrupts.numbers.update(msgspec.msgpack.decode(request.removeprefix(_NUMBERS)))
            else:
                os.kill(os.getpid(), signal.SIGINT)
    except (EOFError, OSError):
        # Not as a second Ctrl-C.
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    filter_tensorflow_notices()
    with resilient_stdio():
        code = main(*sys.argv[1:])
    sys.exit(code)
