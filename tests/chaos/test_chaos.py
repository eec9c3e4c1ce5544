"""Runs that meet every fault there is, from a seeded schedule, and finish with an exact account: of one level, and with
gradients that are summed on nodes."""

import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from accounts import account_of
from chaos_run import FAULTS, ChaosRun, Fault, actor_fault, common_faults, dropped_report
from nodes import add, drain, node_of
from ray.cluster_utils import Cluster
from watched_processes import output_of

pytestmark = pytest.mark.chaos

SETTINGS = "--actors 3 --learner.max-policy-lag 100000 --supervision.hang-seconds 4 --supervision.start-seconds 120"
_SEED = 11


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ChaosRun]:
    made = ChaosRun(tmp_path, {"Actor": 3, "Learner": 1}, deadline_seconds=400)
    yield made
    made.end()


@pytest.mark.timeout(1800)
def test_a_run_meets_every_fault_and_finishes_with_an_exact_account(run: ChaosRun) -> None:
    random_state = random.Random(_SEED)
    common = common_faults(run, "Actor", random_state)
    faults = [
        # Two more kills.
        *(*common, common[0], common[0]),
        lambda: dropped_report(run, "stale_report", "too_old"),
        lambda: run.signal_one("Learner", signal.SIGKILL, random_state),
    ]
    run.meet(faults, random_state, SETTINGS)
    run.wait_for(lambda: "learner: " in run.log(), "the learner's line")

    # The newest checkpoint is damaged, and the one before it used.
    run.wait_for(lambda: len(run.checkpoints()) >= 2, "two checkpoints")
    run.resume_without_newest_checkpoint()
    summary = account_of(run.path)
    frames = str(summary["frames"] + 2_000)
    run.start("--resume", str(run.path), "--total-frames", frames)
    output = run.wait_for_end()
    assert run.driver.returncode == 0, output
    assert "Traceback" not in output

    summary = account_of(run.path)
    assert summary["status"] == "frames_reached"
    assert summary["rollouts_lost_with_actors"] >= 1
    run.wait_until_gone()
    assert set(Path("/dev/shm").iterdir()) <= run.segments


@pytest.mark.timeout(1200)
def test_a_kill_during_a_save_never_costs_a_complete_checkpoint(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saves.py")
    project = {"PYTHONPATH": str(Path(__file__).parents[2])}
    printed = output_of(sys.executable, script, tmp_path, 200, _SEED, variables=project)
    assert printed.startswith("0 of 200 kills lost a complete checkpoint")
    # Kills that met no save under way would show nothing.
    assert int(printed.split("; ")[1].split()[0]) > 20


K = 4
# T x B of the settings.
ROLLOUT_AGENT_STEPS = 10 * 4
TWO_LEVELS = (
    f"--aggregation node --learner.gradients-per-update {K} "
    "--supervision.hang-seconds 12 --supervision.start-seconds 150"
)


class NodesRun(ChaosRun):
    """A run on a cluster of nodes of this machine: one for the learner, and four of two actors each."""

    cluster: Cluster

    def __init__(self, folder: Path) -> None:
        # An actor serves from its first call on.
        counts = {"Actor": 8, "ActorProcess.serve": 8, "NodeAggregator": 4, "Learner": 1}
        super().__init__(folder, counts, deadline_seconds=240)

    def start_cluster(self) -> None:
        head = {"num_cpus": 1, "resources": {"learner": 1}, "object_store_memory": 200 * 2**20}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(4):
            add(self.cluster, 2)
        self.segments = set(Path("/dev/shm").iterdir())

    def processes(self) -> dict[int, str]:
        """Without those of Ray itself, which has been given the same environment, and goes on."""
        mine = ("launch.cli", *(f"ray::{kind}" for kind in self.counts))
        return {pid: name for pid, name in super().processes().items() if any(part in name for part in mine)}

    def aggregators(self) -> set[int]:
        """The process ids of all aggregators, once all are there and all actors at work."""
        for kind in self.counts:
            self.one_of(kind, random.Random())
        return set(self.pids("NodeAggregator"))


@pytest.fixture
def nodes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodesRun]:
    # The processes of nodes have the environment of who starts the nodes.
    monkeypatch.setenv("CHAOS_FOLDER", str(tmp_path / "requests"))
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    made = NodesRun(tmp_path)
    with ExitStack() as undo:
        undo.callback(made.end)
        made.start_cluster()
        undo.callback(made.cluster.shutdown)
        yield made


