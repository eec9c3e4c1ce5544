"""A run whose gradients are added on nodes and by groups of nodes meets every fault of both, from a seeded schedule."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from chaos_run import FAULTS, ChaosRun, actor_fault, dropped_report, full_disk
from nodes import add, drain, node_of
from ray.cluster_utils import Cluster

pytestmark = pytest.mark.chaos

K = 4
SETTINGS = (
    f"--aggregation group --learner.gradients-per-update {K} --actor.environments 4 --actor.unroll-length 10 "
    "--actor.epochs 2 --actor.minibatches 2 --evaluation.every-frames 0 --stop-at-return None "
    "--stop-measure training --log-every-seconds 0.5 --checkpoint.every-seconds 1 "
    "--supervision.hang-seconds 8 --supervision.start-seconds 120 --supervision.max-restarts 100"
)
_SEED = 11


class GroupedRun(ChaosRun):
    """A run on a cluster of nodes of this machine: one for the learner, and four of two actors each."""

    def __init__(self, folder: Path) -> None:
        counts = {"Actor": 8, "NodeAggregator": 4, "GroupAggregator": 2, "Learner": 1}
        super().__init__(folder, counts, deadline_seconds=240)
        head = {"num_cpus": 1, "resources": {"learner": 1}, "object_store_memory": 200 * 2**20}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(4):
            add(self.cluster, 2)
        self.segments = set(Path("/dev/shm").iterdir())

    def processes(self) -> dict[int, str]:
        """Without those of Ray itself, which has been given the same environment, and goes on."""
        mine = ("launch.cli", *(f"ray::{kind}" for kind in self.counts))
        return {pid: name for pid, name in super().processes().items() if any(part in name for part in mine)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupedRun]:
    assert os.geteuid() == 0, "make chaos mounts a small disk, and so needs root"
    # The processes of nodes have the environment of who starts the nodes.
    monkeypatch.setenv("CHAOS_FOLDER", str(tmp_path / "requests"))
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    made = GroupedRun(tmp_path)
    yield made
    made.end()
    made.cluster.shutdown()


def member_fault(run: GroupedRun, kind: str, random_state: random.Random) -> None:
    """Kill who adds gradients; what it has started ends with it, and another one takes its place."""
    actor_fault(run, lambda: run.signal_one(kind, signal.SIGKILL, random_state), "process died")


def node_with(run: GroupedRun, kind: str, random_state: random.Random) -> Any:
    run.wait_for(lambda: len(run.pids(kind)) == run.counts[kind], kind)
    return node_of(run.cluster, random_state.choice(run.pids(kind)))


def lost_node(run: GroupedRun, random_state: random.Random) -> None:
    """Cut the power of the head of a group; another node joins."""
    lost = node_with(run, "GroupAggregator", random_state)
    joined = run.log().count(" joins")
    run.cluster.remove_node(lost, allow_graceful=False)
    add(run.cluster, 2)
    run.wait_for(lambda: run.log().count(" joins") > joined, "a node that joins")


def drained_node(run: GroupedRun, random_state: random.Random) -> None:
    drained = node_with(run, "NodeAggregator", random_state)
    released = run.log().count("its node is draining")
    add(run.cluster, 2)
    drain(run.cluster, drained)
    run.wait_for(lambda: run.log().count("its node is draining") > released, "the release")


def killed_learner(run: GroupedRun, random_state: random.Random) -> None:
    line = "goes on from its checkpoint"
    before = run.log().count(line)
    run.signal_one("Learner", signal.SIGKILL, random_state)
    run.wait_for(lambda: run.log().count(line) > before, "another learner")


@pytest.mark.timeout(900)
def test_a_run_in_two_levels_meets_every_fault_and_finishes_with_an_exact_account(run: GroupedRun) -> None:
    random_state = random.Random(_SEED)
    faults: list[Callable[[], object]] = [
        lambda: actor_fault(run, lambda: run.signal_one("Actor", signal.SIGKILL, random_state), "process died"),
        lambda: actor_fault(run, lambda: run.signal_one("Actor", signal.SIGSTOP, random_state), "it hangs"),
        lambda: actor_fault(run, lambda: run.request("environment_raises"), "the environment raised"),
        lambda: actor_fault(run, lambda: run.request("environment_never_returns"), "it hangs"),
        lambda: dropped_report(run, "nan_gradient", "non_finite"),
        lambda: dropped_report(run, "wrong_layout", "wrong_layout"),
        lambda: dropped_report(run, "duplicate_report", "duplicate"),
        lambda: member_fault(run, "NodeAggregator", random_state),
        lambda: member_fault(run, "GroupAggregator", random_state),
        lambda: lost_node(run, random_state),
        lambda: drained_node(run, random_state),
        lambda: killed_learner(run, random_state),
        lambda: full_disk(run),
    ]
    random_state.shuffle(faults)
    address = ["--address", run.cluster.address]
    run.start("cartpole", *SETTINGS.split(), *address, "--total-frames", "1000M", "--run-dir", str(run.path))
    for fault in faults:
        run.wait_for_progress()
        fault()

    run.wait_for(lambda: len(run.checkpoints()) >= 2, "two checkpoints")
    run.kill_driver()
    newest = run.damage_newest_checkpoint()
    run.start("--resume", str(run.path), *address, "--total-frames", "1000M")
    run.wait_for(lambda: f"update-{newest} is damaged and was passed over" in run.log(), "the damaged checkpoint")
    run.wait_for_progress()
    run.driver.send_signal(signal.SIGTERM)
    output = run.wait_for_end()
    assert run.driver.returncode == 130, output
    assert "Traceback" not in output

    summary = account_of(run.path)
    assert summary["gradients_applied"] == K * summary["updates"]
    # Of the counts those since the checkpoint are lost, as its updates are; the log has them all.
    assert summary["rollouts_lost_with_actors"] >= 1
    assert run.log().count(" replaces actor ") >= 6
    run.wait_until_gone()
    assert set(Path("/dev/shm").iterdir()) <= run.segments
