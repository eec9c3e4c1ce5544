"""Channels and shared vectors of one machine, and the calls of an executor that go through them."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.environments import environment_spec
from launch.loop.executor import CallResult, Failed
from launch.on_ray.actor_process import ActorProcess
from launch.on_ray.executor import RayExecutor
from launch.on_ray.node_aggregator import AggregatingExecutor
from launch.on_ray.placement import Slots
from launch.on_ray.transport import (
    Call,
    Channel,
    ChannelAddress,
    LocalConnection,
    LocalTransport,
    SharedVector,
    VectorAddress,
    attach,
    open_channel,
    pickled,
    serve,
)
from launch.presets import PRESETS
from shared.config import ActorConfig, LearnerConfig, RunConfig
from shared.types import AggregatedReport, EpisodeStats, GradientReport, Heartbeat, StageSeconds, WeightSnapshot

# Echoes messages, and ends within a reply when it is requested.
_ECHO = """
import os, sys, time
from launch.on_ray.transport import ChannelAddress, open_channel, pickled
channel = open_channel(ChannelAddress(*map(int, sys.argv[1:])))
if channel is None:
    sys.exit(3)
raw = os.open(f"/proc/{sys.argv[1]}/fd/{sys.argv[3]}", os.O_WRONLY)
channel.send(pickled("opened"))
while True:
    try:
        message = channel.receive()
    except EOFError:
        sys.exit(4)
    if message == "die":
        # Half of the header of a message.
        os.write(raw, b"ha")
        os._exit(5)
    if message == "fork":
        if child := os.fork():
            channel.send(pickled(child))
            os._exit(6)
        os.close(raw)
        time.sleep(60)
        os._exit(0)
    channel.send(pickled(message))
"""


def echo(address: ChannelAddress) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _ECHO, *map(str, address)], text=True)


def opened(connection: LocalConnection) -> Channel:
    """The near end, once another process has opened the far one."""
    assert connection.near.receive() == "opened"
    connection.accepted()
    return connection.near


def pipes_of(connection: LocalConnection) -> set[str]:
    return {os.readlink(f"/proc/self/fd/{number}") for number in (connection.address.reads, connection.address.writes)}


def open_ends(pipes: set[str]) -> int:
    """Number of this process's descriptors of these pipes. Other threads may open and close files meanwhile."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += os.readlink(entry) in pipes
    return count


def test_messages_go_both_ways_and_the_far_end_learns_of_the_close() -> None:
    connection = LocalConnection()
    pipes = pipes_of(connection)
    assert open_ends(pipes) == 4
    with echo(connection.address) as process:
        channel = opened(connection)
        # The second does not fit into a pipe.
        for message in ((1, None, "x"), b"0" * 300_000):
            channel.send(pickled(message))
            assert channel.receive() == message
        connection.close()
        assert process.wait(60) == 4
    assert open_ends(pipes) == 0


def test_the_death_of_a_process_shows_although_one_that_it_forked_lives() -> None:
    connection = LocalConnection()
    with echo(connection.address) as process:
        channel = opened(connection)
        channel.send(pickled("fork"))
        child = channel.receive()
        with pytest.raises(EOFError):
            channel.receive()
        os.kill(child, signal.SIGKILL)
        assert process.wait(60) == 6


def test_a_process_that_ends_closes_its_end_even_within_a_message() -> None:
    connection = LocalConnection()
    with echo(connection.address) as process:
        channel = opened(connection)
        channel.send(pickled("die"))
        with pytest.raises(EOFError):
            channel.receive()
        assert process.wait(60) == 5
    # No process receives it, and none will reply.
    channel.send(pickled("lost"))
    with pytest.raises(EOFError):
        channel.receive()
    connection.close()


def test_channels_and_vectors_of_others_are_not_opened() -> None:
    connection, vector = LocalConnection(), SharedVector(5)
    elsewhere = 2**22 + 1
    assert open_channel(connection.address._replace(pid=elsewhere)) is None
    with pytest.raises(FileNotFoundError):
        attach(vector.address._replace(pid=elsewhere))
    with open(os.devnull) as other:
        assert open_channel(connection.address._replace(writes=other.fileno())) is None
        with pytest.raises(FileNotFoundError):
            attach(vector.address._replace(descriptor=other.fileno()))
    assert open_ends(pipes_of(connection)) == 4
    connection.close()


def test_a_vector_is_memory_without_a_name() -> None:
    """It starts where TensorFlow takes it without a copy, and is no file that could be left behind."""
    vector = SharedVector(5)
    values, address = attach(vector.address), vector.address
    values[...] = np.arange(5)
    np.testing.assert_array_equal(vector.values, np.arange(5))
    assert vector.values.ctypes.data % 64 == 0
    assert os.readlink(f"/proc/self/fd/{address.descriptor}").endswith("(deleted)")
    del vector
    # Its file is closed with it.
    with pytest.raises(FileNotFoundError):
        attach(address)
    assert values[4] == 4.0


