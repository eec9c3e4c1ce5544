"""`tributary zoo`: the list of agents that ship. docs/zoo.py adds one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from launch import zoo
from launch.files import write_json
from launch.output import plain_table
from launch.results.evaluate import ProtocolName, mean_and_error
from launch.run.folder import RunFolder, agent_steps_learned, read_object


@dataclass(frozen=True)
class ZooArguments:
    """List the agents that ship. zoo:NAME can replace a run folder in other commands."""

    json: Path | None = None
    """File to write the list to, with the provenance of each score."""


def list_zoo(arguments: ZooArguments) -> None:
    agents = described_agents()
    console = Console()
    rows = []
    for name, agent in agents.items():
        first = {"agent": name, "environment": agent["environment"], "agent steps": f"{agent['agent_steps']:,}"}
        for evaluation in agent["evaluations"]:
            rows.append(first | {"protocol": evaluation["protocol"]["name"], "score": mean_and_error(evaluation)})
            first = dict.fromkeys(first, "")
    left, spare = ("agent", "environment", "protocol", "score"), ("environment", "agent steps")
    # One space between columns, for 80 columns in all.
    console.print(plain_table(rows, console.width, left=left, spare=spare, gap=1), highlight=False)
    console.print("tributary watch AGENT shows one play.", highlight=False)
    write_json(arguments.json, agents)


def described_agents() -> dict[str, dict[str, Any]]:
    """Environment, agent steps and evaluations of each agent, by its zoo:NAME."""
    by_name = {}
    for name in zoo.agents():
        folder = RunFolder(zoo.agent_folder(name))
        played = [read_object(folder.path / f"evaluation-{protocol}.json") for protocol in get_args(ProtocolName)]
        by_name[name] = {
            "environment": folder.read_settings("run").environment.id,
            "agent_steps": agent_steps_learned(folder),
            "weights_bytes": folder.best_weights.stat().st_size,
            "trained_by": read_object(folder.manifest)["command"],
            "evaluations": [evaluation for evaluation in played if evaluation],
        }
    return by_name
