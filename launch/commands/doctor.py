"""`tributary doctor`: whether every machine can do its part, and what to do where it cannot."""

import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from launch.machine.budget import ACTOR_BYTES
from launch.output.exit_codes import EXIT_DONE, EXIT_FAILED
from launch.output.hardware import machine_bytes, usable_cores
from launch.output.json_file import check_json_file, write_json
from launch.output.provenance import provenance, revision, versions
from shared.errors import ConfigurationError

_LEAST_PYTHON = (3, 11)
_MOST_CLOCK_SKEW_SECONDS = 1.0
_LEAST_SHARED_BYTES = 512 * 2**20
_LEAST_TRANSFER_BYTES_PER_SECOND = 10e6


@dataclass(frozen=True)
class DoctorArguments:
    """Check this machine, or every node of a cluster: versions, game files, memory, a real environment step, a real
    graph call, clocks, and the network to the learner's node."""

    address: str = "local"
    """Ray cluster to check, as in tributary train. local: this machine alone."""
    json: Path | None = None
    """File to write the findings to."""


class Finding(NamedTuple):
    """One failure: on which node, what is wrong, and the command or change that mends it."""

    node: str
    cause: str
    advice: str


def doctor(arguments: DoctorArguments) -> int:
    """Run `tributary doctor`. Returns the exit code: 1 if anything was found.

    Raises:
        ConfigurationError: no cluster answers at the address.
    """
    check_json_file(arguments.json)
    console = Console()
    if arguments.address == "local":
        reports = [probe() | {"node": "this machine"}]
    else:
        from launch.on_ray.probe import probe_cluster

        reports = probe_cluster(arguments.address, console)
    findings = find(reports, reference())
    _show(console, reports, findings)
    if arguments.json is not None:
        result = {"nodes": reports, "findings": [finding._asdict() for finding in findings], **provenance()}
        write_json(arguments.json, result)
    return EXIT_FAILED if findings else EXIT_DONE


def check_reports(reports: Sequence[dict[str, Any]]) -> None:
    """Refuse a cluster whose nodes do not agree.

    Raises:
        ConfigurationError: names the first node that does not, and what to do there.
    """
    findings = find(reports, reference())
    if findings:
        first = findings[0]
        more = f" ({len(findings) - 1} more: tributary doctor --address …)" if len(findings) > 1 else ""
        raise ConfigurationError(f"node {first.node}: {first.cause}; {first.advice}{more}")


def reference() -> dict[str, Any]:
    """What every node has to agree with: this process."""
    return {"python": platform.python_version(), "versions": versions(), "revision": revision()}


def quick_probe() -> dict[str, Any]:
    """What can be said of the machine of this process within a moment."""
    import ale_py.roms

    return {
        **reference(),
        "host": socket.gethostname(),
        "games": len(ale_py.roms.get_all_rom_ids()),
        "cores": usable_cores(),
        "memory_bytes": machine_bytes(),
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        "time": time.time(),
    }