def test_vectors_of_weights_are_written_again_when_no_call_reads_them() -> None:
    transport = LocalTransport()
    connections = [transport.offer() for _ in range(3)]
    ends = [open_channel(connection.address) for connection in connections if connection is not None]

    def sent(actor: int, version: int) -> list[VectorAddress]:
        weights, target = (WeightSnapshot(version, np.full(5, sign * version, np.float32)) for sign in (1, -1))
        connection, end = connections[actor], ends[actor]
        assert connection is not None
        assert end is not None
        transport.call(connection, Call(weights, target, None))
        return [snapshot.parameters for snapshot in end.receive()[:2]]

    first = sent(0, 1)
    assert [attach(address)[0] for address in (*first, *sent(1, 2), *first)] == [1, -1, 2, -2, 1, -1]
    # The call of an actor that has died reads nothing.
    assert connections[0] is not None
    transport.disconnect(connections[0])
    assert sent(2, 3) == first


def test_a_gradient_stays_until_the_next_report_of_its_actor_was_received() -> None:
    transport, connection, numbers = LocalTransport(), LocalConnection(), itertools.count()
    end = open_channel(connection.address)
    assert end is not None

    def result(_: Call) -> GradientReport | Heartbeat:
        number = next(numbers)
        none = EpisodeStats(np.empty(0), np.empty(0, np.int64))
        gradient = np.full(5, number, np.float32)
        # A call without a gradient uses no vector.
        return (
            Heartbeat(0) if number == 1 else GradientReport(0, number, 0, "", gradient, 1, 1, none, StageSeconds(), {})
        )

    server = threading.Thread(target=serve, args=(end, result), daemon=True)
    server.start()
    received: list[CallResult] = []
    for number in range(6):
        transport.call(connection, Call(WeightSnapshot(1, np.ones(5, np.float32)), None, None))
        while not transport.wait(1.0):
            pass
        received.append(transport.receive(connection))
        gradients = [one.gradient[0] for one in received if isinstance(one, GradientReport)]
        # Those before were written over.
        assert gradients[-2:] == [n for n in range(number + 1) if n != 1][-2:]
    transport.disconnect(connection)
    server.join()


_PRESET = PRESETS["cartpole"].config
CARTPOLE = RunConfig(environment=_PRESET.environment, network=_PRESET.network)
SPEC = environment_spec(CARTPOLE.environment)


class EchoProcess(ActorProcess):
    """Returns the weights that it was given as its gradient. `close` writes a file into the folder of --storage."""

    def make_actor(self, config: RunConfig, _spec: object, actor_id: int) -> "EchoRunner":
        return EchoRunner(config, actor_id)


class EchoRunner:
    def __init__(self, config: RunConfig, actor_id: int) -> None:
        self._folder, self._actor_id, self._sequence = config.storage, actor_id, 0

    def close(self) -> None:
        if self._folder is not None:
            Path(self._folder, str(self._actor_id)).touch()

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:  # noqa: ARG002
        self._sequence += 1
        gradient = snapshot.parameters.copy()
        # Written out: the processes of Ray do not find the tests' helpers.
        episodes, seconds = EpisodeStats(np.empty(0), np.empty(0, np.int64)), StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0)
        return GradientReport(
            self._actor_id, self._sequence, snapshot.version, "", gradient, 1, 1, episodes, seconds,
            {"reward_factor": snapshot.reward_factor},
            advantage_moments=snapshot.advantage_moments,
        )  # fmt: skip


@pytest.fixture(scope="module")
def local_ray():
    ray.init("local", num_cpus=3, include_dashboard=False, logging_level="error", object_store_memory=2**28)
    yield
    ray.shutdown()


