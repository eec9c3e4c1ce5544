"""Counts go on over the processes of a run, by the keys that checkpoints have."""

import pytest

from launch.run.status import RunCounts

OF_A_CHECKPOINT = {
    "elapsed_seconds": 12.5,
    "messages": 40,
    "actor_restarts": 2,
    "rollouts_lost": 3,
    "learner_restarts": 1,
    "agent_steps_lost": 120,
}


def test_what_is_restored_is_what_was_saved_and_new_counts_come_on_top() -> None:
    earlier = RunCounts.restored(OF_A_CHECKPOINT | {"next_actor_id": 9})
    assert earlier.state() == OF_A_CHECKPOINT
    now = earlier + RunCounts(elapsed_seconds=0.5, messages=2, rollouts_lost=1)
    assert now == RunCounts(13.0, 42, 2, 4, 1, 120)


def test_a_checkpoint_of_an_older_version_has_no_messages_and_all_else() -> None:
    older = {name: count for name, count in OF_A_CHECKPOINT.items() if name != "messages"}
    assert RunCounts.restored(older).messages == 0
    with pytest.raises(KeyError):
        RunCounts.restored({})
