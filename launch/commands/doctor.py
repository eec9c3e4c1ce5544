"""`tributary doctor`: prints the findings of `launch.doctor` for this machine or every node of a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.doctor import Finding, find, gpu_line, gpu_shortages, probe, quick_probe
from launch.files import write_json
from launch.output import EXIT_DONE, EXIT_FAILED, print_line
from launch.provenance import provenance
from shared.errors import counted


@dataclass(frozen=True)
class DoctorArguments:
    """Check this machine, or every node of a cluster: versions, memory, and a convolution on each GPU."""

    address: str = "local"
    """Ray cluster to check, as in tributary train. local: this machine alone."""
    json: Path | None = None
    """File to write the findings to."""


def doctor(arguments: DoctorArguments) -> int:
    console = Console()
    if arguments.address == "local":
        reports = [probe() | {"node": "this machine"}]
    else:
        from launch.on_ray.cluster import probe_cluster

        reports = probe_cluster(arguments.address, console)
    findings = find(reports)
    _show(console, reports, findings)
    rows = [finding._asdict() for finding in findings]
    write_json(arguments.json, {"nodes": reports, "findings": rows, **provenance()})
    return EXIT_FAILED if findings else EXIT_DONE


def _show(console: Console, reports: Sequence[dict[str, Any]], findings: Sequence[Finding]) -> None:
    here = quick_probe()
    packages = ", ".join(f"{name} {here['versions'][name]}" for name in ("tensorflow", "ray", "ale-py"))
    print_line(console, f"here: Python {here['python']}, {packages}, sources {here['revision']}")
    for report in reports:
        if "error" not in report:
            print_line(console, f"{report['node']}: {_described(report)}")
            if report["gpu"] and not any(gpu_shortages(report["gpu"])):
                print_line(console, f"{report['node']}: {gpu_line(report['gpu'])}")
    for finding in findings:
        print_line(console, f"{finding.node}: {finding.cause}; {finding.advice}")
    console.print(f"{counted(len(findings), 'problem')} found" if findings else "no problem found", highlight=False)


def _described(report: dict[str, Any]) -> str:
    gib = f"{report['memory_bytes'] / 2**30:.1f} GiB"
    if report["shared_memory_bytes"] is not None:
        gib += f" ({report['shared_memory_bytes'] / 2**30:.1f} shared)"
    return f"{report['cores']} cores, {gib}, {report['kernels']}"
