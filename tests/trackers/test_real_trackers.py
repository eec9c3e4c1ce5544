"""The real MLflow, killed and started again during a run, and the real W&B without a network. Installs both."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from environments import environment, with_extras
from mlflow_server import MlflowServer
from watched_processes import rows as rows_of
from watched_training import Training

pytestmark = [pytest.mark.trackers, pytest.mark.timeout(900)]

SETTINGS = (
    "cartpole --actors 1 --stop-at-return None --stop-measure training --evaluation.every-frames 0 "
    "--log-every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10"
)


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> Path:
    return with_extras(Path(request.config.cache.mkdir("trackers")) / "client", "wandb,mlflow")


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MlflowServer]:
    folder = tmp_path / "server"
    folder.mkdir()
    programs = environment(Path(request.config.cache.mkdir("trackers")) / "server", "mlflow>=3.17,<4")
    made = MlflowServer(programs / "mlflow", folder)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def frames_of(folder: Path) -> list[int]:
    return [row["frames"] for row in rows_of(folder)]


def newest(folder: Path) -> int:
    return max(frames_of(folder), default=0)


@pytest.mark.parametrize("executor", ["ray", "inline"])
def test_an_outage_costs_nothing_that_the_retries_of_mlflow_outlast(
    executor: str, client: Path, server: MlflowServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    arguments = f"{SETTINGS} --executor {executor} --trackers mlflow --total-frames 1000M --run-dir {folder}"
    training = Training(client, folder, arguments, MLFLOW_TRACKING_URI=server.url)
    try:
        ids = folder / "trackers.json"
        training.wait_for(ids.is_file, "a run at the server")
        run_id = json.loads(ids.read_text())["mlflow"]
        training.wait_for(lambda: len(server.steps(run_id)) >= 3, "rows at the server")
        server.kill()
        before = len(frames_of(folder))
        training.wait_for(lambda: len(frames_of(folder)) >= before + 10, "training during the outage")
        away_until = newest(folder)
        server.start()
        training.wait_for(lambda: server.steps(run_id)[-1] > away_until, "rows after the outage")
        # Until the server has nearly all: the end of a run waits for a tracker, but not for long.
        training.wait_for(lambda: len(server.steps(run_id)) >= len(frames_of(folder)) - 1, "the rows of the outage")
        summary = training.interrupt()
    finally:
        training.process.kill()
    assert summary["tracker_rows_left_out"] == {}, (folder / "log.txt").read_text()
    assert server.steps(run_id) == frames_of(folder)
    assert [run["info"]["status"] for run in server.runs()] == ["FINISHED"]


def test_an_answer_that_breaks_off_costs_no_row(client: Path, server: MlflowServer, tmp_path: Path) -> None:
    """As when the server is killed while it answers."""
    folder = tmp_path / "run"
    # The first carries the settings.
    with CuttingProxy(server.url, ("/mlflow/runs/log-batch", 3), ("/mlflow/runs/log-batch", 5)) as proxy:
        arguments = f"{SETTINGS} --executor inline --trackers mlflow --total-frames 1000M --run-dir {folder}"
        training = Training(client, folder, arguments, MLFLOW_TRACKING_URI=proxy.url)
        try:
            training.wait_for(lambda: len(frames_of(folder)) >= 8, "rows")
            run_id = json.loads((folder / "trackers.json").read_text())["mlflow"]
            training.wait_for(lambda: len(server.steps(run_id)) >= 6, "rows at the server")
            summary = training.interrupt()
        finally:
            training.process.kill()
    assert proxy.cut == 2
    assert summary["tracker_rows_left_out"] == {}, (folder / "log.txt").read_text()
    assert server.steps(run_id) == frames_of(folder)


def test_a_server_that_stays_away_ends_no_run_and_a_resume_goes_on_in_its_run(
    client: Path, server: MlflowServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    impatient = {"MLFLOW_TRACKING_URI": server.url, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    inline = "--executor inline --trackers mlflow"
    training = Training(client, folder, f"{SETTINGS} {inline} --total-frames 1000M --run-dir {folder}", **impatient)
    try:
        ids = folder / "trackers.json"
        training.wait_for(ids.is_file, "a run at the server")
        run_id = json.loads(ids.read_text())["mlflow"]
        training.wait_for(lambda: len(server.steps(run_id)) >= 3, "rows at the server")
        server.kill()
        log = folder / "log.txt"
        training.wait_for(lambda: log.is_file() and "warning: mlflow" in log.read_text(), "a warning")
        summary = training.interrupt()
        missing = summary["tracker_rows_left_out"]["mlflow"]
        assert log.read_text().count("warning: mlflow") == 1
        assert (folder / "checkpoints" / f"update-{summary['updates']}.index").is_file()
        rows = len(frames_of(folder))

        # Nobody answers during the whole of the next session.
        frames = newest(folder) + 2000
        summary = Training(client, folder, f"--resume {folder} --total-frames {frames}", **impatient).end(0)
        assert summary["tracker_rows_left_out"] == {"mlflow": len(frames_of(folder)) - rows}
        missing += summary["tracker_rows_left_out"]["mlflow"]

        server.start()
        frames = newest(folder) + 2000
        summary = Training(client, folder, f"--resume {folder} --total-frames {frames}", **impatient).end(0)
    finally:
        training.process.kill()
    assert summary["tracker_rows_left_out"] == {}
    (run,) = server.runs()
    assert run["info"]["run_id"] == run_id
    assert run["info"]["status"] == "FINISHED"
    assert {"key": "resumed_with.total_frames", "value": str(frames)} in run["data"]["tags"]
    assert server.steps(run_id)[-1] == newest(folder)
    # The row under way when the server was killed may have come to it, and its answer not to the run.
    assert len(server.steps(run_id)) + missing - len(frames_of(folder)) in (0, 1)


def test_both_folders_of_a_resumed_run_carry_one_id_of_wandb(client: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    offline = {"WANDB_MODE": "offline"}
    start = f"{SETTINGS} --executor inline --trackers wandb --total-frames 2000 --run-dir {folder}"
    assert Training(client, folder, start, **offline).end(0)["tracker_rows_left_out"] == {}
    resume = f"--resume {folder} --total-frames 4000"
    assert Training(client, folder, resume, **offline).end(0)["tracker_rows_left_out"] == {}
    run_id = json.loads((folder / "trackers.json").read_text())["wandb"]
    kept = sorted((folder / "wandb").glob("offline-run-*"))
    assert len(kept) == 2
    for run in kept:
        assert run.name.endswith(f"-{run_id}")
        assert (run / f"run-{run_id}.wandb").stat().st_size > 0


def test_evaluations_and_videos_arrive_at_the_frames_of_their_weights(
    client: Path, server: MlflowServer, tmp_path: Path
) -> None:
    folder = tmp_path / "seed-1"
    settings = SETTINGS.replace("--evaluation.every-frames 0", "--evaluation.every-frames 3000 --evaluation.video")
    arguments = f"{settings} --evaluation.episodes 3 --trackers wandb mlflow --total-frames 1000M --run-dir {folder}"
    training = Training(client, folder, arguments, MLFLOW_TRACKING_URI=server.url, WANDB_MODE="offline")
    try:
        log = folder / "log.txt"
        evaluated = "evaluation of update"
        training.wait_for(lambda: log.is_file() and log.read_text().count(evaluated) >= 2, "two evaluations")
        summary = training.interrupt()
    finally:
        training.process.kill()
    assert summary["tracker_rows_left_out"] == {}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [(point["frames"], point["mean_return"]) for row in rows for point in row["evaluations"]]
    assert len(points) >= 2
    (run,) = server.runs()
    run_id = run["info"]["run_id"]
    assert run["info"]["run_name"] == f"{tmp_path.name}/seed-1"
    assert {"key": "group", "value": tmp_path.name} in run["data"]["tags"]
    assert server.metric(run_id, "return/evaluation_mean") == points
    assert server.files(run_id, "evaluation") == [f"frames-{frames:012}.gif" for frames, _ in points]
    (offline,) = (folder / "wandb").glob("offline-run-*")
    kept = sorted((offline / "files" / "media" / "videos" / "evaluation").glob("*.gif"))
    assert len(kept) == len(points)
    assert sorted(file.read_bytes() for file in kept) == sorted(
        file.read_bytes() for file in (folder / "videos").glob("*.gif")
    )
