"""`train` in a driver process of its own, for programs whose TensorFlow, Ray and signal handlers stay untouched.

Both processes exchange objects over one connection: the call, and requests to stop, go to the child; events and the
result, or the error, come back. The child inherits the connection as `python -m launch.driver DESCRIPTOR`. The child's
output is not read.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

import msgspec

from launch.interrupts import Interrupts, StopRequest, take_all
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, resilient_stdio, unexpected
from launch.processes import module_command, module_environment, of_this_process, search_also, searched_folders
from launch.run.events import Event
from launch.run.modules import trust_environment
from launch.tensorflow_setup import set_tensorflow_variables
from launch.train import OnEvent, Result, train
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError

_POLL_SECONDS = 0.2


def train_in_process(
    config: RunConfig,
    folder: Path,
    on_event: OnEvent,
    *,
    stop: StopRequest | None = None,
    command: Sequence[str] | None = None,
    output: IO[str] | int | None = None,
    **options: Any,
) -> Result:
    """Train in a process of its own; see `train`, whose arguments and errors it has. Thread-safe.

    The run is saved when this process dies. A second KeyboardInterrupt ends it without saving.

    Args:
        command: the command line for the run's manifest. None: that of this process.
        output: file of the child's standard output and errors. None: those of this process.
    """
    trust_environment(config.environment)
    # Without types of the caller, such as an enumeration of texts, which the child cannot import.
    plain, words = msgspec.to_builtins(config), list(command or ["tributary", *sys.argv[1:]])
    call = plain, folder.absolute(), options, words, searched_folders()
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
        of_this_process(here)
        _send(here, call)
        outcome = _follow(here, process, on_event, stop or StopRequest())
    code = process.wait()
    if isinstance(outcome, Result):
        return outcome
    if outcome is not None:
        raise outcome
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    raise TrainingFailedError(f"the process of the run {ended}")


def _send(connection: Connection, message: Any) -> None:
    # The other process may have ended: its exit code has the reason, and a run without its caller is saved.
    with suppress(OSError):
        connection.send(message)


def _follow(
    connection: Connection, process: subprocess.Popen[bytes], on_event: OnEvent, stop: StopRequest
) -> Result | BaseException | None:
    """Pass events and requests on until the child has ended. Returns its result or error, or the caller's error."""
    # A thread receives: a KeyboardInterrupt in the middle of a message would lose the rest of it, and a slow `on_event`
    # would block the child.
    messages: queue.SimpleQueue[Event | Result | Exception | None] = queue.SimpleQueue()
    threading.Thread(target=receive, args=(connection, messages), daemon=True).start()
    outcome: Result | Exception | None = None
    error: BaseException | None = None
    at_once, sent = False, tuple[str | None, bool]((None, False))
    ended = False
    while True:
        try:
            # The reason of a request to stop, whether at once, and numbers for the next row.
            request, numbers = (stop.reason if stop.requested else None, at_once), take_all(stop.numbers)
            if request != sent or numbers:
                _send(connection, (*request, numbers))
                sent = request
            try:
                message = messages.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                # The stream may have no end: a process that an environment has started may keep it open.
                if ended:
                    return outcome if error is None else error
                ended = process.poll() is not None
                continue
            if message is None:
                return outcome if error is None else error
            if isinstance(message, Result | Exception):
                outcome = message
            elif error is None and on_event(message) is False:
                stop.request("a callback")
        except KeyboardInterrupt as interrupt:
            error = interrupt
            at_once |= stop.interrupted
            stop.requested = stop.interrupted = True
        # SystemExit too: the run would go on without its caller.
        except BaseException as raised:
            error = raised
            stop.request("a callback")


def receive(connection: Connection, messages: "queue.SimpleQueue[Event | Result | Exception | None]") -> None:
    """Put each message of a connection into the queue, and None at its end."""
    try:
        with suppress(EOFError, OSError):
            while True:
                messages.put(connection.recv())
    finally:
        messages.put(None)


def main(descriptor: str) -> int:
    """Train by the call that comes over a connection. Returns the exit code."""
    connection = Connection(int(descriptor))
    # The command is that of the manifest.
    plain, folder, options, sys.argv, folders = connection.recv()
    search_also(folders)
    # A worker of Ray has it blocked, and its children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)
    with Interrupts() as interrupts:
        threading.Thread(target=_take_requests, args=(connection, interrupts), daemon=True).start()
        send = partial(_send, connection)
        try:
            send(train(msgspec.convert(plain, RunConfig), folder, send, stop=interrupts, **options))
        except (ConfigurationError, TrainingFailedError) as error:
            send(error)
        except KeyboardInterrupt:
            # At once: a thread that trains would be waited for.
            os._exit(EXIT_INTERRUPTED)
        except Exception as error:
            send(TrainingFailedError(unexpected(error)))
            return EXIT_FAILED
    return EXIT_DONE


def _take_requests(connection: Connection, interrupts: Interrupts) -> None:
    """Pass requests on to the run. Without a parent it is saved and ends, for nobody would stop it."""
    try:
        while True:
            reason, at_once, numbers = connection.recv()
            interrupts.numbers.update(numbers)
            if reason is not None:
                interrupts.request(reason)
                # `at_once` is a second one.
                interrupts.interrupted = True
            if at_once:
                os.kill(os.getpid(), signal.SIGINT)
    except (EOFError, OSError):
        # Not as a second Ctrl-C.
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    set_tensorflow_variables()
    with resilient_stdio():
        code = main(*sys.argv[1:])
    sys.exit(code)
