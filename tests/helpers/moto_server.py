"""moto's server of S3 on this machine, behind a door that can be shut: what it holds outlives an outage."""

import selectors
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from xml.etree import ElementTree

from ports import free_port
from waiting import DEADLINE_SECONDS, wait_for

_CHUNK_BYTES = 2**16


class Door:
    """Passes connections on to another port while it is open. Shut, it cuts those that there are, and takes no more."""

    def __init__(self, port: int) -> None:
        self._behind, self.port = port, free_port()
        self._shut = threading.Event()
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Listen."""
        self._shut = threading.Event()
        listening = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._start(self._listen, listening, self._shut)

    def shut(self) -> None:
        """Cut all connections. Returns when they are cut."""
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
    """`moto_server` on a port of its own, and a door to it.

    Args:
        program: of the package moto[server].
        folder: for its log.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        port = free_port()
        self._inside, self._log = f"http://127.0.0.1:{port}", folder / "moto.log"
        with self._log.open("w") as log:
            command = [program, "--host", "127.0.0.1", "--port", str(port)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.door = Door(port)
        self.url = f"http://127.0.0.1:{self.door.port}"

    def wait(self) -> None:
        """Wait until it answers."""

        def answers() -> bool:
            with suppress(urllib.error.URLError):
                self._call("GET", "")
                return True
            return False

        wait_for(answers, "an answer of the server", process=self._process, shown=self._log.read_text)

    def close(self) -> None:
        """End it."""
        self.door.shut()
        self._process.kill()
        self._process.wait()

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        self._call("PUT", name)

    def buckets(self) -> list[str]:
        """The names of all buckets."""
        return self._names(self._call("GET", ""), "Bucket/Name")

    def names(self, bucket: str, folder: str) -> list[str]:
        """The files below a folder of a bucket, by their path there."""
        keys = self._names(self._call("GET", f"{bucket}?list-type=2&prefix={folder}/"), "Contents/Key")
        return [key.removeprefix(f"{folder}/") for key in keys]

    def files(self, bucket: str, folder: str) -> dict[str, bytes]:
        """Their content, where nobody writes to them."""
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
