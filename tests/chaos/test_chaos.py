"""Runs that meet every fault there is, from a seeded schedule, and finish with an exact account: of one level, and with
gradients that are summed on nodes."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from accounts import account_of
from nodes import add, node_of
from ray.cluster_utils import Cluster
from waiting import UNTIL_FRAMES, wait_for
from watched_processes import output_of, processes_with

pytestmark = pytest.mark.chaos

FAULTS = Path(__file__).parent / "faults"
ENDLESS = "--total-frames", "1000M"
EVERY_RUN = (
    f"cartpole {UNTIL_FRAMES} --actor.environments 4 --actor.unroll-length 10 --actor.epochs 2 --actor.minibatches 2 "
    "--log-every-seconds 0.5 --checkpoint.every-seconds 1 --supervision.max-restarts 100"
)
Fault = Callable[[], object]


class ChaosRun:
    """A run whose folder is a small disk of its own, and what can be done to it.

    `counts` are the processes of each kind that it has when nothing is wrong.
    """

    def __init__(self, folder: Path, counts: Mapping[str, int], deadline_seconds: float = 90) -> None:
        assert os.geteuid() == 0, "make chaos mounts a small disk, and so needs root"
        self.counts, self.deadline_seconds = counts, deadline_seconds
        self.requests = folder / "requests"
        self.requests.mkdir()
        self.disk = folder / "disk"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(self.disk)], check=True)
        self.path = self.disk / "run"
        self.environment = os.environ | {"CHAOS_FOLDER": str(self.requests), "PYTHONPATH": str(FAULTS)}
        self.driver: subprocess.Popen[bytes]
        self.shown = folder / "shown.txt"
        self.segments = set(Path("/dev/shm").iterdir())

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "launch.cli", "train", *arguments]
        with self.shown.open("wb") as shown:
            self.driver = subprocess.Popen(command, env=self.environment, stdout=shown, stderr=subprocess.STDOUT)

    def meet(self, faults: list[Fault], random_state: random.Random, settings: str) -> None:
        """Start with `EVERY_RUN` and these settings, and let it meet all faults in a random order."""
        random_state.shuffle(faults)
        self.start(*EVERY_RUN.split(), *settings.split(), *ENDLESS, "--run-dir", str(self.path))
        for fault in faults:
            self.wait_for_progress()
            fault()

    def output(self) -> str:
        """What the driver has shown since its last start. The log is on the small disk, this is not."""
        return self.shown.read_text(errors="replace")

    def wait_for_end(self) -> str:
        self.driver.wait(self.deadline_seconds)
        return self.output()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        def shown() -> str:
            return f"{self.log()}\n{self.output()}"

        wait_for(condition, what, process=self.driver, shown=shown, seconds=self.deadline_seconds)

    def wait_for_progress(self) -> None:
        before = self.updates()
        # Down is progress too: a learner that has died goes on from its checkpoint.
        self.wait_for(lambda: self.updates() != before, "progress")

    def log(self) -> str:
        with suppress(OSError):
            return (self.path / "log.txt").read_text()
        return ""

    def updates(self) -> int:
        lines = (self.path / "metrics.jsonl").read_text().splitlines() if (self.path / "metrics.jsonl").exists() else []
        for line in reversed(lines):
            # A row may be half written at this moment, and stays half written on a full disk.
            with suppress(ValueError):
                return json.loads(line)["updates"]
        return 0

    def end(self) -> None:
        for pid in self.processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["umount", "-l", str(self.disk)], check=True)

    def processes(self) -> dict[int, str]:
        """Every process of the run, by what it is called: they inherit the name of the folder of requests."""
        return processes_with(f"CHAOS_FOLDER={self.requests}")

    def pids(self, kind: str) -> list[int]:
        """Without those that a signal has stopped: they are at work no more, and gone as soon as that is found."""
        found = (pid for pid, command in self.processes().items() if command.startswith(f"ray::{kind}"))
        return sorted(pid for pid in found if not is_stopped(pid))

    def one_of(self, kind: str, random_state: random.Random) -> int:
        """The id of one of these processes, as soon as all are there: those that are on their way out are not meant."""
        seen: list[int] = []

        def all_are_there() -> bool:
            seen[:] = self.pids(kind)
            return len(seen) == self.counts[kind]

        self.wait_for(all_are_there, kind)
        return random_state.choice(seen)

    def signal_one(self, kind: str, number: int, random_state: random.Random) -> None:
        os.kill(self.one_of(kind, random_state), number)

    def request(self, fault: str) -> None:
        (self.requests / fault).touch()
        self.wait_for((self.requests / f"{fault}.met").exists, fault)
        (self.requests / f"{fault}.met").unlink()

    def checkpoints(self) -> list[int]:
        return sorted(int(file.stem.removeprefix("update-")) for file in (self.path / "checkpoints").glob("*.index"))

    def kill_driver(self) -> None:
        os.kill(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        wait_for(lambda: not self.processes(), "the end", shown=self.processes, seconds=self.deadline_seconds)

    def resume_without_newest_checkpoint(self, *arguments: str) -> None:
        """Kill the driver, damage the newest checkpoint, resume from the one before it, and stop by SIGTERM."""
        self.kill_driver()
        newest = self.checkpoints()[-1]
        data = self.path / "checkpoints" / f"update-{newest}.data-00000-of-00001"
        damaged = bytearray(data.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        data.write_bytes(damaged)
        self.start("--resume", str(self.path), *ENDLESS, *arguments)
        self.wait_for(lambda: f"update-{newest} is damaged and was passed over" in self.log(), "the damaged checkpoint")
        self.wait_for_progress()
        self.driver.send_signal(signal.SIGTERM)
        output = self.wait_for_end()
        assert self.driver.returncode == 130, output
        assert "Traceback" not in output


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has stopped this process; not where it has ended."""
    with suppress(OSError):
        # "pid (name) state …"; a name may have brackets and spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def common_faults(
    run: ChaosRun, actor: str, random_state: random.Random, of_actor: Callable[..., None] | None = None
) -> list[Fault]:
    """Faults of processes called `actor`, by `of_actor` or `actor_fault`; of reports, and of the disk."""
    meet = of_actor or actor_fault
    return [
        lambda: meet(run, lambda: run.signal_one(actor, signal.SIGKILL, random_state), "process died"),
        lambda: meet(run, lambda: run.signal_one(actor, signal.SIGSTOP, random_state), "the actor hangs"),
        lambda: meet(run, lambda: run.request("environment_raises"), "the environment raised"),
        lambda: meet(run, lambda: run.request("environment_never_returns"), "the actor hangs"),
        lambda: dropped_report(run, "nan_gradient", "non_finite"),
        lambda: dropped_report(run, "wrong_layout", "wrong_layout"),
        lambda: dropped_report(run, "duplicate_report", "duplicate"),
        lambda: full_disk(run),
    ]


