"""Work that is done over and over, and how long it takes."""

import time
from collections.abc import Callable
from typing import NamedTuple


class Work(NamedTuple):
    """A call, and the agent steps that it does its part of."""

    call: Callable[[], object]
    agent_steps: int


def seconds_per_agent_step(
    work: Work, opens: float, closes: float, clock: Callable[[], float] = time.monotonic
) -> float:
    """Over the calls between two moments of the clock, which all processes share, and at least one call.

    It works before and after as well: within, each process that is asked for the same finds the others at work.
    """
    while (first := clock()) < opens:
        work.call()
    last, calls = first, 0
    while True:
        work.call()
        now = clock()
        if now > closes and calls:
            return (last - first) / (calls * work.agent_steps)
        last, calls = now, calls + 1
