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
        Timer(save, seconds=60.0, frames=500, at_multiples=True),
        Timer(lambda: called.append((now[0], "row")), seconds=1e9, frames=400),
    )
    timers.start()
    for seconds, frames in ((159.9, 1_399), (160.0, 1_400), (222.9, 1_499), (223.0, 1_499), (226.5, 1_500)):
        now[:] = seconds, frames
        timers.tick()
    # The row waits until both have acted. 223 seconds are 60 after the first save, and 1,500 frames are a multiple.
    assert called == [(160.0, "save"), (163.0, "row"), (223.0, "save"), (226.5, "save")]


def test_a_timer_of_seconds_alone_ignores_frames() -> None:
    timer = Timer(lambda: None, seconds=2.0, since=(1.0, 0))
    assert [timer.is_due(seconds, 10**9) for seconds in (2.9, 3.0)] == [False, True]