def probe() -> dict[str, Any]:
    """All that can be said of the machine of this process: environment and graph are really run."""
    found = quick_probe()
    for name, measure in (("environment", _step_microseconds), ("graph", _graph_microseconds)):
        try:
            found[f"{name}_microseconds"] = measure()
        except Exception as error:
            # Whatever is broken there is what is looked for.
            found[f"{name}_error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return found


def _step_microseconds() -> float:
    import numpy as np

    from actors.environments import VectorEnvironment
    from shared.config import EnvironmentConfig

    environments = VectorEnvironment(EnvironmentConfig(), 8)
    environments.reset(0)
    steps = 50
    started = time.perf_counter()
    for _ in range(steps):
        environments.step(np.zeros(8, np.int32))
    environments.close()
    return 1e6 * (time.perf_counter() - started) / (8 * steps)


def _graph_microseconds() -> float:
    import numpy as np

    from launch.machine.tensorflow_process import prepare_tensorflow

    if "tensorflow" not in sys.modules:
        prepare_tensorflow(1, gpu=False)
    import tensorflow as tf

    from shared.graph import Graph

    weights = tf.Variable(np.eye(256, dtype=np.float32))
    graph = Graph(lambda x: tf.matmul(x, weights), [tf.TensorSpec((32, 256), tf.float32)])
    observations = np.ones((32, 256), np.float32)
    if not np.array_equal(graph(observations)[0].numpy(), observations):
        raise ArithmeticError("a product with the identity is not the identity")
    calls = 200
    started = time.perf_counter()
    for _ in range(calls):
        graph(observations)
    return 1e6 * (time.perf_counter() - started) / calls


def find(reports: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> list[Finding]:
    """What is wrong with the machines, given what they have to agree with."""
    findings = []
    for report in reports:
        node = report["node"]
        if "error" in report:
            findings.append(Finding(node, report["error"], report["advice"]))
            continue
        findings += [Finding(node, *found) for found in _disagreements(report, wanted)]
        findings += [Finding(node, *found) for found in _shortages(report)]
    return findings


def _disagreements(report: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    if tuple(int(n) for n in report["python"].split(".")[:2]) < _LEAST_PYTHON:
        found.append((f"Python {report['python']} is too old", "install Python 3.11 or newer there"))
    elif report["python"].split(".")[:2] != wanted["python"].split(".")[:2]:
        text = f"Python {report['python']}, and {wanted['python']} here"
        found.append((text, f"install Python {wanted['python']} there"))
    for package, version in wanted["versions"].items():
        there = report["versions"].get(package)
        if package != "python" and there != version:
            found.append(
                (
                    f"{package} {there or 'is missing'}, and {version} here",
                    f"run there: pip install {package}=={version}",
                )
            )
    if report["revision"] != wanted["revision"]:
        text = f"revision {report['revision']} of the project, and {wanted['revision']} here"
        found.append((text, "copy this folder there, or check out the same commit, and run: pip install --editable ."))
    return found


def _shortages(report: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    if not report["games"]:
        found.append(("ale-py has no game files", "run there: pip install --force-reinstall ale-py"))
    for name, advice in (
        ("environment", "run there: python -c 'import ale_py.vector_env'"),
        ("graph", "run there: python -c 'import tensorflow'"),
    ):
        if f"{name}_error" in report:
            found.append((f"the {name} does not run: {report[f'{name}_error']}", advice))
    if report["memory_bytes"] < 2 * ACTOR_BYTES:
        found.append((f"{report['memory_bytes'] >> 20} MiB of memory", "learner and one actor need about 2 GiB"))
    shared = report["shared_memory_bytes"]
    if shared is not None and shared < _LEAST_SHARED_BYTES:
        text = f"/dev/shm holds {shared >> 20} MiB"
        found.append((text, "start the container with --shm-size=2g, or mount a larger tmpfs there"))
    skew = report.get("clock_skew_seconds")
    if skew is not None and abs(skew) > _MOST_CLOCK_SKEW_SECONDS:
        found.append((f"its clock is {skew:+.1f} s off", "run there: timedatectl set-ntp true"))
    rate = report.get("transfer_bytes_per_second")
    if rate is not None and rate < _LEAST_TRANSFER_BYTES_PER_SECOND:
        text = f"16 MB from the learner's node come at {rate / 1e6:.1f} MB/s"
        found.append((text, "check the network; --transfer.precision bfloat16 halves the bytes"))
    return found


def _show(console: Console, reports: Sequence[dict[str, Any]], findings: Sequence[Finding]) -> None:
    here = reference()
    shown = ("tensorflow", "ray", "ale-py")
    packages = ", ".join(f"{name} {here['versions'][name]}" for name in shown)
    console.print(f"here: Python {here['python']}, {packages}, revision {here['revision']}", highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "as here", "cores", "GiB", "shm GiB", "step µs", "graph µs", "clock s", "MB/s"):
        table.add_column(heading, justify="left" if heading == "node" else "right", no_wrap=True)
    for report in reports:
        if "error" in report:
            table.add_row(report["node"], "no")
            continue
        shared, skew = report["shared_memory_bytes"], report.get("clock_skew_seconds")
        rate = report.get("transfer_bytes_per_second")
        table.add_row(
            report["node"],
            "no" if _disagreements(report, here) else "yes",
            f"{report['cores']}",
            f"{report['memory_bytes'] / 2**30:.1f}",
            "-" if shared is None else f"{shared / 2**30:.1f}",
            f"{report['environment_microseconds']:.0f}" if "environment_microseconds" in report else "fails",
            f"{report['graph_microseconds']:.0f}" if "graph_microseconds" in report else "fails",
            "-" if skew is None else f"{skew:+.3f}",
            "-" if rate is None else f"{rate / 1e6:,.0f}",
        )
    console.print(table, highlight=False)
    for finding in findings:
        line = f"{finding.node}: {finding.cause}; {finding.advice}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if findings:
        console.print(f"{len(findings)} found", highlight=False)
    else:
        console.print("all is well; MB/s: 16 MB from the learner's node" if len(reports) > 1 else "all is well")
