"""A headless Chromium, driven over its debugging pipe: nothing listens on a port."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any


class Browser:
    """One page at a time. Use as a context."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program is not None, "these tests need Chromium: apt-get install chromium"
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run "
            f"--disable-background-networking --disable-component-update --user-data-dir={profile}"
        )
        command = f"exec {program} {flags} 3<&{read} 4>&{write}"
        self._process = subprocess.Popen(["bash", "-c", command], pass_fds=(read, write), stderr=subprocess.DEVNULL)
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, width: int, height: int, *, mobile: bool) -> None:
        """Open a file in a window of this size, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.events.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._take(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)["result"][
            "value"
        ]

    def screenshot(self, file: Path) -> None:
        """The whole page as PNG."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(picture))

    @property
    def requests(self) -> list[str]:
        """What the page asked for, itself and embedded data left out."""
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")][1:]

    @property
    def errors(self) -> list[str]:
        """Errors and warnings of the console."""
        found = [e for e in self.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        found += [e for e in self.events if e["method"] == "Runtime.consoleAPICalled"]
        return [json.dumps(event["params"]) for event in found]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to the page."""
        return self._call(method, session=self._session, **parameters)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._take(answer)

    def _take(self, event: dict[str, Any]) -> None:
        if "method" in event:
            self.events.append(event)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
