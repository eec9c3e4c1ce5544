"""Event traces of a run: their recording, and their replay with the same weights."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sessions import session

from launch.cli import main
from launch.loop.executor import Completion, Failed
from launch.loop.inline import InlineExecutor, ReplayExecutor
from launch.loop.trace import TraceReader
from shared.config import ActorConfig, EvaluationConfig, RunConfig, SupervisionConfig
from shared.errors import ConfigurationError

SMALL = (
    "train cartpole --executor inline --actors 2 --actor.environments 4 --actor.unroll-length 5 "
    "--actor.no-fresh-gradients --learner.gradients-per-update 1"
)


def repeat(order: Path, run: Path, more: str = "") -> dict:
    """The summary of a run by this order, after its own record was found to be the same."""
    again = run.with_suffix(".txt")
    line = f"{SMALL} {more} --replay-arrivals {order} --record-arrivals {again} --run-dir {run}"
    assert main(line.split()) == 0
    assert again.read_text() == order.read_text()
    return json.loads((run / "summary.json").read_text())


@pytest.mark.parametrize(
    ("trace", "settings", "expected"),
    [
        # Deaths were counted by the clock of the run that is repeated.
        (
            "joined 2, joined 3, lost 1, report 3, report 0",
            "--supervision.max-restarts 0",
            {"updates": 2, "actor_restarts": 0},
        ),
        # After 51 reports the target is crossed, and after one more of each both play the confirmation: four
        # episodes of nine steps in two environments each, in calls of ten vector steps.
        (
            "report 0, report 1, " * 26 + "report 0, " + "evaluation 1, " * 4 + "evaluation 0, " * 3 + "evaluation 0",
            "--stop-at-return 1 --stop-measure training --environment.options max_episode_steps 9 "
            "--evaluation.episodes 16 --evaluation.environments 4",
            {"status": "return_reached"},
        ),
        ("report 0, lost-with-node 1, lost-with-node 0", "", {"status": "trace_replayed", "updates": 1}),
        ("report 0, lost-with-node 1, lost 0", "", {"status": "trace_replayed", "updates": 1}),
        ("report 0, report 1, report 0", "--stop-after-seconds 1e-6", {"updates": 3}),
    ],
    ids=["joined first", "evaluation that ends the run", "no node left", "no actor left", "no time"],
)
def test_a_trace_is_repeated_without_the_clock(trace: str, settings: str, expected: dict, tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    order.write_text(f"version 3, actors 0 1, {trace}\n".replace(", ", "\n"))
    assert repeat(order, tmp_path / "run", settings).items() >= expected.items()


@pytest.mark.parametrize("line", ["report 2", "replacement 2", "evaluation 0", "lost-with-node 2"])
def test_what_does_not_fit_is_named_and_the_run_saved(line: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    order, run = tmp_path / "order.txt", tmp_path / "run"
    order.write_text(f"version 3\nactors 0 1\nreport 0\n{line}\njoined 3\nreport 0\n")
    assert main(f"{SMALL} --replay-arrivals {order} --run-dir {run}".split()) == 1
    mistake = f"--replay-arrivals {order}: line 4 is '{line}', which nothing under way fits"
    assert capsys.readouterr().out.count(f"training failed: {mistake}") == 1
    assert mistake in (run / "log.txt").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("failed", 1)
    assert (run / "checkpoints" / "update-1.index").is_file()


_MOST_ACTORS_MADE = 16


class TroubledExecutor(InlineExecutor):
    """Two actors. Ends any actor's oldest call next, as processes do, and has actors fail, nodes come, go and drain.

    `odds` are those of each kind of trouble before a completion.
    """

    def __init__(self, config: RunConfig, *arguments: Any, odds: dict[str, float]) -> None:
        super().__init__(config, *arguments)
        self._random, self._odds = random.Random(config.seed), odds
        self._places, self._made = 2, 2
        self._drains: set[int] = set()

    def next_completion(self) -> Completion | None:
        busy = sorted({call.actor_id for call in self._calls})
        if not busy:
            self._places = max(1, self._places)
            return None
        if self._happens("place") and self._made < _MOST_ACTORS_MADE:
            self._places += self._random.choice([-1, 1, 3])
        if self._happens("drain") and len(self._actors) > len(self._drains) + 1:
            self._drains.add(self._random.choice(sorted(set(busy) - self._drains) or busy))
        for node_lost in (False, True):
            if self._happens("node" if node_lost else "fail") and self._made < _MOST_ACTORS_MADE:
                self._places -= node_lost
                return Failed(self._random.choice(busy), "it is gone", node_lost=node_lost)
        ended = self._random.choice(busy)
        call = next(call for call in self._calls if call.actor_id == ended)
        self._calls.remove(call)
        return self._run(call)

    def add(self) -> int | None:
        if self.free_slots() <= 0:
            return None
        self._made += 1
        return super().add()

    def free_slots(self) -> int:
        return self._places - len(self._actors)

    def draining(self) -> Sequence[int]:
        return [actor_id for actor_id in self._actors if actor_id in self._drains]

    def _happens(self, what: str) -> bool:
        return self._random.random() < self._odds.get(what, 0.0)


@pytest.mark.parametrize("actor", [{"minibatches": 2}, {"fresh_gradients": True, "epochs": 2}], ids=["stale", "fresh"])
def test_a_replay_has_equal_weights(
    actor: dict[str, Any], cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise free slots are looked for once a second.
    monkeypatch.setattr("launch.loop.worker_pool._CHECK_SECONDS", 0.0)
    monkeypatch.setattr("launch.loop.worker_pool._FIRST_BACKOFF_SECONDS", 0.05)
    odds = {"fail": 0.02, "place": 0.04, "node": 0.02, "drain": 0.1}
    config = replace(
        cartpole,
        executor="inline",
        seed=2,
        total_frames=1000,
        actor=ActorConfig(environments=2, unroll_length=5, **actor),
        evaluation=EvaluationConfig(episodes=2, environments=2, every_frames=50),
        supervision=SupervisionConfig(max_restarts=100),
        # Crossed early: when, and with how many actors, follows from who plays.
        stop_at_return=15.0,
        stop_measure="training",
        record_arrivals=str(tmp_path / "order.txt"),
    )
    repeated = replace(config, replay_arrivals=config.record_arrivals, record_arrivals=str(tmp_path / "again.txt"))
    original = session(config, tmp_path / "original", 2, partial(TroubledExecutor, odds=odds))
    expected = original.run()
    again = session(repeated, tmp_path / "repetition", 2, ReplayExecutor)
    found = again.run()
    for count in ("status", "updates", "frames", "episodes", "policy_lag_max", "messages", "actor_restarts"):
        assert found[count] == expected[count], count
    np.testing.assert_array_equal(again.learner.snapshot().parameters, original.learner.snapshot().parameters)
    record = (tmp_path / "order.txt").read_text()
    assert (tmp_path / "again.txt").read_text() == record
    for event in ("lost ", "lost-with-node", "released", "joined", "evaluation "):
        assert event in record, "it has not happened"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with 'version 3' and its actors"),
        (b"version 3\nactors one\n", "does not begin with"),
        (b"version 3\nactors 0\nreport\n", "line 3 is 'report'"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_another_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        TraceReader(str(tmp_path / "order.txt"))


@pytest.mark.parametrize("name", ["order.txt", "link.txt"])
def test_a_trace_is_not_recorded_over_itself(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    order, content = tmp_path / "order.txt", "version 3\nactors 0 1\nreport 0\n"
    order.write_text(content)
    (tmp_path / "link.txt").symlink_to(order)
    line = f"{SMALL} --replay-arrivals {order} --record-arrivals {tmp_path / name} --run-dir {tmp_path / 'run'}"
    assert main(line.split()) == 2
    assert "is the trace that is replayed" in capsys.readouterr().err
    assert order.read_text() == content
