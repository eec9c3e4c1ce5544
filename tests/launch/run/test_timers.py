"""When the actions of a run are due, and which intervals they begin."""

from launch.run.timers import Timer, Timers


def test_an_interval_ends_by_seconds_or_by_frames() -> None:
    now, called = [100.0, 1_000], list[tuple[float, str]]()

    def save() -> None:
        called.append((now[0], "save"))
        # It takes three seconds.
        now[0] += 3.0

    timers = Timers(
        lambda: (now[0], now[1]),
        Timer(save, seconds=60.0),
        Timer(lambda: called.append((now[0], "row")), seconds=1e9, frames=400),
    )
    timers.start()
    for seconds, frames in ((159.9, 1_399), (160.0, 1_400), (222.9, 1_799), (223.0, 1_800), (226.5, 1_900)):
        now[:] = seconds, frames
        timers.tick()
    # The row waits until the save has ended, 60 seconds after which the next one is due.
    assert called == [(160.0, "save"), (163.0, "row"), (223.0, "save"), (226.0, "row")]


def test_a_timer_of_seconds_alone_ignores_frames() -> None:
    timer = Timer(lambda: None, seconds=2.0, since=(1.0, 0))
    assert [timer.is_due(seconds, 10**9) for seconds in (2.9, 3.0)] == [False, True]
