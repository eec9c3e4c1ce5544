"""The effect of each signal before, during and after training."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from launch.interrupts import Interrupts, blocked

KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {kind: signal.getsignal(kind) for kind in KINDS}
    yield
    assert {kind: signal.getsignal(kind) for kind in KINDS} == before


def send(kind: signal.Signals) -> None:
    os.kill(os.getpid(), kind)


@pytest.mark.parametrize("first", KINDS)
def test_the_first_signal_asks_and_a_second_one_from_the_keyboard_leaves(first: signal.Signals) -> None:
    with Interrupts() as interrupts, interrupts.training():
        assert not interrupts.asked
        send(first)
        assert interrupts.asked
        if first != signal.SIGINT:
            send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_hangups_and_terminations_only_ever_ask(kind: signal.Signals) -> None:
    with Interrupts() as interrupts, interrupts.training():
        send(signal.SIGINT)
        for _ in range(3):
            send(kind)
        assert interrupts.asked


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_that_comes_while_another_is_handled_does_not_wait_for_it(kind: signal.Signals) -> None:
    """A closed terminal and its shell send two within microseconds: the second may meet any line of the first."""

    def meet(_frame: object, event: str, _function: object) -> None:
        if event != "return" and sending:
            send(signal.SIGTERM)

    with Interrupts() as interrupts, interrupts.training():
        sending = True
        sys.setprofile(meet)
        try:
            send(kind)
        finally:
            sending = False
            sys.setprofile(None)


def test_a_hangup_ends_what_has_nothing_to_save_once_and_leaves_alone_what_is_saved() -> None:
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGHUP)
        # The shell's own, while processes are being ended.
        send(signal.SIGHUP)
    with Interrupts() as interrupts:
        with interrupts.training():
            pass
        send(signal.SIGHUP)


def test_a_hangup_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, interrupts.training():
            send(signal.SIGHUP)
            assert not interrupts.asked
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("outlives", [True, False])
def test_children_outlive_a_hangup_where_they_are_told_to(outlives: bool) -> None:
    with blocked(signal.SIGHUP) if outlives else nullcontext():
        child = subprocess.run(["sh", "-c", "kill -HUP $$; exit 7"], check=False)
    assert child.returncode == (7 if outlives else -signal.SIGHUP)
