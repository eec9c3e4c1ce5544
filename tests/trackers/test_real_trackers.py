"""The real W&B without a network. Installs it."""

from pathlib import Path

import pytest
from environments import with_extras
from waiting import UNTIL_FRAMES
from watched_processes import Training

pytestmark = [pytest.mark.trackers, pytest.mark.timeout(900)]

SETTINGS = f"cartpole --actors 1 {UNTIL_FRAMES} --log-every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10"
OFFLINE = {"WANDB_MODE": "offline"}


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> Path:
    return with_extras(Path(request.config.cache.mkdir("trackers")) / "client", "wandb")


def test_points_and_evaluations_arrive(client: Path, tmp_path: Path) -> None:
    folder = tmp_path / "seed-1"
    settings = SETTINGS.replace("--evaluation.every-frames 0", "--evaluation.every-frames 3000")
    arguments = f"{settings} --evaluation.episodes 3 --trackers wandb --total-frames 1000M --run-dir {folder}"
    with Training(client, folder, arguments, **OFFLINE) as training:
        log = folder / "log.txt"
        evaluated = "evaluation of update"
        training.wait_for(lambda: log.is_file() and log.read_text().count(evaluated) >= 2, "two evaluations")
        training.interrupt()
    assert "warning" not in log.read_text()
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    (kept,) = offline.glob("run-*.wandb")
    for tag in ("return/mean_return_100", "return/evaluation_mean_return"):
        assert tag.encode() in kept.read_bytes()
