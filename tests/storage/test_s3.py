"""Runs that keep a copy in S3: moto's server stands for it, and s3fs, aiobotocore and botocore are the real ones."""

import json
import os
import random
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest
from environments import environment, with_extras
from waiting import UNTIL_FRAMES
from watched_processes import Training, Watched

pytestmark = [pytest.mark.storage, pytest.mark.timeout(600)]

SETTINGS = (
    f"cartpole --executor inline {UNTIL_FRAMES} "
    "--log-every-seconds 0.2 --checkpoint.every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10"
)


# Below the system's ephemeral ports and above those of Ray's workers, so that a drawn port stays free until it is
# used.
_PORTS = range(20_000, 32_000)
_drawn: set[int] = set()


def free_port() -> int:
    """A port that nobody listens at, and that this process has not drawn before."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _drawn:
            _drawn.add(port)
            return port
    raise RuntimeError(f"no port of {_PORTS} is free")


class MotoServer:
    """`moto_server` on a port of its own. `program` is of the package moto[server]."""

    def __init__(self, program: Path, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._server = Watched([program, "--host", "127.0.0.1", "--port", port], folder / "moto.log")

    def wait(self) -> None:
        self._server.wait_for(self._answers, "an answer of the server")

    def _answers(self) -> bool:
        with suppress(urllib.error.URLError):
            self._call("GET", "")
            return True
        return False

    def close(self) -> None:
        self._server.kill()

    def make_bucket(self, name: str) -> None:
        self._call("PUT", name)

    def buckets(self) -> list[str]:
        return self._names(self._call("GET", ""), "Bucket/Name")

    def names(self, bucket: str, folder: str) -> list[str]:
        keys = self._names(self._call("GET", f"{bucket}?list-type=2&prefix={folder}/"), "Contents/Key")
        return [key.removeprefix(f"{folder}/") for key in keys]

    def files(self, bucket: str, folder: str) -> dict[str, bytes]:
        return {name: self._call("GET", f"{bucket}/{folder}/{name}") for name in self.names(bucket, folder)}

    def _names(self, xml: bytes, path: str) -> list[str]:
        steps = path.split("/")
        return [
            str(found.text)
            for found in ElementTree.fromstring(xml).findall(".//" + "/".join(f"{{*}}{s}" for s in steps))
        ]

    def _call(self, method: str, what: str) -> bytes:
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
    made = MotoServer(installed / "moto_server", tmp_path)
    try:
        made.wait()
        made.make_bucket("kept")
        yield made
    finally:
        made.close()


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


def call(folder: Path, variables: dict[str, str], program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )


def files_of(run: Path) -> dict[str, bytes]:
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in (".lock", ".driver")}


def test_a_run_goes_on_from_its_copy_elsewhere(
    programs: Path, server: MotoServer, variables: dict[str, str], tmp_path: Path
) -> None:
    first, other = tmp_path / "first", tmp_path / "other-machine"
    other.mkdir()
    url = "s3://kept/runs/cartpole"
    arguments = f"{SETTINGS} --total-frames 6000 --storage {url} --run-dir {first}"
    before = Training(programs, first, arguments, **variables).summary()
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
