"""A proxy that breaks some answers off after their headers."""

import threading
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.error import HTTPError


class CuttingProxy:
    """Passes requests on to a server of this machine, and all of its answers but for some.

    Args:
        target: address of the server.
        cuts: end of a path, and which of its requests, from 1, gets no more than the beginning of its answer.

    Attributes:
        cut: answers that were broken off.
    """

    def __init__(self, target: str, *cuts: tuple[str, int]) -> None:
        self.cut = 0
        asked = Counter[str]()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

            def do_PATCH(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

            def _pass_on(self, body: bytes | None) -> None:
                headers = {name: value for name, value in self.headers.items() if name.lower() == "content-type"}
                request = urllib.request.Request(f"{target}{self.path}", body, headers, method=self.command)
                try:
                    answer = urllib.request.urlopen(request)
                except HTTPError as error:
                    answer = error
                said = answer.read()
                end = next((end for end, _ in cuts if self.path.endswith(end)), "")
                asked[end] += 1
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                if (end, asked[end]) in cuts:
                    proxy.cut += 1
                else:
                    self.wfile.write(said)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
