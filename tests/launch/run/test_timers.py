"""When the actions of a run are due, and which intervals they begin."""

from launch.run.timers import Timer


def test_an_interval_ends_by_seconds_or_by_frames() -> None:
    now, called = [100.0, 1_000], list[tuple[float, str]]()

    def save() -> None:
        called.append((now[0], "save"))
        # It takes three seconds.
        now[0] += 3.0

    begin = (100.0, 1_000)
    timers = (
        Timer(save, seconds=60.0, frames=500, at_multiples=True, since=begin),
        Timer(lambda: called.append((now[0], "row")), seconds=1e9, frames=400, since=begin),
        Timer(lambda: called.append((now[0], "view")), seconds=64.0, since=begin),
    )
    for seconds, frames in ((159.9, 1_399), (160.0, 1_400), (222.9, 1_499), (223.0, 1_499), (226.5, 1_500)):
        now[:] = seconds, frames
        for timer in timers:
            timer.tick(lambda: (now[0], now[1]))
    # 223 seconds are 60 after the first save, and 1,500 frames are a multiple. A timer without frames has its seconds.
    assert called == [(160.0, "save"), (163.0, "row"), (222.9, "view"), (223.0, "save"), (226.5, "save")]
