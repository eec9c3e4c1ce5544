"""The evaluator's process as both Ray executors hold it."""

from typing import Any

import ray

from actors.environments import EnvironmentSpec
from launch.on_ray.members import start_evaluator
from shared.config import RunConfig
from shared.types import EvaluationPolicy


class EvaluatorMember:
    """Starts the evaluator's process when it is first needed, as it takes as much memory as an actor.

    In a run that evaluates at intervals it starts at once, beside the actors.

    Args:
        config: of the run.
        spec: of its environment.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        self._config, self._spec = config, spec
        self._handle: Any = start_evaluator(config, spec) if config.evaluation.every_frames else None

    def run(self, weights: ray.ObjectRef, policy: EvaluationPolicy) -> ray.ObjectRef:
        """See `EvaluatorProcess.run`. Evaluations run one after the other."""
        if self._handle is None:
            self._handle = start_evaluator(self._config, self._spec)
        return self._handle.run.remote(weights, policy)

    def close(self) -> None:
        """End the process, dead or not. The next `run` starts another one."""
        if self._handle is not None:
            ray.kill(self._handle, no_restart=True)
        self._handle = None
