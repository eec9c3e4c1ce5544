"""Several seeds at a time on a cluster: which job is given what, and what becomes of the others when one ends."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launch.cli import main
from launch.commands import in_turn, seed_jobs
from launch.on_ray import cluster
from launch.on_ray.jobs import JobStatus
from launch.on_ray.placement import Node
from launch.run.folder import RunFolder
from launch.run.job_note import note_of
from shared.config import RunConfig
from shared.errors import ConfigurationError

GIB = 2**30
RUNNING = JobStatus("RUNNING", None)
DONE, FAILED, REFUSED = JobStatus("SUCCEEDED", 0), JobStatus("FAILED", 1), JobStatus("FAILED", 2)
KILLED, STOPPED = JobStatus("FAILED", -9), JobStatus("STOPPED", None)


class Cluster:
    """Two nodes, and a job server that knows only what the test tells it: when jobs end, in place of time."""

    def __init__(self) -> None:
        self.nodes = [Node(f"{name}{'0' * 11}", f"10.0.0.{name}", 4.0, 16 * GIB) for name in ("1", "2")]
        self.lines: dict[str, list[str]] = {}
        self.found: dict[str, JobStatus] = {}
        self.stopped: list[str] = []
        # Called when everything under way has been asked about.
        self.tick: Callable[[], None] = lambda: None

    def seed(self, number: int) -> str:
        """The newest job of a seed."""
        return [name for name in self.lines if f"seed-{number}-" in name][-1]

    def submit(self, name: str, module: str, arguments: list[str], folder: Path) -> None:
        assert (module, folder) == ("launch.cli", Path.cwd())
        self.lines[name], self.found[name] = arguments, RUNNING

    def status(self, name: str) -> JobStatus:
        return self.found[name]

    def log(self, name: str) -> str:
        return f"{name} says\nerror: it is wrong\n"

    def stop(self, name: str) -> None:
        self.stopped.append(name)
        self.found[name] = STOPPED


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    made = Cluster()

    @contextmanager
    def joined(_address: str) -> Iterator[str]:
        yield "127.0.0.1:8265"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "joined", joined)
    monkeypatch.setattr(cluster, "free_nodes", lambda: list(made.nodes))
    monkeypatch.setattr(seed_jobs, "Jobs", lambda _server: made)
    monkeypatch.setattr(seed_jobs, "check_client", lambda: None)
    monkeypatch.setattr(seed_jobs, "_ASK_SECONDS", 0.0)
    monkeypatch.setattr(in_turn.time, "sleep", lambda _seconds: made.tick())
    return made


def train(settings: str, code: int = 0) -> dict[str, Any]:
    assert main(["train", *settings.split()]) == code
    return json.loads(Path("runs/summary.json").read_text())


def steps(made: Cluster, *then: Callable[[], None]) -> None:
    """One of these at each look at the jobs."""
    left = list(then)
    made.tick = lambda: left.pop(0)() if left else None


def ends(made: Cluster, seed: int, how: JobStatus) -> Callable[[], None]:
    return lambda: made.found.update({made.seed(seed): how})


SUMMARY = {
    "status": "interrupted",
    "mean_return_100": None,
    "evaluation": None,
    "wall_seconds": 1.0,
    "agent_steps_per_second": 1.0,
}
NEW = "cartpole --seeds 1-3 --side-by-side 2 --address auto --run-dir runs"


def test_each_seed_is_a_job_on_a_share_and_the_next_one_starts_where_one_has_ended(
    made: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []
    steps(
        made,
        lambda: begun.append(len(made.lines)),
        ends(made, 2, KILLED),
        lambda: begun.append(len(made.lines)),
        ends(made, 1, DONE),
        ends(made, 3, DONE),
    )
    summary = train(f"{NEW} --lr 1e-3", code=1)
    assert begun == [2, 3]
    settings = json.loads(Path("runs/settings.json").read_text())
    assert settings["optimizer"]["learning_rate"] == 1e-3
    share = ["100000000000=4", "200000000000=4"]
    for seed, nodes in ((1, share[0]), (2, share[1]), (3, share[1])):
        assert (
            made.lines[made.seed(seed)]
            == (
                f"train cartpole --config runs/settings.json --seed {seed} --run-dir runs/seed-{seed} "
                f"--address auto --nodes {nodes}"
            ).split()
        )
        note = note_of(Path(f"runs/seed-{seed}"))
        assert note is not None
        assert note.job == made.seed(seed)
        assert Path(f"runs/seed-{seed}.log").read_text() == made.log(made.seed(seed))
    out = capsys.readouterr().out
    assert "share 1: 4 cores of 10.0.0.1\nshare 2: 4 cores of 10.0.0.2\n" in out
    assert "seed 2: ended with exit code 1\n" in out
    assert set(summary["seeds"]) == {"1", "2", "3"}


def test_an_interrupt_stops_all_jobs_and_starts_no_other(made: Cluster) -> None:
    steps(made, lambda: signal.raise_signal(signal.SIGINT))
    train(NEW, code=130)
    assert made.stopped == [made.seed(1), made.seed(2)]
    assert len(made.lines) == 2


def test_a_second_interrupt_leaves_the_jobs_to_save_by_themselves(
    made: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(made, "stop", lambda name: made.stopped.append(name))
    steps(made, *[lambda: signal.raise_signal(signal.SIGINT)] * 3)
    train(NEW, code=130)
    assert set(made.found.values()) == {RUNNING}
    assert f"seed 1: left; Ray job {made.seed(1)} saves and ends" in capsys.readouterr().out


def test_settings_that_are_refused_start_no_further_seed(made: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    steps(made, ends(made, 1, REFUSED), ends(made, 2, REFUSED))
    assert main(["train", *NEW.split()]) == 2
    assert capsys.readouterr().err == "error: seed 1 could not start: it is wrong\n"
    assert not Path("runs").exists()


def test_a_share_whose_nodes_are_gone_is_given_nobody(made: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def lose() -> None:
        made.nodes.pop()
        ends(made, 2, FAILED)()

    steps(made, lose, ends(made, 1, DONE), ends(made, 3, DONE))
    train(NEW, code=1)
    assert made.lines[made.seed(3)][-1] == "100000000000=4"
    assert "share 2: gone are 4 cores of 10.0.0.2" in capsys.readouterr().out


def test_seeds_that_no_place_is_left_for_are_named(made: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def lose() -> None:
        made.nodes.clear()
        for seed in (1, 2):
            ends(made, seed, DONE)()

    steps(made, lose)
    summary = train(NEW.replace("1-3", "1-4"), code=1)
    assert "no place is left for seed 3, seed 4" in capsys.readouterr().out
    assert summary["seeds"]["3"] == {"status": "not run"}


def test_seeds_that_are_not_done_go_on(made: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    steps(made, *[ends(made, seed, STOPPED) for seed in (1, 2, 3)])
    train(f"{NEW} --frames 1000 --nodes 1000=2 2000=2", code=130)
    assert made.lines[made.seed(1)][-2:] == ["--nodes", "100000000000=2"]
    config = msgspec.json.decode(Path("runs/settings.json").read_bytes(), type=RunConfig)
    for seed, frames in ((1, 1000), (2, 400)):
        folder = RunFolder(Path(f"runs/seed-{seed}"))
        folder.checkpoints.mkdir(parents=True)
        folder.write_config(replace(config, seed=seed))
        folder.summary.write_text(json.dumps(SUMMARY | {"frames": frames}))
        (folder.checkpoints / "update-0.index").touch()
    capsys.readouterr()
    steps(made, ends(made, 3, DONE), ends(made, 2, DONE))
    train("--resume runs --side-by-side 2 --lr 0.5 --address auto")
    assert "1 of 3 seeds are done" in capsys.readouterr().out
    changed = "--optimizer.learning-rate 0.5 --address auto --nodes"
    assert made.lines[made.seed(2)] == f"train --resume runs/seed-2 {changed} 100000000000=4".split()
    settings = "train cartpole --config runs/settings.json --seed 3 --run-dir runs/seed-3"
    assert made.lines[made.seed(3)] == f"{settings} --address auto --nodes 200000000000=4".split()
    kept = msgspec.json.decode(Path("runs/settings.json").read_bytes(), type=RunConfig)
    assert (kept.optimizer.learning_rate, kept.total_frames) == (0.5, 1000)


def test_runs_that_have_no_room_are_counted(made: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    made.nodes.pop()
    assert main(["train", *NEW.replace("--side-by-side 2", "--side-by-side 3").split(), "--actors", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--side-by-side 3: the 4 free cores of 1 nodes have room for 2 runs at a time" in line
    assert not Path("runs").exists()


def silent(*_: object) -> Any:
    raise ConfigurationError("no answer from the job server")


def test_a_job_that_cannot_be_submitted_or_asked_fails_alone(
    made: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submit, status = made.submit, made.status
    monkeypatch.setattr(seed_jobs, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(made, "submit", lambda name, *rest: silent() if "seed-2" in name else submit(name, *rest))
    monkeypatch.setattr(made, "status", lambda name: silent() if "seed-3" in name else status(name))
    steps(made, lambda: None, lambda: None, ends(made, 1, DONE))
    train(NEW, code=1)
    out = capsys.readouterr().out
    assert "seed 1: ended with exit code 0\n" in out
    assert "seed 2: it could not be submitted: no answer from the job server\n" in out
    assert f"seed 3: no answer from the job server; Ray job {made.seed(3)} may go on: tributary stop" in out
    assert note_of(Path("runs/seed-2")) is None


def test_a_job_that_cannot_be_asked_to_stop_keeps_no_other_from_it(
    made: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = made.stop
    monkeypatch.setattr(made, "stop", lambda name: silent() if "seed-1" in name else stop(name))
    steps(made, lambda: signal.raise_signal(signal.SIGINT), ends(made, 1, STOPPED))
    train(NEW, code=130)
    assert made.stopped == [made.seed(2)]
    assert "seed 1: no answer from the job server; tributary stop runs/seed-1 asks again\n" in capsys.readouterr().out
