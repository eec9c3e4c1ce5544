"""Runs the probes of `launch.machine` on every node of a Ray cluster."""

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from rich.console import Console

from launch.machine.doctor import check_reports, probe, quick_probe
from launch.on_ray.cluster import cluster_nodes, join, on_node
from launch.on_ray.placement import Node, learner_node
from shared.config import RunConfig
from shared.errors import one_line

_TRANSFER_BYTES = 16 * 10**6
# A node that is busy for a moment is neither late nor slow.
_SAMPLES = 3
# Enough for a process that imports TensorFlow on a busy machine.
_PROBE_SECONDS = 120.0


def probe_cluster(address: str, console: Console) -> list[dict[str, Any]]:
    """A full report of each node, with its clock and the rate at which data comes from the learner's node.

    Raises:
        ConfigurationError: no cluster answers at the address, or it runs another version of Ray or Python.
    """
    try:
        join(address)
        nodes = cluster_nodes()
        console.print(f"{len(nodes)} nodes …", style="dim", highlight=False)
        reports = _ask(nodes, probe)
        learner, _ = learner_node(RunConfig(), nodes)
        for node, report in zip(nodes, reports, strict=True):
            if "error" in report:
                continue
            report["clock_skew_seconds"] = _clock_skew(node)
            if node.id != learner.id:
                report["transfer_bytes_per_second"] = _transfer_rate(learner, node)
        return reports
    finally:
        ray.shutdown()


def check_nodes() -> None:
    """Compare every node of the cluster that was joined with this process, before a run. Takes seconds.

    Raises:
        ConfigurationError: names a node that disagrees with this process, and what to do there.
    """
    check_reports(_ask(cluster_nodes(), quick_probe))


def _ask(nodes: list[Node], question: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Have all nodes answer at the same time. One report each, in their order; one that failed has an `error`."""
    calls = [_on(node, question).remote() for node in nodes]
    reports = []
    deadline = time.monotonic() + _PROBE_SECONDS
    for node, call in zip(nodes, calls, strict=True):
        try:
            report = ray.get(call, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            report = {"error": f"no answer within {_PROBE_SECONDS:.0f} s", "advice": "see ray logs on that node"}
        except ray.exceptions.RayError as error:
            report = _failure(error)
        reports.append(report | {"node": node.address})
    return reports


def _failure(error: Exception) -> dict[str, Any]:
    text = one_line(error)
    package = re.search(r"'(\w+)' is not a package", text)
    if package is not None:
        return {
            "error": f"a file there takes the place of the project's package {package[1]}",
            "advice": f"python -c 'import {package[1]}; print({package[1]})' names it there: rename it",
        }
    if "ModuleNotFoundError" in text or "No module named" in text:
        missing = text.rpartition("No module named ")[2][:40].split("'")[1::2]
        return {
            "error": f"{', '.join(missing) or 'the project'} cannot be imported there",
            "advice": "copy this folder there and run: pip install --editable .",
        }
    return {"error": text[-200:], "advice": "see ray logs on that node"}


def _on(node: Node, function: Callable[..., Any]) -> Any:
    options = {"num_cpus": 0, "max_retries": 0, **on_node(node.id)}
    return ray.remote(function).options(**options)


def _clock_skew(node: Node) -> float:
    """Seconds by which the clock of a node is ahead, by the quickest of several answers: others were held up."""
    samples = []
    for _ in range(_SAMPLES):
        asked = time.time()
        there = ray.get(_on(node, _clock).remote())
        answered = time.time()
        samples.append((answered - asked, there - (asked + answered) / 2))
    return min(samples)[1]


def _transfer_rate(source: Node, node: Node) -> float:
    """Bytes a second from one node to another: the best of several transfers, each of data that is not there yet."""
    seconds = []
    for _ in range(_SAMPLES):
        data = _on(source, _put).remote(_TRANSFER_BYTES)
        ray.wait([data], fetch_local=False)
        seconds.append(ray.get(_on(node, _get_seconds).remote([data])))
    return _TRANSFER_BYTES / min(seconds)


def _put(size: int) -> np.ndarray:
    return np.ones(size, np.uint8)


def _get_seconds(refs: list[ray.ObjectRef]) -> float:
    started = time.perf_counter()
    ray.get(refs[0])
    return time.perf_counter() - started


def _clock() -> float:
    return time.time()