def one_actor(run: NodesRun, act: Fault, line: str) -> None:
    """A fault of one actor leaves the aggregators as they are."""
    aggregators = run.aggregators()
    actor_fault(run, act, line)
    assert run.aggregators() == aggregators, run.log()


def stopped_node(run: NodesRun, random_state: random.Random) -> None:
    """Stop all actors of a node: the aggregator, which finds them hung, is not declared hung itself."""
    aggregators, one = run.aggregators(), run.one_of("ActorProcess.serve", random_state)
    of_node = [pid for pid in run.pids("ActorProcess.serve") if node_of(run.cluster, pid) == node_of(run.cluster, one)]
    replaced = run.log().count(" replaces actor ")
    for pid in of_node:
        os.kill(pid, signal.SIGSTOP)
    run.wait_for(lambda: run.log().count(" replaces actor ") == replaced + len(of_node), "their replacements")
    run.wait_for_progress()
    assert run.aggregators() == aggregators, run.log()


def killed_aggregator(run: NodesRun, random_state: random.Random) -> None:
    """Kill an aggregator: its actors end with it, the other nodes go on, and another one takes its place."""
    aggregators, killed = run.aggregators(), run.one_of("NodeAggregator", random_state)
    actor_fault(run, lambda: os.kill(killed, signal.SIGKILL), "process died")
    assert aggregators - run.aggregators() == {killed}, run.log()


def lost_node(run: NodesRun, random_state: random.Random) -> None:
    aggregators, lost = run.aggregators(), run.one_of("NodeAggregator", random_state)
    run.cluster.remove_node(node_of(run.cluster, lost), allow_graceful=False)
    add(run.cluster, 2)
    run.wait_for(lambda: aggregators - run.aggregators() == {lost}, "the end of its aggregator")


def drained_node(run: NodesRun, random_state: random.Random) -> None:
    run.aggregators()
    drained = run.one_of("NodeAggregator", random_state)
    released = run.log().count("its node is draining")
    add(run.cluster, 2)
    drain(run.cluster, node_of(run.cluster, drained))
    run.wait_for(lambda: run.log().count("its node is draining") > released, "the release")
    run.wait_for(lambda: drained not in run.aggregators(), "its end")


def killed_learner(run: NodesRun, random_state: random.Random) -> None:
    line = "goes on from its checkpoint"
    before = run.log().count(line)
    run.signal_one("Learner", signal.SIGKILL, random_state)
    run.wait_for(lambda: run.log().count(line) > before, "another learner")


@pytest.mark.timeout(1800)
def test_a_run_in_two_levels_meets_every_fault_and_finishes_with_an_exact_account(nodes_run: NodesRun) -> None:
    run, random_state = nodes_run, random.Random(_SEED)
    faults = [
        *common_faults(run, "ActorProcess.serve", random_state, one_actor),
        lambda: stopped_node(run, random_state),
        lambda: killed_aggregator(run, random_state),
        lambda: lost_node(run, random_state),
        lambda: drained_node(run, random_state),
        lambda: killed_learner(run, random_state),
    ]
    run.meet(faults, random_state, f"{TWO_LEVELS} --address {run.cluster.address}")

    last = max(run.checkpoints())
    run.wait_for(lambda: sum(update > last for update in run.checkpoints()) >= 2, "two checkpoints")
    assert "Traceback" not in run.output()
    run.resume_without_newest_checkpoint("--address", run.cluster.address)

    summary = account_of(run.path)
    assert summary["gradients_applied"] == K * summary["updates"]
    # Seven were replaced. What came between a checkpoint and the learner's death is not counted.
    assert summary["actor_restarts"] >= 6
    lost = summary["rollouts_lost_with_actors"]
    # Two nodes, a drained node, six actors, and what was under way at the end.
    assert 12 <= lost <= 60
    assert summary["agent_steps_lost_with_actors_at_most"] == lost * ROLLOUT_AGENT_STEPS
    # Three faults, and the update that the end leaves unfinished.
    assert sum(summary["agent_steps_dropped"].values()) <= 4 * K * ROLLOUT_AGENT_STEPS
    run.wait_until_gone()
    assert set(Path("/dev/shm").iterdir()) <= run.segments
