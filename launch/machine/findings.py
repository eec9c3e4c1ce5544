"""What is wrong with machines, from what was found on them, and what mends it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from launch.machine.budget import ACTOR_BYTES
from launch.machine.probe import reference
from shared.errors import ConfigurationError

_LEAST_PYTHON = (3, 11)
_MOST_CLOCK_SKEW_SECONDS = 1.0
_LEAST_SHARED_BYTES = 512 * 2**20
_LEAST_TRANSFER_BYTES_PER_SECOND = 10e6


class Finding(NamedTuple):
    """One failure: on which node, what is wrong, and the command or change that mends it."""

    node: str
    cause: str
    advice: str


def find(reports: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> list[Finding]:
    """What is wrong with the machines, given what they have to agree with."""
    findings = []
    for report in reports:
        node = report["node"]
        if "error" in report:
            findings.append(Finding(node, report["error"], report["advice"]))
            continue
        findings += [Finding(node, *found) for found in disagreements(report, wanted)]
        findings += [Finding(node, *found) for found in _shortages(report)]
    return findings


def disagreements(report: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, str]]:
    """Where a machine is not as the others have to be: each cause, and what mends it."""
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
    for package, file in report["shadowed"].items():
        text = f"{file} takes the place of the project's package {package}"
        found.append((text, "rename it, or take its folder out of PYTHONPATH there"))
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
