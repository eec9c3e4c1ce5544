"""Metrics of a run as Ray's own metrics, for a Prometheus that scrapes the cluster."""

from collections import Counter as Counts

from ray.util.metrics import Counter, Gauge

from launch.run.events import Progress
from shared.types import Video


class RayMetrics:
    """A `Tracker` that writes to Ray's metrics agent, which prefixes the names with `ray_`.

    `run`, the name of the run's folder, is a tag of each.
    """

    def __init__(self, run: str) -> None:
        tags = {"run": run}
        totals = {
            "frames": "Global frames",
            "agent_steps": "Agent steps sampled",
            "updates": "Updates applied",
            "actor_restarts": "Actors replaced",
        }
        gauges = {
            "policy_lag_mean": "Mean policy lag, in updates, of the last interval",
            "policy_lag_max": "Largest policy lag of the last interval",
            "actors_alive": "Actors alive",
            "agent_steps_per_second": "Agent steps a second in the last interval",
            "mean_return_100": "Mean unclipped return of the last 100 training episodes",
        }
        self._totals = {n: Counter(f"tributary_{n}", text, tag_keys=("run",)) for n, text in totals.items()}
        self._gauges = {n: Gauge(f"tributary_{n}", text, tag_keys=("run",)) for n, text in gauges.items()}
        self._dropped = Counter("tributary_agent_steps_dropped", "Agent steps dropped", tag_keys=("run", "reason"))
        for metric in (*self._totals.values(), *self._gauges.values(), self._dropped):
            metric.set_default_tags(tags)
        self._before: Counts[str] = Counts()

    def write(self, row: Progress) -> None:
        for name, total in self._totals.items():
            self._add(total, name, getattr(row, name), {})
        for name, gauge in self._gauges.items():
            value = getattr(row, name)
            if value is not None:
                gauge.set(value)
        for reason, count in row.agent_steps_dropped.items():
            self._add(self._dropped, reason, count, {"reason": reason})

    def write_video(self, video: Video, frames: int) -> None:
        """Prometheus takes numbers only."""

    def close(self) -> None:
        """Nothing to close."""

    def _add(self, counter: Counter, name: str, now: int, tags: dict[str, str]) -> None:
        # A restarted learner counts from its checkpoint; a counter must not fall, and repeated steps count once.
        if now > self._before[name]:
            counter.inc(now - self._before[name], tags=tags)
            self._before[name] = now
