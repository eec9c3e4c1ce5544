"""The target network: when it is copied, and that it comes back from a checkpoint."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from learners import checkpoints, make_learner, q_learner, report

from shared.config import MethodConfig, RunConfig


def test_the_target_is_copied_when_agent_steps_cross_a_multiple(cartpole: RunConfig) -> None:
    """10 agent steps a report, interval 25: at 30, 50 and 80, of the weights after the update of that report."""
    learner = q_learner(cartpole)
    first = learner.target_snapshot()
    seen = []
    for sequence in range(1, 9):
        learner.submit(report(sequence, version=learner.version))
        seen.append(learner.target_snapshot().version)
        if sequence in (3, 5, 8):
            np.testing.assert_array_equal(learner.target_snapshot().parameters, learner.snapshot().parameters)
    assert seen == [0, 0, 1, 1, 2, 2, 2, 3]
    np.testing.assert_array_equal(first.parameters, np.ones(5, np.float32))
    assert make_learner(cartpole).target_snapshot() is None


def test_without_a_target_network_there_is_neither_a_copy_nor_a_variable_of_it(cartpole: RunConfig) -> None:
    method = MethodConfig(name="q_learning", target_network=False, target_interval_agent_steps=25)
    learner = make_learner(replace(cartpole, method=method))
    for sequence in range(1, 9):
        learner.submit(report(sequence, version=learner.version))
    assert learner.target_snapshot() is None
    assert learner.target_updates == 0
    assert "target_parameters" not in learner.variables()


def test_a_dropped_report_moves_the_target_too_as_its_steps_were_sampled(cartpole: RunConfig) -> None:
    learner = q_learner(cartpole)
    for sequence in (1, 2, 3):
        learner.submit(report(sequence, version=9))
    assert learner.version == 0
    assert learner.target_updates == 1


def test_target_and_its_clock_survive_a_checkpoint(cartpole: RunConfig, tmp_path: Path) -> None:
    learner, other = q_learner(cartpole), q_learner(cartpole)
    for sequence in range(1, 5):
        learner.submit(report(sequence, version=learner.version))
    checkpoints(learner, tmp_path).save(learner.version)
    checkpoints(other, tmp_path).restore()
    np.testing.assert_array_equal(other.target_snapshot().parameters, learner.target_snapshot().parameters)
    assert not np.array_equal(other.target_snapshot().parameters, other.snapshot().parameters)
    assert other.target_snapshot().version == 1
    other.submit(report(5, version=other.version))
    assert other.target_snapshot().version == 2
