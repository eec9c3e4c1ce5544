"""What both Ray executors do alike, with nothing of Ray but the names of its calls."""

from typing import Any

import pytest
from ray.exceptions import RayError

from actors.environments import environment_spec
from launch.loop.executor import Completion, Failed
from launch.on_ray import members
from launch.on_ray.members import Call, Member, RayMembers
from shared.config import RunConfig


class Members(RayMembers[Member]):
    """Completes a call by its result."""

    def _completion(self, call: Call, result: Any) -> Completion:
        assert call.actor_id is not None
        return result


def test_calls_of_one_actor_are_taken_in_order_though_a_later_one_is_ready_first(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = {"0 later", "1 first"}
    executor = Members(cartpole, environment_spec(cartpole.environment), None)
    executor._calls = {"0 first": Call(0), "0 later": Call(0), "1 first": Call(1), "evaluation": Call(None)}

    def wait(refs: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert (num_returns, timeout > 0) == (1, True)
        return [ref for ref in refs if ref in ready][:1], []

    monkeypatch.setattr(members.ray, "wait", wait)
    monkeypatch.setattr(members.ray, "get", lambda ref: ref)
    assert executor.next_completion() == "1 first"
    assert executor.next_completion() is None
    ready |= {"0 first", "evaluation"}
    assert [executor.next_completion() for _ in range(3)] == ["0 first", "0 later", "evaluation"]
    assert executor.calls_in_flight == 0


def test_a_call_that_failed_counts_as_under_way_until_its_actor_is_removed(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise RayError("it is gone")

    executor = Members(cartpole, environment_spec(cartpole.environment), None)
    executor._calls = {"first": Call(0)}
    monkeypatch.setattr(members.ray, "wait", lambda refs, **_: (refs, []))
    monkeypatch.setattr(members.ray, "get", fail)
    assert executor.next_completion() == Failed(0, "its rollout raised: it is gone")
    assert executor.calls_in_flight == 1
    executor._calls = {"evaluation": Call(None)}
    assert executor.next_completion() == Failed(None, "its evaluation raised: it is gone")


def test_evaluations_that_are_dropped_leave_the_rollouts(cartpole: RunConfig) -> None:
    executor = Members(cartpole, environment_spec(cartpole.environment), None)
    executor._calls = {"first": Call(0), "evaluation": Call(None), "second": Call(0), "other": Call(None)}
    executor.drop_evaluations()
    assert list(executor._calls) == ["first", "second"]
