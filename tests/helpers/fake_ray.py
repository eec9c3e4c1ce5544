"""Stands in for the module `ray`: starts no process, and completes the calls that a test ends."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


class FakeCall:
    """A call of a process, in place of Ray's reference to its result."""

    def __init__(self, process: "FakeProcess", method: str, arguments: tuple[Any, ...]) -> None:
        self.process, self.method, self.arguments = process, method, arguments


class FakeProcess:
    """A process of class `kind`. Every method can be called; `results` are those of methods whose calls end at once."""

    def __init__(self, fake: "FakeRay", kind: type, options: dict[str, Any], arguments: tuple[Any, ...]) -> None:
        self._fake, self.kind, self.options, self.arguments = fake, kind, options, arguments
        self.results: dict[str, Any] = {}

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> FakeCall:
            self._fake.calls.append(FakeCall(self, method, arguments))
            return self._fake.calls[-1]

        return SimpleNamespace(remote=remote)


class FakeRay:
    """The functions of `ray` that executors use, and what they were called with."""

    ObjectRef = object

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.calls: list[FakeCall] = []
        self.killed: list[FakeProcess] = []
        self._results: dict[FakeCall, Any] = {}

    def end(self, call: FakeCall, result: Any) -> None:
        self._results[call] = result

    def _has_ended(self, call: FakeCall) -> bool:
        return call in self._results or call.method in call.process.results

    def remote(self, **options: Any) -> Any:
        def decorate(kind: type) -> Any:
            def start(*arguments: Any) -> FakeProcess:
                self.processes.append(FakeProcess(self, kind, options, arguments))
                return self.processes[-1]

            return SimpleNamespace(remote=start)

        return decorate

    def wait(
        self,
        calls: Sequence[FakeCall],
        num_returns: int = 1,
        timeout: float | None = None,  # noqa: ARG002
    ) -> tuple[list[FakeCall], list[FakeCall]]:
        ready = [call for call in calls if self._has_ended(call)][:num_returns]
        return ready, [call for call in calls if call not in ready]

    def get(self, call: FakeCall) -> Any:
        result = self._results[call] if call in self._results else call.process.results[call.method]
        if isinstance(result, Exception):
            raise result
        return result

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "the driver's")

    def put(self, value: Any) -> Any:
        return value

    def kill(self, process: FakeProcess, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(process)
