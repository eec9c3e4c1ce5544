"""Runs that keep a copy in S3: moto's server stands for it, and s3fs, aiobotocore and botocore are the real ones."""

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from environments import environment, with_extras
from waiting import UNTIL_FRAMES
from watched_processes import Training, Watched, output_of

pytestmark = [pytest.mark.storage, pytest.mark.timeout(600)]

SETTINGS = (
    f"cartpole --executor inline {UNTIL_FRAMES} "
    "--log-every-seconds 0.2 --checkpoint.every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10"
)


class MotoServer(Watched):
    """`moto_server` at a port of its own. `program` is of the package moto[server]."""

    def __init__(self, program: Path, folder: Path) -> None:
        super().__init__([program, "--host", "127.0.0.1", "--port", "0"], folder / "moto.log")
        self.url = self.wait_for(
            lambda: re.search(r"Running on (http://127\.0\.0\.1:\d+)", self.printed()), "its port"
        )[1]

    def buckets(self) -> list[str]:
        return self._names("", "Bucket/Name")

    def files(self, bucket: str, folder: str) -> dict[str, bytes]:
        keys = self._names(f"{bucket}?list-type=2&prefix={folder}/", "Contents/Key")
        return {key.removeprefix(f"{folder}/"): self.call("GET", f"{bucket}/{key}") for key in keys}

    def _names(self, what: str, path: str) -> list[str]:
        steps = "/".join(f"{{*}}{step}" for step in path.split("/"))
        return [str(found.text) for found in ElementTree.fromstring(self.call("GET", what)).findall(f".//{steps}")]

    def call(self, method: str, what: str) -> bytes:
        # It does not verify signatures.
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
        request = urllib.request.Request(f"{self.url}/{what}", method=method, headers=signed)
        return urllib.request.urlopen(request).read()


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    return with_extras(Path(request.config.cache.mkdir("storage")) / "client", "s3")


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MotoServer]:
    installed = environment(Path(request.config.cache.mkdir("storage")) / "server", "moto[server]>=5.2,<6")
    with MotoServer(installed / "moto_server", tmp_path) as made:
        made.call("PUT", "kept")
        yield made


@pytest.fixture
def variables(server: MotoServer) -> dict[str, str]:
    """What a user of storage that is not Amazon's sets; and one try only, so that a refusal takes no time."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def files_of(run: Path) -> dict[str, bytes]:
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != ".lock"}


def test_a_run_goes_on_from_its_copy_elsewhere(programs: Path, server: MotoServer, variables: dict, tmp_path) -> None:
    first, other = tmp_path / "first", tmp_path / "other-machine"
    other.mkdir()
    url = "s3://kept/runs/cartpole"
    arguments = f"{SETTINGS} --total-frames 6000 --storage {url} --run-dir {first}"
    before = Training(programs, first, arguments, **variables).summary()
    assert server.files("kept", "runs/cartpole") == files_of(first)

    def command(program: str, *arguments: str, cwd: Path = tmp_path) -> str:
        return output_of(programs / program, *arguments, cwd=cwd, variables=variables)

    command("tributary", "train", "--resume", url, "--total-frames", "9000", cwd=other)
    (run,) = (other / "runs").iterdir()
    after = json.loads((run / "summary.json").read_text())
    assert after["updates"] > before["updates"]
    assert after["frames"] >= 9000 > before["frames"]
    copied = server.files("kept", "runs/cartpole")
    assert copied == files_of(run)

    command("tributary", "evaluate", url, "--episodes", "2")
    script = (
        "import sys, tributary_rl as tributary\n"
        "assert tributary.load(sys.argv[1]).act([0, 0, 0, 0])[0] in (0, 1)\n"
        "print(tributary.Run(sys.argv[1]).summary['updates'])"
    )
    assert command("python", "-c", script, url).strip() == str(after["updates"])
    # Reading changes nothing there.
    assert server.files("kept", "runs/cartpole") == copied


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
    command = [programs / "tributary", *f"train {SETTINGS} --total-frames 2000 --storage s3://kpet/run".split()]
    home = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    everything = os.environ | variables | home | changed
    refused = subprocess.run(command, cwd=tmp_path, env=everything, capture_output=True, text=True, check=False)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert refused.stderr.strip() == f"error: --storage s3://kpet/run: cannot be written: {reason}"
    assert server.buckets() == ["kept"]
    assert not (tmp_path / "runs").exists()
