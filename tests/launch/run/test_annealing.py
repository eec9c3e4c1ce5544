"""A learning rate that reaches 0 before the run does: the presets have none, and the others are told."""

from dataclasses import replace
from pathlib import Path

import pytest

from launch.cli import main
from launch.presets import PRESETS
from shared.config import OptimizerConfig


@pytest.mark.parametrize("name", PRESETS)
def test_presets_learn_until_they_end(name: str) -> None:
    config = PRESETS[name].config
    assert config.annealing_frames >= config.total_frames
    # Somebody who asks for more frames of a preset gets learning in all of them.
    longer = replace(config, total_frames=2 * config.total_frames)
    assert longer.annealing_frames >= longer.total_frames


COMMON = (
    "train cartpole --executor inline --actors 1 --total-frames 2000 --log-every-seconds 0.01 --network.hidden-sizes 8 "
    "--stop-at-return None --stop-measure training --evaluation.every-frames 0"
)


def test_a_rate_that_ends_before_the_run_is_warned_of_and_logged_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert main(f"{COMMON} --optimizer.annealing-frames 1000 --run-dir {folder}".split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--optimizer.annealing-frames 1,000 is before --total-frames 2,000" in shown
    assert (folder / "log.txt").read_text().count("the learning rate has reached 0") == 1


def test_a_rate_that_ends_with_the_run_is_not_spoken_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(f"{COMMON} --run-dir {folder}".split()) == 0
    assert "annealing" not in capsys.readouterr().out
    log = folder / "log.txt"
    assert not log.exists() or "learning rate" not in log.read_text()


def test_a_constant_rate_has_no_end() -> None:
    from launch.run.metrics import annealing_warning

    config = replace(PRESETS["pong"].config, optimizer=OptimizerConfig(schedule="constant", annealing_frames=1_000))
    assert annealing_warning(config) is None
    assert annealing_warning(replace(config, optimizer=OptimizerConfig(annealing_frames=1_000))) is not None
