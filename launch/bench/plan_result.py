"""The tables and the picture of `tributary plan`."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from launch.output import hardware_line

# On the wire, where only one precision has room.
_SHOWN = "float32"


def show(console: Console, result: dict[str, Any]) -> None:
    """Costs, checks, the curve, how to divide actors among runs, and the bill if one was asked for."""
    learner = result["learner_seconds_per_gradient"]
    console.print(
        f"one agent step {1e6 * result['step_seconds_alone']:.0f} µs on one core, "
        f"{1e6 * result['step_seconds_on_busy_cores']:.0f} with all cores busy; the learner's CPU per gradient "
        f"{1e3 * learner['shared_memory']['float32']:.2f} ms on this machine, between machines "
        f"{1e3 * learner['objects']['float32']:.2f} (bfloat16 {1e3 * learner['objects']['bfloat16']:.2f})",
        highlight=False,
    )
    for check in result["checks"]:
        console.print(
            f"check: {check['actors']} actors here {check['measured']:,.0f} agent steps/s, predicted "
            f"{check['predicted']:,.0f} ({check['error']:+.1%})",
            highlight=False,
        )
    for name in result["curves"]:
        if name.startswith(_SHOWN):
            _show_curve(console, result, name)
    saturation = result["saturation_actors"]
    full = ", ".join(
        f"{_added(name)} {saturation[name]:.0f} (with bfloat16 {saturation[_rounded(name)]:.0f})"
        for name in saturation
        if name.startswith(_SHOWN)
    )
    console.print(
        f"one learner is full at about so many actors: {full}; the point moves with --unroll and --envs, in proportion",
        highlight=False,
        soft_wrap=True,
    )
    _show_divisions(console, result)
    if result["bills"]:
        _show_bills(console, result)


def _show_curve(console: Console, result: dict[str, Any], name: str) -> None:
    """One way for gradients, by number of actors, with what bfloat16 on the wire would make of it."""
    table = _table("actors", "agent steps/s", "with bfloat16", "policy lag", "learner busy", "held back by")
    curves = result["curves"]
    for row, other in zip(curves[name], curves[_rounded(name)], strict=True):
        table.add_row(
            f"{row['actors']:,}",
            f"{row['agent_steps_per_second']:,.0f}",
            f"{other['agent_steps_per_second']:,.0f}",
            f"{row['policy_lag']:,.1f}",
            f"{row['learner_utilisation']:.0%}",
            row["held_back_by"],
        )
    console.print(f"gradients {_added(name)}, between machines", style="dim", highlight=False)
    console.print(table, highlight=False)


def _rounded(name: str) -> str:
    """The same way with bfloat16 on the wire."""
    return name.replace(_SHOWN, "bfloat16", 1)


def _added(name: str) -> str:
    """A way's name without what is on the wire."""
    return name.removeprefix(_SHOWN).removeprefix(", ") or "one by one"


def _show_divisions(console: Console, result: dict[str, Any]) -> None:
    table = _table("added", "runs × actors", "agent steps/s in all", "each", "policy lag", "learner busy")
    for name, rows in result["divisions"].items():
        for row in rows:
            table.add_row(
                _added(name),
                f"{row['runs']:,} × {row['actors']:,}",
                f"{row['agent_steps_per_second']:,.0f}",
                f"{row['agent_steps_per_second'] / row['runs']:,.0f}",
                f"{row['policy_lag']:,.1f}",
                f"{row['learner_utilisation']:.0%}",
            )
    most = max(result["settings"]["cluster_actors"])
    console.print(f"{most:,} actors as one run, or as several side by side", style="dim", highlight=False)
    console.print(table, highlight=False)


def _show_bills(console: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    frames = f"{10 * result['frames_per_agent_step']:,} M frames"
    table = _table("added", "runs × actors", "cores", "agent steps/s", "policy lag", "an hour", f"10 M steps, {frames}")
    for name, rows in result["bills"].items():
        for row in rows:
            table.add_row(
                _added(name),
                f"{row['runs']:,} × {row['actors']:,}",
                f"{row['cores']:,}",
                f"{row['agent_steps_per_second']:,.0f}",
                f"{row['policy_lag']:,.1f}",
                f"{row['per_hour']:,.2f}",
                f"{row['per_10_million_agent_steps']:,.2f}",
            )
    console.print(
        f"{settings['agent_steps_per_second']:,.0f} agent steps/s at {settings['core_hour']:g} a core-hour; cores: "
        f"actors', and one for the learner or Ray on each node of {settings['actors_per_node']} actors",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
    console.print(table, highlight=False)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        added = heading == "added"
        table.add_column(heading, justify="left" if added else "right", no_wrap=added)
    return table


def draw(path: Path, result: dict[str, Any]) -> None:
    """The curve as a picture."""
    from launch.results.pictures import COLOURS, figure, save

    with figure() as (drawn, (axes,)):
        for colour, (precision, rows) in zip(COLOURS, result["curves"].items(), strict=False):
            actors = [row["actors"] for row in rows]
            rates = [row["agent_steps_per_second"] for row in rows]
            axes.plot(actors, rates, "o-", color=colour, label=f"predicted, {precision} on the wire")
        first = result["curves"]["float32"][0]
        ideal = [first["agent_steps_per_second"] / first["actors"] * n for n in actors]
        axes.plot(actors, ideal, ":", color="black", linewidth=1, label="ideal")
        # Further ones share cores here.
        checks = [check for check in result["checks"] if check["actors"] <= result["hardware"]["cores"]]
        if checks:
            axes.plot(
                [c["actors"] for c in checks], [c["measured"] for c in checks], "x", color="black", label="measured"
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("actors, each on a core of its own")
        axes.set_ylabel("agent steps per second")
        axes.set_title(f"From costs measured on {hardware_line(result)}")
        axes.legend(fontsize=8)
        save(drawn, [path], settings=result["settings"])