@pytest.fixture
def local_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Versions of the weights of the calls that went through pipes."""
    seen: list[int] = []
    send = LocalTransport.call

    def counted(transport: LocalTransport, connection: LocalConnection, call: Call) -> None:
        seen.append(call.weights.version)
        send(transport, connection, call)

    monkeypatch.setattr(LocalTransport, "call", counted)
    return seen


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("shared_memory", [True, False])
def test_each_rollout_gets_the_weights_of_its_dispatch(shared_memory: bool, local_calls: list, monkeypatch) -> None:
    size, versions = 50_000, 100
    if not shared_memory:
        # As on a machine whose processes cannot reach each other's files, or on another one.
        monkeypatch.setattr(LocalTransport, "offer", lambda _: None)
    executor = RayExecutor(CARTPOLE, SPEC, Slots(2), actor_process=EchoProcess)
    expected: dict[int, list[int]] = {actor_id: [] for actor_id in executor.actor_ids}

    def dispatch(actor_id: int, version: int) -> None:
        moments = (1024.0, float(version), 0.5)
        weights = np.full(size, version, np.float32)
        factor = 1.0 / version if version > 1 else None
        executor.publish(WeightSnapshot(version, weights, 0, factor, moments))
        executor.dispatch(actor_id)
        expected[actor_id].append(version)

    version = 0
    for actor_id in executor.actor_ids:
        dispatch(actor_id, version := version + 1)
    received = 0
    while executor.calls_in_flight:
        report = executor.next_completion()
        if report is None:
            continue
        received += 1
        assert report.version == expected[report.actor_id].pop(0)
        np.testing.assert_array_equal(report.gradient, np.full(size, report.version, np.float32))
        assert report.advantage_moments == (1024.0, report.version, 0.5)
        factor = 1.0 / report.version if report.version > 1 else None
        assert report.statistics == {"reward_factor": factor}
        if version < versions:
            dispatch(report.actor_id, version := version + 1)
    assert received == versions
    # All but the first of each actor, which goes through Ray.
    assert len(local_calls) == (versions - 2 if shared_memory else 0)
    executor.close()


def completed(executor: RayExecutor) -> Any:
    while (completion := executor.next_completion()) is None:
        pass
    return completion


def closed_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.usefixtures("local_ray")
def test_sums_of_a_node_have_the_named_weights(local_calls: list[int], tmp_path: Path) -> None:
    updates, size = 40, 50_000
    # On one core a sum is of two, else of four.
    actor, learner = ActorConfig(epochs=2), LearnerConfig(gradients_per_update=4)
    config = replace(PRESETS["cartpole"].config, actor=actor, learner=learner, aggregation="node")
    config = replace(config, storage=str(tmp_path))
    executor = AggregatingExecutor(config, SPEC, Slots(2), actor_process=EchoProcess)
    (node,) = executor.actor_ids
    heartbeats, reporting = 0, set()
    for version in range(1, updates + 1):
        executor.publish(WeightSnapshot(version, np.full(size, version, np.float32), 0))
        executor.dispatch(node)
        while isinstance(summed := completed(executor), Heartbeat):
            # On a busy machine the actors may not have started yet.
            heartbeats += 1
            executor.dispatch(node)
        assert isinstance(summed, AggregatedReport)
        versions = [report.version for report in summed.reports]
        reporting |= {str(report.actor_id) for report in summed.reports}
        # The actor that completed the last sum. The other one started before, perhaps long ago.
        assert max(versions) == version
        np.testing.assert_array_equal(summed.gradient, np.full(size, sum(versions), np.float32))
    # The first went through Ray.
    assert len(local_calls) == updates + heartbeats - 1
    executor.close()
    # On a busy machine one of the two may still start: it is killed at once.
    assert reporting <= set(closed_in(tmp_path))


class EngineError(Exception):
    """An error of two arguments that has a lock: it cannot be pickled."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"E{code}: {text}")
        self.lock = threading.Lock()


class FailingProcess(ActorProcess):
    """Has no actor, or fails at its third call, which comes through a pipe: its rollout raises, or its process dies."""

    def make_actor(self, config: RunConfig, spec: object, actor_id: int) -> "FailingRunner":  # noqa: ARG002
        if actor_id == NOT_MADE:
            raise EngineError(3, "no licence")
        return FailingRunner(config, actor_id)


class FailingRunner(EchoRunner):
    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:
        if self._sequence == 2:
            if self._actor_id == DIES:
                os.kill(os.getpid(), signal.SIGKILL)
            raise EngineError(17, "engine stalled")
        return super().run(snapshot, target)


RAISES, DIES, NOT_MADE = range(3)


@pytest.mark.usefixtures("local_ray")
def test_an_actor_that_fails_gives_its_reason(tmp_path: Path) -> None:
    executor = RayExecutor(replace(CARTPOLE, storage=str(tmp_path)), SPEC, Slots(3), actor_process=FailingProcess)
    executor.publish(WeightSnapshot(1, np.ones(10, np.float32), 0))
    for actor_id in executor.actor_ids:
        executor.dispatch(actor_id)
    calls, failed = Counter[int](), dict[int, Failed]()
    while executor.actor_ids:
        last = completed(executor)
        calls[last.actor_id] += 1
        if not isinstance(last, Failed):
            executor.dispatch(last.actor_id)
            continue
        failed[last.actor_id] = last
        assert executor.rollouts_under_way(last.actor_id) == 1, "its call counts until it is removed"
        executor.remove(last.actor_id)
    assert executor.calls_in_flight == 0
    executor.close()
    assert closed_in(tmp_path) == [str(RAISES)]
    assert calls == {RAISES: 3, DIES: 3, NOT_MADE: 1}
    for actor_id, reason in (
        (RAISES, "its rollout raised: EngineError: E17: engine stalled (test_transport.py:"),
        (DIES, "its process died: "),
        (NOT_MADE, "could not be made: EngineError: E3: no licence (test_transport.py:"),
    ):
        assert failed[actor_id].reason.startswith(reason)
        assert failed[actor_id].raised == (actor_id != DIES)
