"""Many actors played by one: they share environments and network, and each has its own version and rollout."""

from actors.actor import Actor, PutAside
from actors.environments import EnvironmentSpec
from launch.loop.repeating_executor import RepeatingExecutor
from shared.config import RunConfig
from shared.types import GradientReport, WeightSnapshot


class VirtualActors(RepeatingExecutor):
    """A `RepeatingExecutor` whose actors share the environments, the network and the exploration of its first one.

    Each call acts and differentiates with the weights that were published when it was dispatched, as with actors of
    their own, so gradients meet the versions that those of so many actors would. Weights are kept for as long as a call
    has them: up to N + 1 versions, 4 bytes a parameter each. Where a rollout gives several gradients, each actor keeps
    its rollout until it is done.

    It differs from N actors in that the rollouts of all of them are pieces of the same episodes, one after the other.
    So everything but the versions is the same for every N, and one actor is that of an ordinary run, to the bit.

    Args:
        config: of the run; its `replay_arrivals` says in which order they report.
        spec: of its environment.
        actors: N.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actors: int) -> None:
        self._shared = Actor(config, spec, 0)
        # None where a rollout gives one gradient: nothing is ever unfinished.
        self._fresh = self._shared.put_aside()
        self._put_aside: dict[int, PutAside] = {}
        super().__init__(config, spec, actors)

    def make_actor(self, actor_id: int) -> Actor:  # noqa: ARG002
        """See `InlineExecutor.make_actor`: the same for all."""
        return self._shared

    def play(self, actor_id: int, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:
        """See `InlineExecutor.play`."""
        unfinished = self._put_aside.pop(actor_id, self._fresh)
        if unfinished is not None:
            self._shared.take_up(unfinished)
        report = self._shared.run(snapshot, target)
        unfinished = self._shared.put_aside()
        if unfinished is not None:
            self._put_aside[actor_id] = unfinished
        # Its sequence numbers rise for each of them, too.
        return report._replace(actor_id=actor_id)

    def close(self) -> None:
        """See `Executor.close`."""
        self._shared.close()
