"""Runs that keep a copy in S3: moto's server stands for it, and s3fs, aiobotocore and botocore are the real ones."""

import json
import os
import selectors
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest
from environments import environment, with_extras
from ports import free_port
from waiting import DEADLINE_SECONDS, UNTIL_FRAMES
from watched_processes import Training, Watched

from launch.run.folder import RunFolder, last_row

pytestmark = [pytest.mark.storage, pytest.mark.timeout(600)]

SETTINGS = (
    f"cartpole --executor inline {UNTIL_FRAMES} "
    "--log-every-seconds 0.2 --checkpoint.every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10"
)


_CHUNK_BYTES = 2**16


class Door:
    """Passes connections on to another port while it is open. Shut, it cuts those that there are, and takes no more."""

    def __init__(self, port: int) -> None:
        self._behind, self.port = port, free_port()
        self._shut = threading.Event()
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        self._shut = threading.Event()
        listening = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._start(self._listen, listening, self._shut)

    def shut(self) -> None:
        self._shut.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self, what: object, *arguments: object) -> None:
        self._threads.append(threading.Thread(target=what, args=arguments))  # type: ignore[arg-type]
        self._threads[-1].start()

    def _listen(self, listening: socket.socket, shut: threading.Event) -> None:
        with listening:
            listening.settimeout(0.05)
            while not shut.is_set():
                with suppress(TimeoutError):
                    self._start(self._pass_on, listening.accept()[0], shut)

    def _pass_on(self, near: socket.socket, shut: threading.Event) -> None:
        with ExitStack() as stack, suppress(OSError):
            stack.enter_context(near)
            far = stack.enter_context(socket.create_connection(("127.0.0.1", self._behind)))
            ready = stack.enter_context(selectors.DefaultSelector())
            for one, other in ((near, far), (far, near)):
                one.settimeout(DEADLINE_SECONDS)
                ready.register(one, selectors.EVENT_READ, other)
            while not shut.is_set():
                for key, _ in ready.select(0.05):
                    chunk = key.fileobj.recv(_CHUNK_BYTES)  # type: ignore[union-attr]
                    if not chunk:
                        return
                    key.data.sendall(chunk)


class MotoServer:
    """`moto_server` on a port of its own, and a door to it. `program` is of the package moto[server]."""

    def __init__(self, program: Path, folder: Path) -> None:
        port = free_port()
        self._inside = f"http://127.0.0.1:{port}"
        self.door = Door(port)
        self.url = f"http://127.0.0.1:{self.door.port}"
        self._server = Watched([program, "--host", "127.0.0.1", "--port", port], folder / "moto.log")

    def wait(self) -> None:
        self._server.wait_for(self._answers, "an answer of the server")

    def _answers(self) -> bool:
        with suppress(urllib.error.URLError):
            self._call("GET", "")
            return True
        return False

    def close(self) -> None:
        self.door.shut()
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
        request = urllib.request.Request(f"{self._inside}/{what}", method=method, headers=signed)
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
    return subprocess.run(
        [program, *arguments], cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )


def files_of(run: Path) -> dict[str, bytes]:
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in (".lock", ".driver")}


def test_a_run_goes_on_and_is_evaluated_from_its_copy_where_it_has_never_been(
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


def test_an_outage_costs_a_warning_and_the_copy_is_whole_afterwards(
    programs: Path, server: MotoServer, variables: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = f"{SETTINGS} --total-frames 1000M --storage s3://kept/run --run-dir {run}"

    def log() -> str:
        return (run / "log.txt").read_text() if (run / "log.txt").is_file() else ""

    def checkpoints(files: Iterable[str]) -> set[str]:
        return {name for name in files if name.endswith(".index")}

    def here() -> set[str]:
        return checkpoints(f"checkpoints/{file.name}" for file in (run / "checkpoints").iterdir())

    def there() -> set[str]:
        return checkpoints(server.names("kept", "run"))

    with Training(programs, run, arguments, **variables) as training:
        training.wait_for(there, "a checkpoint in the copy")
        server.door.shut()
        training.wait_for(lambda: "warning: the copy at s3://kept/run" in log(), "a warning")
        left = there()
        training.wait_for(lambda: not here() & left, "training during the outage")
        assert there() == left
        server.door.open()
        training.wait_for(lambda: there() - left, "new checkpoints in the copy")
        training.interrupt()
    assert "Traceback" not in log()
    assert server.files("kept", "run") == files_of(run)

    # Storage that is away when a run ends, or is to be fetched.
    frames = json.loads((run / "summary.json").read_text())["frames"]
    with Training(programs, run, f"--resume {run} --total-frames 1000M", **variables) as resumed:
        resumed.wait_for(lambda: last_row(RunFolder(run))["frames"] > frames, "progress")
        server.door.shut()
        resumed.interrupt()
    assert "warning: the copy at s3://kept/run" in log().splitlines()[-1]
    refused = call(tmp_path, variables, programs / "tributary", "train", "--resume", "s3://kept/run")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: RUN s3://kept/run: cannot be read: Could not connect")
    assert refused.stderr.count("\n") == 1
    assert not list((tmp_path / "runs").iterdir())


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
