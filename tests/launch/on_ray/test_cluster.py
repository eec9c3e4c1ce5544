"""Placement in clusters counted by hand; starting and joining Ray; which of its nodes count as lost."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from launch.doctor import quick_probe
from launch.interrupts import StoppedBeforeTrainingError
from launch.machine import ACTOR_BYTES, LEARNER_BYTES, ThreadBudget
from launch.on_ray import cluster
from launch.on_ray.placement import (
    Node,
    Placement,
    cores_to_request,
    gpus_in_reach,
    gradients_per_sum,
    gradients_per_sum_by_node,
    local_placement,
    place,
    placement_lines,
    slots_by_node,
)
from shared.config import ActorConfig, LearnerConfig, RunConfig
from shared.errors import ConfigurationError

GIB = 2**30
HEAD = Node("h", "10.0.0.1", 2.0, 16 * GIB, head=True)
WORKERS = [Node(f"w{i}", f"10.0.0.{i + 2}", 4.0, 16 * GIB) for i in range(2)]
CLUSTER = [HEAD, *WORKERS]


def test_a_marked_node_has_the_learner_and_nothing_else() -> None:
    placement = place(RunConfig(), CLUSTER)
    assert placement[:2] == (HEAD, {"h": 2, "w0": 4, "w1": 4})
    marked = replace(WORKERS[1], marked=True)
    placement = place(RunConfig(), [HEAD, WORKERS[0], marked])
    assert placement[:2] == (marked, {"h": 2, "w0": 4})
    alone = replace(HEAD, marked=True)
    assert place(RunConfig(), [alone])[:2] == (alone, {"h": 2})


def test_gpus_of_a_marked_node_are_not_for_actors() -> None:
    card, on_gpu = replace(HEAD, gpus=1.0), replace(RunConfig(), learner=LearnerConfig(device="gpu"))
    marked = replace(card, marked=True)
    assert [gpus_in_reach(config, [card, *WORKERS]) for config in (RunConfig(), on_gpu)] == [1, 1]
    assert [gpus_in_reach(config, [marked, *WORKERS]) for config in (RunConfig(), on_gpu)] == [0, 1]
    assert gpus_in_reach(RunConfig(), [marked]) == 1


def test_actors_without_a_place_are_in_the_plan() -> None:
    config = RunConfig(actors="1:16")
    lines = placement_lines(config, place(config, CLUSTER), CLUSTER)
    assert lines[0] == "10.0.0.1: learner + 2 actors  (2 cores, 16 GiB)"
    assert lines[3:] == ["note: 6 of 16 actors have no place yet; they start when nodes join"]


def test_a_learner_that_shall_have_a_gpu_is_refused_without() -> None:
    gpu, on_gpu = replace(WORKERS[1], gpus=1.0), replace(RunConfig(), learner=LearnerConfig(device="gpu"))
    with pytest.raises(ConfigurationError, match="Ray finds no GPU"):
        place(on_gpu, CLUSTER)
    with pytest.raises(ConfigurationError, match=r"no GPU on the learner's node, 10\.0\.0\.2"):
        place(on_gpu, [replace(WORKERS[0], marked=True), gpu])
    assert place(on_gpu, [HEAD, gpu]).learner is gpu


def test_slots_leave_a_core_for_the_system_and_the_learner() -> None:
    large, head = Node("l", "10.0.0.9", 8.0, 64 * GIB), replace(HEAD, cores=4.0)
    assert slots_by_node(RunConfig(), [head, large], head) == {"h": 3, "l": 7}
    small = replace(WORKERS[0], bytes=2 * ACTOR_BYTES + 1)
    assert slots_by_node(RunConfig(), [small], HEAD) == {"w0": 2}
    # The learner's memory is taken on its own node.
    assert slots_by_node(RunConfig(), [small], small) == {"w0": 1}
    assert slots_by_node(RunConfig(), [replace(small, bytes=LEARNER_BYTES + ACTOR_BYTES - 1)], small) == {}


def test_the_cores_of_the_largest_number_of_actors_include_those_that_take_none() -> None:
    config, learner = RunConfig(actors="30:240"), replace(HEAD, cores=4.0, marked=True)
    machines = [Node(f"m{i}", "10.0.1.1", 16.0, 64 * GIB) for i in range(2)]
    # 16 machines of 15 actors, beside the learner's.
    assert cores_to_request(config, [learner, *machines], learner) == 16 * 16 + 4
    # Its own three are among them as long as it is alone.
    assert cores_to_request(config, [learner], learner) == 240 - 3 + 4


@pytest.mark.parametrize(
    ("actors", "spread"),
    [("auto", (2, 4, 4)), (3, (0, 2, 1)), (4, (0, 2, 2)), (10, (2, 4, 4)), ("2:5", (1, 2, 2)), ("2:100", (2, 4, 4))],
)
def test_the_actors_are_spread(actors: int | str, spread: tuple[int, ...]) -> None:
    placed = place(RunConfig(actors=actors), CLUSTER).actors
    assert tuple(placed.get(node.id, 0) for node in CLUSTER) == spread


def test_a_cluster_that_is_too_small_is_named_node_by_node() -> None:
    poor = replace(WORKERS[0], bytes=100 * 2**20)
    with pytest.raises(ConfigurationError) as raised:
        place(RunConfig(actors=7), [HEAD, poor, WORKERS[1]])
    message = str(raised.value)
    assert "\n" not in message
    assert "--actors 7: there is room for 6" in message
    assert "a core and 950 MiB each" in message


@pytest.mark.parametrize(
    ("count", "requested", "limit", "sums"),
    [
        (1, "node", None, []),
        (4, "auto", None, [4, 4]),
        (8, "auto", None, [4, 4]),
        (9, "auto", None, [3, 3]),
        # No node has several actors.
        (7, "auto", None, []),
        (4, "auto", 10, []),
        (4, "none", None, []),
        (8, "node", None, [4, 4]),
    ],
)
def test_where_gradients_are_summed(count: int, requested: str, limit: int | None, sums: list[int]) -> None:
    learner = LearnerConfig(gradients_per_update=count, max_policy_lag=limit)
    config = RunConfig(learner=learner, aggregation=requested, address="auto")
    assert gradients_per_sum_by_node(config, place(config, [replace(HEAD, marked=True), *WORKERS])) == sums


@pytest.mark.parametrize(
    ("actors", "epochs", "together"), [(63, 2, 32), (31, 1, 16), (31, 2, 32), (15, 2, 16), (7, 4, 8), (1, 1, 1)]
)
def test_a_node_sums_no_more_than_its_actors_give_at_a_time(actors: int, epochs: int, together: int) -> None:
    actor = ActorConfig(environments=1, unroll_length=32, epochs=epochs)
    config = RunConfig(actor=actor, learner=LearnerConfig(gradients_per_update=32))
    assert gradients_per_sum(config, actors) == together
    placement = Placement(HEAD, {"large": 63, "other": actors})
    assert gradients_per_sum_by_node(config, placement) == [32, together], "each node has sums of its own size"


@pytest.mark.parametrize(("cores", "sums"), [(16, [4]), (15, [])])
def test_one_machine_sums_where_many_actors_work(cores: int, sums: list[int]) -> None:
    config = RunConfig(learner=LearnerConfig(gradients_per_update=4))
    assert gradients_per_sum_by_node(config, local_placement(ThreadBudget(cores, 64))) == sums


def test_ray_does_not_pack_the_working_folder_of_uv_run() -> None:
    """It would by the parent's command line, and takes none above 512 MiB. The switch is read at its import."""
    code = (
        "import launch.driver, launch.on_ray.cluster\n"
        "from ray._private.ray_constants import RAY_ENABLE_UV_RUN_RUNTIME_ENV as packs\n"
        "print(packs)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize(
    "value",
    ["http://127.0.0.1:8265", "ray://127.0.0.1:1", "local", "somewhere", "127.0.0.1:1", "127.0.0.1:99999", "[::1]:1"],
)
def test_a_variable_that_names_no_cluster_is_one_line(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", value)
    with pytest.raises(ConfigurationError) as raised:
        cluster.join("auto")
    assert str(raised.value).startswith(f"--address {value}: ")


def test_a_typed_address_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(cluster.ray, "init", lambda address, **_: taken.append(address))
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        for address, variable in (("auto", ""), ("auto", here), (here, "http://127.0.0.1:1")):
            monkeypatch.setenv("RAY_ADDRESS", variable)
            cluster.join(address)
    assert taken == ["auto", here, here]


@pytest.mark.parametrize(
    "error", [ConnectionError("no GCS"), cluster.ray.exceptions.AuthenticationError("no token was found")]
)
def test_what_is_no_cluster_or_takes_another_token_is_one_line(error: Exception, monkeypatch) -> None:
    monkeypatch.setattr(cluster.ray, "init", Mock(side_effect=error))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(
        ConfigurationError, match=r"^--address auto: no Ray cluster answers there: no .*token"
    ) as raised:
        cluster.join("auto")
    assert "\n" not in str(raised.value)


WORKER = replace(WORKERS[0], id="w")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What Ray lists, which nodes answer, those that were asked, and the slots by them at a time that the test sets."""
    world = SimpleNamespace(listed=[HEAD, WORKER], answering={"h", "w"}, now=100.0, asked=[])

    def responds(node: Node) -> bool:
        world.asked.append(node.id)
        return node.id in world.answering

    monkeypatch.setattr(cluster, "cluster_nodes", lambda: list(world.listed))
    monkeypatch.setattr(cluster, "_responds", responds)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: world.now))
    world.slots = cluster.ClusterSlots(RunConfig(), HEAD)
    return world


def test_a_silent_node_is_lost_and_taken_back_when_ray_lists_it_still(nodes: SimpleNamespace) -> None:
    nodes.answering = {"h"}
    assert nodes.slots.has_lost("w")
    # Also in what was looked up just before, and in what is looked up next.
    assert nodes.slots.slots_by_node() == {"h": 2}
    # Its other actors need not ask again.
    assert [nodes.slots.has_lost(name) for name in ("w", "h")] == [True, False]
    for now in (100.0, 103.0, 159.0):
        nodes.now = now
        assert nodes.slots.slots_by_node() == {"h": 2}
    assert nodes.asked == ["w", "h"], "a node that is gone would cost each look a second"
    nodes.answering, nodes.now = {"h", "w"}, 161.0
    assert nodes.slots.slots_by_node() == {"h": 2, "w": 4}
    assert not nodes.slots.has_lost("w")
    # Nothing is asked of a node that Ray lists no more.
    nodes.listed = [HEAD]
    assert nodes.slots.has_lost("w")
    assert nodes.slots.slots_by_node() == {"h": 2}
    assert nodes.asked == ["w", "h", "w"]


def test_the_learners_node_takes_no_actors_while_the_others_are_gone(nodes: SimpleNamespace) -> None:
    """They would stay there: a machine that joins again has its slots taken."""
    marked = replace(HEAD, marked=True)
    for nodes.listed, alone in (([marked], True), ([marked, WORKER], False)):
        beside = place(RunConfig(), nodes.listed).beside
        assert beside == alone
        for listed, expected in (([marked, WORKER], {"w": 4}), ([marked], {"h": 2} if beside else {}), ([], {})):
            nodes.listed = listed
            assert cluster.ClusterSlots(RunConfig(), marked, beside=beside).slots_by_node() == expected
    with pytest.raises(ConfigurationError, match="there is room for 0"):
        place(RunConfig(), [marked], beside=False)


def test_a_node_that_is_gone_refuses_no_run(nodes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"error": "The actor died", "advice": "install it", "node": "10.0.0.2"}
    monkeypatch.setattr(cluster, "_reports", lambda *_: [quick_probe() | {"node": "10.0.0.1"}, failed])
    with pytest.raises(ConfigurationError, match=r"node 10\.0\.0\.2: The actor died; install it"):
        cluster.checked_nodes()
    nodes.answering = {"h"}
    assert cluster.checked_nodes() == [HEAD]


def test_a_sigterm_while_ray_starts_stops_the_run_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's handler exits, and stays in place of this process's own."""
    before = signal.signal(signal.SIGTERM, own := Mock())

    def init(*_: Any, **__: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cluster.ray, "init", init)
    with pytest.raises(StoppedBeforeTrainingError):
        cluster.connect(RunConfig(), 1)
    assert signal.signal(signal.SIGTERM, before) is own


def test_ray_needs_no_file_for_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes one that all users of the machine may read, in a home folder that may be missing."""
    keys, environment = list[str](), dict[str, str]()
    monkeypatch.setattr(cluster.os, "environ", environment)
    monkeypatch.setattr(cluster.ray, "init", lambda *_, **__: keys.append(environment["RAY_AUTH_TOKEN"]))
    cluster.connect(RunConfig(), 1)
    cluster.connect(RunConfig(), 1)
    assert len(keys[0]) == 64
    assert keys[0] == keys[1], "a key that is set already stays"
