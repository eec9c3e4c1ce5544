"""Draw docs/pictures/scaling.svg from rows.csv: agent steps to the target return over workers. Run it in the project
folder."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

from launch.results.plot import COLOURS, figure, save

FOLDER = Path(__file__).parent
PICTURE = FOLDER.parents[1] / "pictures" / "scaling.svg"
TASKS = {
    ("cartpole", "475"): "CartPole, 475",
    ("lunarlander", "240"): "LunarLander, 240",
    ("pong", "18"): "Pong, 18, training returns",
    ("pong by evaluations", "18"): "Pong, 18, evaluations",
}
# Seeds of the same number of workers and of agent steps stand side by side.
SPREAD = 1.12


def main() -> None:
    rows: dict[str, dict[int, list[tuple[int, bool]]]] = defaultdict(lambda: defaultdict(list))
    with (FOLDER / "rows.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["executor"] == "inline" and row["rules"] == "present" and (row["task"], row["mark"]) in TASKS:
                reached = row["reached"] == "yes"
                rows[TASKS[row["task"], row["mark"]]][int(row["workers"])].append((int(row["agent_steps"]), reached))
    with figure(7.5, 4.8, columns=2, rows=2) as (drawn, panels):
        for axes, (title, by_workers), colour in zip(panels, sorted(rows.items()), COLOURS, strict=False):
            counts = sorted(by_workers)
            # A run that was stopped counts with the agent steps that it had.
            axes.plot(counts, [median(n for n, _ in by_workers[count]) for count in counts], "-", color=colour)
            for count, seeds in by_workers.items():
                for i, (agent_steps, reached) in enumerate(sorted(seeds)):
                    place = count * SPREAD ** (i - (len(seeds) - 1) / 2)
                    marker, fill = ("o", "full") if reached else ("^", "none")
                    axes.plot(place, agent_steps, marker, color=colour, fillstyle=fill, markersize=5)
            axes.set(title=title, xscale="log", yscale="log", xlim=(0.7, 1500), ylim=(5e4, 3e6))
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        drawn.supxlabel("simulated workers", fontsize="medium")
        drawn.supylabel("agent steps to the return", fontsize="medium")
        save(drawn, [PICTURE])


if __name__ == "__main__":
    main()
