"""An actor: weights in, one gradient out."""

import time
from typing import cast

import numpy as np
import numpy.typing as npt

from actors.device_player import DevicePlayer
from actors.environments import EnvironmentSpec
from actors.evaluator import Evaluator
from actors.gradient import GradientGraphs, Gradients, RolloutGradient
from actors.player import Player
from actors.policy import Policy
from shared.config import RunConfig
from shared.graph import aligned_copy
from shared.moments import Moments
from shared.seeds import actor_seeds, seed_global_generators
from shared.types import (
    EvaluationPart,
    EvaluationShare,
    GradientReport,
    Heartbeat,
    NextCall,
    Rollout,
    StageSeconds,
    WeightSnapshot,
)


class Actor:
    """Steps a batch of environments and differentiates the loss over the rollout.

    One call of `run` is one turn of the loop of a thread in Algorithms S2 and S3 of the paper (arXiv 1602.01783):
    synchronise the weights, act for t_max steps, accumulate gradients backwards from the bootstrapped return, and
    report them. If a rollout gives several gradients, the calls after its first one only synchronise and differentiate.
    An actor has environments and networks, and no training state. In between it plays its share of an evaluation. Its
    rollouts are played by a `Player` on the CPU, or by a `DevicePlayer` on a GPU.

    `actor_id` is unique in the run, and determines the random streams. `graphs_of` is another actor of this process:
    both use one network and its graphs, with results equal to the bit. Tracing a graph again would take a third of a
    second and some 10 MB.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actor_id: int,
        graphs_of: "Actor | None" = None,
        emulator_threads: int = 1,
    ) -> None:
        self.actor_id = actor_id
        self._sequence = 0
        actor = config.actor
        seeds = actor_seeds(config.seed, actor_id, actor.environments)
        seed_global_generators(seeds.actions)
        on_gpu = actor.device == "gpu"
        if graphs_of is None:
            self._policy = (DevicePlayer if on_gpu else Player).make_policy(config, spec, seeds.actions)
            self._policy.explore_as(actor_id)
            self._gradients = Gradients(GradientGraphs(config, spec, self._policy), seeds.actions)
        else:
            self._policy = graphs_of._policy
            self._policy.add_exploration(actor_id, seeds.actions)
            self._gradients = Gradients(graphs_of._gradients.graphs, seeds.actions)
        parts = config, spec, self._policy, self._gradients, seeds.environments
        self._player = DevicePlayer(*parts, emulator_threads) if on_gpu else Player(*parts)
        self._builder = self._player.builder
        self._config, self._spec = config, spec
        self._evaluator: Evaluator | None = None
        # Policies of evaluations, by their number of environments.
        self._evaluation_policies: dict[int, Policy] = {} if graphs_of is None else graphs_of._evaluation_policies
        self._share: EvaluationShare | None = None
        self._keeps_moments = config.network.observation_scaling == "running"
        self._fresh = actor.fresh_gradients
        # Seconds by stage since the last report, and when the last stage ended.
        self._seconds = dict.fromkeys(StageSeconds._fields, 0.0)
        self._stage_ended = time.perf_counter()
        # Moments of observations and of returns, sent with the first gradient of a rollout.
        self._moments: tuple[Moments | None, Moments | None] = (None, None)
        # Warm-up rollouts that are still to be played, one in a call: a run that stops waits for calls under way.
        self._warm_up_rollouts_left = 0
        if actor.max_warm_up_rollouts:
            # The rollouts of many actors are a few consecutive steps of each. Episodes that begin together show one
            # phase of the game at a time, until they drift apart (arXiv 2511.21011).
            self._warm_up_rollouts_left = int(
                np.random.default_rng(seeds.actions).integers(1 + actor.max_warm_up_rollouts)
            )

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None = None) -> GradientReport | Heartbeat:
        """Act for T steps with the weights of `snapshot`, and report the gradient over them.

        If a rollout gives several gradients, only its first call acts. Each later call reports the next gradient of the
        same rollout at the weights of `snapshot`. `target` has the weights of the target network, for methods with one.

        With `actor.fresh_gradients` the call that acts returns `Heartbeat`, and the next call the first gradient, at
        the newest weights: only a call brings weights. Before its first rollout the actor plays up to 1,024 agent steps
        that are in no gradient, a rollout in each call.
        """
        self._end_stage("wait")
        self._synchronise(snapshot, target)
        if self.next_call is NextCall.WARM_UP:
            self._play_warm_up()
            return Heartbeat(self.actor_id, new_steps_follow=False)
        refused = None
        if self.next_call is NextCall.ROLLOUT:
            refused = self._play_rollout(snapshot)
            if refused is None and self._fresh:
                self._end_stage("gradient")
                return Heartbeat(self.actor_id)
        return self._report(snapshot, refused or self._next_gradient(snapshot))

    def _synchronise(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> None:
        self._policy.explore_as(self.actor_id)
        self._policy.assign(snapshot.parameters, snapshot.frames)
        self._gradients.graphs.assign_target(target)
        self._end_stage("synchronise")

    def _play_warm_up(self) -> None:
        """Play a rollout whose agent steps and seconds are in no gradient and no count."""
        self._player.play()
        self._warm_up_rollouts_left -= 1
        # Episodes under way still count from their starts.
        self._builder.take_episodes()
        self._builder.take_rewards()
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._stage_ended = time.perf_counter()

    def _play_rollout(self, snapshot: WeightSnapshot) -> RolloutGradient | None:
        """Play a rollout and begin its gradients. Returns a gradient of NaN in their place if it is not finite."""
        self._builder.reward_factor = snapshot.reward_factor
        rollout, environment, acting = self._player.play()
        self._seconds["environment"] += environment
        self._seconds["acting"] += acting
        self._stage_ended += environment + acting
        if self._builder.non_finite:
            steps = int(rollout.mask.sum())
            vector = np.full(self._policy.layout.size, np.nan, np.float32)
            return RolloutGradient(vector, {}, steps, steps, non_finite=self._builder.non_finite)
        self._gradients.begin(rollout, snapshot.advantage_moments)
        of_observations = self._moments_of(rollout) if self._keeps_moments else None
        self._moments = of_observations, self._builder.return_moments
        return None

    def _next_gradient(self, snapshot: WeightSnapshot) -> RolloutGradient:
        """The next gradient of the rollout. One that is not finite is the last, and stands for those after it."""
        gradient = self._gradients.next(snapshot.advantage_moments)
        non_finite = _non_finite_in(gradient)
        if not non_finite:
            return gradient
        # Later gradients of the rollout would be no better.
        dropped = self._gradients.drop()
        self._moments = None, None
        return gradient._replace(
            agent_steps=gradient.agent_steps + dropped,
            samples=gradient.samples + dropped,
            new_steps_follow=False,
            non_finite=non_finite,
        )

    def _report(self, snapshot: WeightSnapshot, gradient: RolloutGradient) -> GradientReport:
        self._end_stage("gradient")
        seconds, self._seconds = StageSeconds(**self._seconds), dict.fromkeys(self._seconds, 0.0)
        (observation_moments, return_moments), self._moments = self._moments, (None, None)
        self._sequence += 1
        return GradientReport(
            actor_id=self.actor_id,
            sequence=self._sequence,
            version=snapshot.version,
            layout_fingerprint=self._policy.layout.fingerprint,
            episodes=self._builder.take_episodes(),
            stage_seconds=seconds,
            observation_moments=observation_moments,
            return_moments=return_moments,
            rewards=self._builder.take_rewards(),
            **gradient._asdict(),
        )

    def _end_stage(self, stage: str) -> None:
        """Add the time since the end of the last stage to this one."""
        now = time.perf_counter()
        self._seconds[stage] += now - self._stage_ended
        self._stage_ended = now

    def evaluate(
        self, snapshot: WeightSnapshot, target: WeightSnapshot | None, share: EvaluationShare
    ) -> EvaluationPart:
        """Play on with a share of an evaluation, for about as many agent steps as a rollout has.

        The evaluation is of the weights of its first call. Its environments, exploration and memory are its own: the
        rollout under way and its gradients do not change.
        """
        self._gradients.graphs.assign_target(target)
        evaluator = self._evaluator_of(share)
        if self._share is None or self._share.number != share.number:
            evaluator.begin(snapshot._replace(parameters=aligned_copy(snapshot.parameters)), share.policy)
        self._share = share
        actor = self._config.actor
        steps = max(1, actor.unroll_length * actor.environments // share.size)
        part = evaluator.play(share.episodes, steps, number=share.number, actor_id=self.actor_id)
        self._stage_ended = time.perf_counter()
        return part

    def _evaluator_of(self, share: EvaluationShare) -> Evaluator:
        """The evaluator of a share, made at the first share, and again when the number of actors changes."""
        last = self._share
        if self._evaluator is None or last is None or (last.first, last.size) != (share.first, share.size):
            if self._evaluator is not None:
                self._evaluator.close()
            config, spec, count = self._config, self._spec, share.size
            if count not in self._evaluation_policies:
                network = self._policy.network
                policy = Policy(config, spec, environments=count, training=False, network=network)
                self._evaluation_policies[count] = policy
            policy = self._evaluation_policies[count]
            self._evaluator = Evaluator(config, spec, config.evaluation, first=share.first, count=count, policy=policy)
        return self._evaluator

    @property
    def next_call(self) -> NextCall:
        if self._warm_up_rollouts_left:
            return NextCall.WARM_UP
        return NextCall.ROLLOUT if self._gradients.rollout_is_done else NextCall.GRADIENT

    def _moments_of(self, rollout: Rollout) -> Moments:
        """The moments of the observations that were acted on."""
        # Those on a GPU are copied to the host.
        observations, _ = self._spec.split(np.asarray(rollout.observations[:-1]))
        parts, observations = self._spec.parts, observations[rollout.mask > 0.5]
        return Moments.of(observations if parts is None else parts.vectors(cast(npt.NDArray[np.uint8], observations)))

    def close(self) -> None:
        self._player.close()
        if self._evaluator is not None:
            self._evaluator.close()


def _non_finite_in(gradient: RolloutGradient) -> str:
    """Name of a non-finite number in a gradient or its loss; empty if the learner will find a finite norm."""
    # One pass without an allocation.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(gradient.gradient, gradient.gradient)):
            return ""
    losses = (f"loss ({name} {value})" for name, value in gradient.statistics.items() if not np.isfinite(value))
    return next(losses, "gradient")
