"""Repeats an asynchronous run in one thread: calls end, and actors come and go, as its record says."""

from collections.abc import Sequence

from actors.environments import EnvironmentSpec
from launch.loop.arrivals import Arrival, RecordedOrder
from launch.loop.executor import Completion, Failed
from launch.loop.inline_executor import InlineExecutor
from launch.loop.supervision import TrainingStoppedError
from shared.config import RunConfig

_REASON = "lost, as in the run that is repeated"


class RepeatingExecutor(InlineExecutor):
    """An `InlineExecutor` that runs its calls in the order of `replay_arrivals`, until that ends.

    What the coordinator does about actors that are lost or join follows from its rules, as it did in the run that is
    repeated. Where these rules went by the cluster or by a clock, this executor answers so that the same comes of them.

    Args: those of `InlineExecutor`.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actors: int, first_actor_id: int = 0) -> None:
        super().__init__(config, spec, actors, first_actor_id)
        assert config.replay_arrivals is not None
        self._order = RecordedOrder(config.replay_arrivals)
        self._paused_before = 0

    def drop_evaluations(self) -> None:
        """See `Executor.drop_evaluations`: nothing is dropped, as the record has them."""

    def next_completion(self) -> Completion | None:
        arrival, line = self._order.next, self._order.line
        if arrival is None:
            # With nothing under way, the coordinator's loop ends too.
            self._calls.clear()
            return None
        if self._order.tells_replacements and self._paused_before != line:
            # Who joins between two lines, or is asked for nothing more, is looked after when nothing completes.
            self._paused_before = line
            return None
        self._order.advance()
        call = next((call for call in self._calls if call.actor_id == arrival.actor_id), None)
        if arrival.kind in ("lost", "lost-with-node") and arrival.actor_id in self._actors:
            return Failed(arrival.actor_id, _REASON, node_lost=arrival.kind == "lost-with-node")
        if call is not None and arrival.kind == "lost-evaluator":
            return Failed(None, _REASON)
        if call is not None and arrival.kind in ("report", "evaluation"):
            self._calls.remove(call)
            return self._run(call)
        raise self._misfit(line, arrival)

    def remove(self, actor_id: int) -> None:
        super().remove(actor_id)
        if self._order.next == Arrival("released", actor_id):
            self._order.advance()

    def add(self) -> int | None:
        if not self._order.tells_replacements:
            return super().add()
        arrival, line = self._order.next, self._order.line
        # One at a time: whether it joins or replaces another follows from who was missing when its line was reached.
        if arrival is None or arrival.kind not in ("replacement", "joined") or self._paused_before != line:
            return None
        actor_id = super().add()
        if arrival.actor_id != actor_id:
            raise self._misfit(line, arrival)
        self._order.advance()
        return actor_id

    def room(self) -> int:
        return self._order.room

    def draining(self) -> Sequence[int]:
        # An actor that is asked for nothing more has as many reports to make as it was asked for.
        left = self._order.reports_before_release
        return [actor_id for actor_id in left if left[actor_id] == self.rollouts_under_way(actor_id) > 0]

    def replace_evaluator(self) -> None:
        super().drop_evaluations()
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None

    def _misfit(self, line: int, arrival: Arrival) -> TrainingStoppedError:
        return TrainingStoppedError(
            f"--replay-arrivals {self._config.replay_arrivals}: line {line} is {str(arrival)!r}, which nothing under "
            f"way fits: it is the order of a run with other settings"
        )
