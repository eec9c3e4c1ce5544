"""An environment with actions that are not always allowed, and an agent that knows it.

In this folder: `tributary train job_picking:JobPicking-v0 --environment.action-mask action_mask --frames 300k`, and
then `python job_picking.py` plays with the agent of that run.
"""

from typing import Any

import gymnasium
import numpy as np

import tributary_rl as tributary

JOBS = 6


class JobPicking(gymnasium.Env):
    """Six jobs wait for one machine, and an action starts one: its number, unless the job is done already.

    Observations are the duration and the weight of each job in tenths, 0 for one that is done. The reward of a job is
    minus its weight times the time at which it ends, over 1000: best is to start the largest weight per duration.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (2 * JOBS,), np.float32)
    action_space = gymnasium.spaces.Discrete(JOBS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        self.jobs = self.np_random.integers(1, 10, (2, JOBS))
        self.time = 0
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        duration, weight = self.jobs[:, action]
        if not duration:
            raise ValueError(f"job {action} is done")
        self.time += duration
        self.jobs[:, action] = 0
        return self._observation(), -float(weight * self.time) / 1000, not self.jobs.any(), False, self._info()

    def _observation(self) -> np.ndarray:
        return (self.jobs / 10).ravel().astype(np.float32)

    def _info(self) -> dict[str, Any]:
        # At the end of an episode it may allow nothing.
        return {"action_mask": self.jobs[0] > 0}


if __name__ != "__main__":  # as a script this file is imported once more, by the name that the run has
    gymnasium.register("JobPicking-v0", JobPicking)


def play(run: str, seed: int = 0) -> float:
    """The return of one episode by the best actions of a run's agent."""
    agent = tributary.load(run, trust_imports=True)
    environment = agent.environment()
    observation, info = environment.reset(seed=seed)
    state, total, ended = None, 0.0, False
    while not ended:
        action, state = agent.act(observation, state, deterministic=True, mask=info["action_mask"])
        observation, reward, terminated, truncated, info = environment.step(action)
        total, ended = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    print(play("latest"))
