"""The real MLflow, whose server dies during a run, and the real W&B without a network. Installs both."""

import json
import os
import signal
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from environments import environment, with_extras
from ports import free_port
from waiting import UNTIL_FRAMES
from watched_processes import Training, Watched
from watched_processes import rows as rows_of

pytestmark = [pytest.mark.trackers, pytest.mark.timeout(900)]

SETTINGS = f"cartpole --actors 1 {UNTIL_FRAMES} --log-every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10"


class MlflowServer:
    """`mlflow server` of the full package, on a port of its own. What it stored in `folder` outlives it."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder, self._port = program, folder, free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        options = f"--host 127.0.0.1 --port {self._port} --workers 1 --backend-store-uri sqlite:///store.db"
        # Its scheduler of jobs is seven more processes, which nobody here needs.
        variables = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        command = [self._program, "server", *options.split()]
        log = self._folder / "server.log"
        self._server = Watched(command, log, variables, cwd=self._folder, start_new_session=True)
        self._server.wait_for(self._answers, "an answer of the server")

    def kill(self) -> None:
        """With its workers, which would hold the port."""
        if self._server.process.poll() is None:
            os.killpg(self._server.process.pid, signal.SIGKILL)
            self._server.process.wait()

    def runs(self) -> list[dict[str, Any]]:
        experiment = self._get("experiments/get-by-name", experiment_name="tributary")["experiment"]
        body = json.dumps({"experiment_ids": [experiment["experiment_id"]]}).encode()
        request = urllib.request.Request(
            f"{self.url}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"}
        )
        return json.load(urllib.request.urlopen(request)).get("runs", [])

    def steps(self, run_id: str) -> list[int]:
        """The frames of the rows that arrived, in order."""
        # Every row has it; a rate is known a second after a start only.
        return [step for step, _ in self.metric(run_id, "asynchrony/agent_steps_in_flight")]

    def metric(self, run_id: str, name: str) -> list[tuple[int, float]]:
        history = self._get("metrics/get-history", run_id=run_id, metric_key=name, max_results="25000")
        return sorted((int(point["step"]), float(point["value"])) for point in history.get("metrics", []))

    def files(self, run_id: str, folder: str) -> list[str]:
        listed = self._get("artifacts/list", run_id=run_id, path=folder)
        return sorted(Path(file["path"]).name for file in listed.get("files", []))

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        query = urllib.parse.urlencode(parameters)
        return json.load(urllib.request.urlopen(f"{self.url}/api/2.0/mlflow/{what}?{query}"))

    def _answers(self) -> bool:
        with suppress(OSError):
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        return False


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


def test_rows_and_settings_arrive_at_mlflow_and_a_server_that_dies_is_one_warning(
    client: Path, server: MlflowServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    impatient = {"MLFLOW_TRACKING_URI": server.url, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    arguments = f"{SETTINGS} --executor inline --trackers mlflow --total-frames 1000M --run-dir {folder}"
    with Training(client, folder, arguments, **impatient) as training:
        ids = folder / "trackers.json"
        training.wait_for(ids.is_file, "a run at the server")
        run_id = json.loads(ids.read_text())["mlflow"]
        training.wait_for(lambda: len(server.steps(run_id)) >= 3, "rows at the server")
        server.kill()
        log = folder / "log.txt"
        training.wait_for(lambda: log.is_file() and "warning: mlflow" in log.read_text(), "a warning")
        rows = len(frames_of(folder))
        training.wait_for(lambda: len(frames_of(folder)) >= rows + 3, "training after the warning")
        summary = training.interrupt()
        assert log.read_text().count("warning: mlflow") == 1
        assert (folder / "checkpoints" / f"update-{summary['updates']}.index").is_file()

        server.start()
        frames = newest(folder) + 2000
        Training(client, folder, f"--resume {folder} --total-frames {frames}", **impatient).summary()
    (run,) = server.runs()
    assert run["info"]["run_id"] == run_id
    assert run["info"]["status"] == "FINISHED"
    assert {"key": "resumed_with.total_frames", "value": str(frames)} in run["data"]["tags"]
    assert {"key": "total_frames", "value": "1000000000"} in run["data"]["params"]
    assert server.steps(run_id)[-1] == newest(folder)


def test_both_folders_of_a_resumed_run_carry_one_id_of_wandb(client: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    offline = {"WANDB_MODE": "offline"}
    start = f"{SETTINGS} --executor inline --trackers wandb --total-frames 2000 --run-dir {folder}"
    Training(client, folder, start, **offline).summary()
    resume = f"--resume {folder} --total-frames 4000"
    Training(client, folder, resume, **offline).summary()
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
    with Training(client, folder, arguments, MLFLOW_TRACKING_URI=server.url, WANDB_MODE="offline") as training:
        log = folder / "log.txt"
        evaluated = "evaluation of update"
        training.wait_for(lambda: log.is_file() and log.read_text().count(evaluated) >= 2, "two evaluations")
        training.interrupt()
    assert "warning" not in log.read_text()
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
