"""TensorBoard and W&B get the rows of metrics.jsonl; their errors end no run."""

import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

from launch.run.events import Progress
from launch.run.tensorboard import TensorBoard, check_trackers, evaluation_scalars, scalars
from shared.config import RunConfig
from shared.errors import ConfigurationError

NAN, INF = float("nan"), float("inf")
ROW = Progress(
    frames=400,
    mean_return_100=12.5,
    gradient_norm=INF,
    policy_lag_counts={0: 3, 2: 1},
    agent_steps_dropped={"too_old": 20},
    stage_microseconds={"acting": 40.0},
    statistics={"entropy": 1.5, "value_loss": NAN},
    info={"success": 0.25, "failure": -INF},
    own={"angle": -0.5},
)
POINT = {"frames": 320, "mean_return": 11.0, "median_return": 10.0, "standard_error": NAN, "collapsed_episodes": None}


def test_known_and_finite_numbers_have_their_groups() -> None:
    values = scalars(ROW)
    expected = {
        "return/mean_return_100": 12.5,
        "learning/entropy": 1.5,
        "info/success": 0.25,
        "own/angle": -0.5,
        "agent_steps_dropped/too_old": 20,
        "stage_microseconds/acting": 40.0,
    }
    assert expected.items() <= values.items()
    assert not {"learning/gradient_norm", "learning/value_loss", "info/failure", "learning/passes"} & values.keys()
    assert evaluation_scalars(POINT) == {"return/evaluation_mean_return": 11.0, "return/evaluation_median_return": 10.0}


def course(folder: Path, name: str) -> list[tuple[int, float]]:
    """The frames and values of a curve."""
    events = EventAccumulator(str(folder), size_guidance={TENSORS: 0}).Reload()
    return [(point.step, float(tf.make_ndarray(point.tensor_proto))) for point in events.Tensors(f"return/{name}")]


def test_points_are_at_their_frames(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path, RunConfig(), print)
    for frames in (400, 800):
        tracker.write(replace(ROW, frames=frames, mean_return_100=1.0))
    tracker.write(replace(ROW, frames=2000, mean_return_100=None, evaluations=[POINT | {"frames": 1900}]))
    tracker.close()
    assert course(tmp_path, "mean_return_100") == [(400, 1.0), (800, 1.0)]
    assert course(tmp_path, "evaluation_mean_return") == [(1900, 11.0)]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands for the package `wandb`."""
    fake = Mock()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


WANDB = RunConfig(trackers=("wandb",))


def test_wandb_goes_on_under_the_id_of_the_run(tmp_path: Path, wandb: Mock) -> None:
    """What arrives there is in tests/trackers."""
    for manifest, seed in (("{1}", 1), ("{1}", 1), ("{2}", 2)):
        folder = tmp_path / "ours" / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(manifest)
        TensorBoard(folder, WANDB, pytest.fail).close()
    first, resumed, other = ((call.kwargs["id"], call.kwargs["name"]) for call in wandb.init.call_args_list)
    assert first == resumed
    assert first[0] != other[0]
    assert first[1] == "ours/seed-1"
    assert wandb.init.return_value.finish.call_count == 3


def test_wandb_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="--trackers wandb: is not installed"):
        check_trackers(WANDB)


@pytest.mark.parametrize("place", ["init", "init.return_value.finish"])
def test_a_wandb_that_fails_is_one_warning(place: str, tmp_path: Path, wandb: Mock) -> None:
    wandb.configure_mock(**{f"{place}.side_effect": KeyError("the server is away\nand why")})
    (tmp_path / "manifest.json").touch()
    logged = list[str]()
    tracker = TensorBoard(tmp_path, WANDB, logged.append)
    tracker.write(ROW)
    tracker.close()
    (warning,) = logged
    assert warning.startswith("warning: wandb: 'the server is away")
    assert course(tmp_path, "mean_return_100") == [(400, 12.5)]
