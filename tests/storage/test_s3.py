"""Runs that keep a copy in S3: moto's server stands for it, and s3fs, aiobotocore and botocore are the real ones."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from environments import environment, with_extras
from moto_server import MotoServer
from waiting import UNTIL_FRAMES
from watched_training import Training

from launch.run.folder import RunFolder, last_row

pytestmark = [pytest.mark.storage, pytest.mark.timeout(600)]

SETTINGS = (
    f"cartpole --executor inline {UNTIL_FRAMES} "
    "--log-every-seconds 0.2 --checkpoint.every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10"
)


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    return with_extras(Path(request.config.cache.mkdir("storage")) / "client", "s3")


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MotoServer]:
    installed = environment(Path(request.config.cache.mkdir("storage")) / "server", "moto[server]>=5.2,<6")
    made = MotoServer(installed / "moto_server", tmp_path)
    try:
        made.wait()
        made.make_bucket("kept")
        made.door.open()
        yield made
    finally:
        made.close()


@pytest.fixture
def variables(server: MotoServer) -> dict[str, str]:
    """What a user of storage that is not Amazon's sets; and one try only, as the outage here is meant."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def call(folder: Path, variables: dict[str, str], program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Type a command that ends by itself, in a folder."""
    return subprocess.run(
        [program, *arguments], cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )


def files_of(run: Path) -> dict[str, bytes]:
    """What a copy of a run is to have."""
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in (".lock", ".driver")}


def test_a_run_goes_on_and_is_evaluated_from_its_copy_where_it_has_never_been(
    programs: Path, server: MotoServer, variables: dict[str, str], tmp_path: Path
) -> None:
    first, other = tmp_path / "first", tmp_path / "other-machine"
    other.mkdir()
    url = "s3://kept/runs/cartpole"
    arguments = f"{SETTINGS} --total-frames 6000 --storage {url} --run-dir {first}"
    before = Training(programs, first, arguments, **variables).end(0)
    assert server.files("kept", "runs/cartpole") == files_of(first)

    resumed = call(other, variables, programs / "tributary", "train", "--resume", url, "--total-frames", "9000")
    assert resumed.returncode == 0, resumed.stderr
    (run,) = (other / "runs").iterdir()
    after = json.loads((run / "summary.json").read_text())
    assert after["updates"] > before["updates"]
    assert after["frames"] >= 9000 > before["frames"]
    copied = server.files("kept", "runs/cartpole")
    assert copied == files_of(run)

    evaluated = call(tmp_path, variables, programs / "tributary", "evaluate", url, "--episodes", "2")
    assert evaluated.returncode == 0, evaluated.stderr
    script = (
        "import sys, tributary_rl as tributary\n"
        "assert tributary.load(sys.argv[1]).act([0, 0, 0, 0])[0] in (0, 1)\n"
        "print(tributary.Run(sys.argv[1]).summary['updates'])"
    )
    loaded = call(tmp_path, variables, programs / "python", "-c", script, url)
    assert loaded.stdout.strip() == str(after["updates"]), loaded.stderr
    # Reading changes nothing there.
    assert server.files("kept", "runs/cartpole") == copied


def test_an_outage_costs_a_warning_and_the_copy_is_whole_afterwards(
    programs: Path, server: MotoServer, variables: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = f"{SETTINGS} --total-frames 1000M --storage s3://kept/run --run-dir {run}"
    training = Training(programs, run, arguments, **variables)

    def log() -> str:
        return (run / "log.txt").read_text() if (run / "log.txt").is_file() else ""

    def checkpoints(files: Iterable[str]) -> set[str]:
        return {name for name in files if name.endswith(".index")}

    def here() -> set[str]:
        return checkpoints(f"checkpoints/{file.name}" for file in (run / "checkpoints").iterdir())

    def there() -> set[str]:
        return checkpoints(server.names("kept", "run"))

    try:
        training.wait_for(there, "a checkpoint in the copy")
        server.door.shut()
        training.wait_for(lambda: "warning: the copy at s3://kept/run" in log(), "a warning")
        left = there()
        training.wait_for(lambda: not here() & left, "training during the outage")
        assert there() == left
        server.door.open()
        training.wait_for(lambda: there() - left, "new checkpoints in the copy")
        training.interrupt()
    finally:
        training.process.kill()
    assert "Traceback" not in log()
    assert server.files("kept", "run") == files_of(run)

    # Storage that is away when a run ends, or is to be fetched.
    frames = json.loads((run / "summary.json").read_text())["frames"]
    resumed = Training(programs, run, f"--resume {run} --total-frames 1000M", **variables)
    try:
        resumed.wait_for(lambda: last_row(RunFolder(run))["frames"] > frames, "progress")
        server.door.shut()
        resumed.interrupt()
    finally:
        resumed.process.kill()
    assert "warning: the copy at s3://kept/run" in log().splitlines()[-1]
    refused = call(tmp_path, variables, programs / "tributary", "train", "--resume", "s3://kept/run")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --resume s3://kept/run: cannot be read: Could not connect")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "The specified bucket does not exist"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "Unable to locate credentials"),
    ],
)
def test_storage_that_cannot_be_used_is_one_line_and_makes_no_bucket(
    changed: dict[str, str], reason: str, programs: Path, server: MotoServer, variables: dict[str, str], tmp_path: Path
) -> None:
    arguments = f"train {SETTINGS} --total-frames 2000 --storage s3://kpet/run".split()
    home = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    refused = call(tmp_path, variables | home | changed, programs / "tributary", *arguments)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert refused.stderr.strip() == f"error: --storage s3://kpet/run: cannot be written: {reason}"
    assert server.buckets() == ["kept"]
    assert not (tmp_path / "runs").exists()
