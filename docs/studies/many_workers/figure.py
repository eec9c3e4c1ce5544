"""Draw docs/pictures/scaling.svg from rows.csv: agent steps to the target return over workers. Run it in the project
folder."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

from launch.results.plot import COLOURS, figure, save

FOLDER = Path(__file__).parent
_RULES = ("present", "returns of acting")
PICTURE = FOLDER.parents[1] / "pictures" / "scaling.svg"


def main() -> None:
    seeds: dict[str, dict[int, list[tuple[int, str, bool]]]] = defaultdict(lambda: defaultdict(list))
    with (FOLDER / "rows.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["executor"] == "inline" and row["rules"] in _RULES and "evaluated" not in row["task"]:
                task = f"{row['task']}, {row['mark']}"
                present = row["rules"] == "present"
                marker = "^" if row["reached"] != "yes" else "o" if present else "s"
                seeds[task][int(row["workers"])].append((int(row["agent_steps"]), marker, present))
    with figure() as (drawn, (axes,)):
        for (task, by_workers), colour in zip(seeds.items(), COLOURS, strict=False):
            # One that was stopped counts with the agent steps that it had.
            found = {n: [steps for steps, _, present in rows if present] for n, rows in by_workers.items()}
            counts = sorted(n for n, steps in found.items() if steps)
            medians = [median(found[count]) for count in counts]
            axes.plot(counts, medians, "-", color=colour, label=task)
            for count, rows in by_workers.items():
                for steps, marker, _ in rows:
                    axes.plot(count, steps, marker, color=colour, fillstyle="full" if marker == "o" else "none")
        axes.plot([], [], "s", color="black", fillstyle="none", label="before, with returns of acting")
        axes.plot([], [], "^", color="black", fillstyle="none", label="stopped there, not reached")
        axes.set(
            xlabel="workers",
            ylabel="agent steps to the target return",
            title="Simulated; points: seeds, lines: medians",
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(bottom=1.2e4)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(fontsize=8, loc="lower left")
        save(drawn, [PICTURE])


if __name__ == "__main__":
    main()
