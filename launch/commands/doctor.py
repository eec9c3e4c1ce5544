"""`tributary doctor`: checks of this machine or of every node of a cluster, with a remedy for each failure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.doctor import Finding, disagreements, find, gpu_line, gpu_shortages, probe, reference
from launch.files import write_json
from launch.output import EXIT_DONE, EXIT_FAILED, number, plain_table, print_line, wide_console
from launch.provenance import provenance


@dataclass(frozen=True)
class DoctorArguments:
    """Check this machine, or every node of a cluster: versions, game files, memory, a real environment step, a real
    graph call, and a convolution on a GPU."""

    address: str = "local"
    """Ray cluster to check, as in tributary train. local: this machine alone."""
    json: Path | None = None
    """File to write the findings to."""


def doctor(arguments: DoctorArguments) -> int:
    """Run `tributary doctor`. Returns the exit code: 1 after any failure."""
    console = wide_console(120)
    if arguments.address == "local":
        reports = [probe() | {"node": "this machine"}]
    else:
        from launch.on_ray.cluster import probe_cluster

        reports = probe_cluster(arguments.address, console)
    findings = find(reports, reference())
    _show(console, reports, findings)
    rows = [finding._asdict() for finding in findings]
    write_json(arguments.json, {"nodes": reports, "findings": rows, **provenance()})
    return EXIT_FAILED if findings else EXIT_DONE


def _show(console: Console, reports: Sequence[dict[str, Any]], findings: Sequence[Finding]) -> None:
    here = reference()
    packages = ", ".join(f"{name} {here['versions'][name]}" for name in ("tensorflow", "ray", "ale-py"))
    print_line(console, f"here: Python {here['python']}, {packages}, sources {here['revision']}")
    others = ("cores", "GiB", "shm GiB", "load", "step µs", "graph µs", "kernels")
    rows = []
    for report in reports:
        rows.append(row := {"node": report["node"], "as here": "no", **dict.fromkeys(others, "")})
        if "error" in report:
            continue
        shared = report["shared_memory_bytes"]
        row["as here"] = "no" if any(disagreements(report, here)) else "yes"
        row["cores"] = f"{report['cores']}"
        row["GiB"] = f"{report['memory_bytes'] / 2**30:.1f}"
        row["shm GiB"] = number(None if shared is None else shared / 2**30, ".1f")
        row["load"] = f"{report['load_average']:.1f}"
        for heading, name in (("step µs", "environment_microseconds"), ("graph µs", "graph_microseconds")):
            row[heading] = f"{report[name]:.0f}" if name in report else "fails"
        row["kernels"] = report["kernels"]
    console.print(plain_table(rows, console.width, left=("node", "kernels")), highlight=False)
    for report in reports:
        if report.get("gpu") and not any(gpu_shortages(report["gpu"])):
            print_line(console, f"{report['node']}: {gpu_line(report['gpu'])}")
    for finding in findings:
        print_line(console, f"{finding.node}: {finding.cause}; {finding.advice}")
    busy = [report for report in reports if report.get("busy")]
    for report in busy:
        print_line(console, f"{report['node']}: busy, {report['busy']}: the times are too long, and training is slower")
    if findings:
        console.print(f"{len(findings)} found", highlight=False)
    elif not busy:
        console.print("all is well", highlight=False)