def actor_fault(run: ChaosRun, act: Fault, line: str) -> None:
    lines, replaced, before = run.log().count(line), run.log().count(" replaces actor "), set(run.pids("Actor"))
    act()
    run.wait_for(lambda: run.log().count(line) > lines, line)
    run.wait_for(lambda: run.log().count(" replaces actor ") > replaced, "a replacement")
    # One that hangs has some seconds to close its environments, and must not be met by the next fault.
    run.wait_for(lambda: not before <= set(run.pids("Actor")), "the end of its process")


def dropped_report(run: ChaosRun, fault: str, reason: str) -> None:
    assert f"for the reason {reason}" not in run.log()
    run.request(fault)
    run.wait_for(lambda: f"for the reason {reason}" in run.log(), reason)


def failed_saves(run: ChaosRun) -> int:
    return len(re.findall(r"checkpoint of update \d+ could not be written", run.output()))


def fill(file: Path) -> None:
    """Let a file grow until not a byte of its disk is left; what others wrote before stays."""
    with suppress(OSError), file.open("ab", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 12))


def full_disk(run: ChaosRun) -> None:
    filler = run.disk / "filler"
    kept = run.checkpoints()[-1]
    fill(filler)
    failed = failed_saves(run)

    def two_more_have_failed() -> bool:
        # A save that fails clears away what it has written: room for the next one.
        fill(filler)
        return failed_saves(run) >= failed + 2

    run.wait_for(two_more_have_failed, "checkpoints that fail")
    assert kept in run.checkpoints()
    newest = max(run.checkpoints())
    filler.unlink()
    run.wait_for(lambda: max(run.checkpoints()) > newest, "a checkpoint after the disk has room again")


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
    assert int(printed.split("; ")[1].split()[0]) > 5


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
    # Two nodes, six actors, and what was under way at the end.
    assert 10 <= lost <= 60
    assert summary["agent_steps_lost_with_actors_at_most"] == lost * ROLLOUT_AGENT_STEPS
    # Three faults, and the update that the end leaves unfinished.
    assert sum(summary["agent_steps_dropped"].values()) <= 4 * K * ROLLOUT_AGENT_STEPS
    run.wait_until_gone()
    assert set(Path("/dev/shm").iterdir()) <= run.segments
