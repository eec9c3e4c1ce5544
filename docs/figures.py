"""For maintainers: the tables and pictures of results in README and docs, from rows in the repository.

    python docs/figures.py               write them (`make figures`)
    python docs/figures.py add WHAT FILE --cpu "AMD EPYC (Zen 5)"
                                         add figures to docs/measurements.jsonl: FILE is what the --json of a bench
                                         wrote, or the folder of a run after `tributary evaluate`

A page has marks, between which the function of that name in `TABLES` writes: <!-- figures: rates --> … <!-- end -->. A
name like pong/epochs.csv is a table of a study whose runs are not kept.
Rows of runs are in docs/studies and launch/zoo. All else that was measured is a line of
docs/measurements.jsonl, which docs/measurements.py reads.
"""

import argparse
import csv
import hashlib
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from measurements import add, machine_of, marked, measured, notes

from launch import zoo
from launch.commands.shipped import described_agents
from launch.output import exit_code
from launch.presets import PRESETS
from launch.results import curves, plot
from launch.results.curves import read_rows
from launch.results.evaluate import human_normalised, mean_and_error
from launch.run.folder import RunFolder, agent_steps_learned, read_object
from launch.settings.files import by_full_name
from launch.settings.resolve import divided_among
from shared.config import RunConfig

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "docs" / "studies"
REFERENCE_RUNS = STUDIES / "reference_runs"
MARKED = re.compile(r"(<!-- figures: ([\w/.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(header: str, rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown; `header` has its cells, divided by |."""
    head = [cell.strip() for cell in header.split("|")]
    lines = [head, ["---"] * len(head), *[["" if cell is None else str(cell) for cell in row] for row in rows]]
    assert all(len(line) == len(head) for line in lines), header
    return "".join(f"|{'|'.join(line)}|\n" if line[0] == "---" else f"| {' | '.join(line)} |\n" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


# The system, its work, and the peer that does the same.
_PEERS = (
    ("peers/pong", "preset `pong`, two actors of 16 × 32", "peers/torch_ppo", "PPO in PyTorch, 32 × 32"),
    ("peers/32x20", "two of 32 × 20, one gradient a rollout", "peers/torch_vec_a2c", "A2C in PyTorch, 32 × 20"),
    ("peers/16x5", "two of 16 × 5, the shape of `a3c`", "peers/sb3_a2c", "A2C of Stable-Baselines3, 16 environments"),
)


def rates() -> str:
    """Agent steps per second beside other libraries, on every CPU."""
    rows, shown = [], []
    for ours, work, theirs, peer in _PEERS:
        for line in measured(ours):
            figure, other = line["figure"], beside(line, theirs)
            rate, share = number(figure["agent_steps_per_second"]), f"{figure['fraction_of_bound']:.2f}"
            elsewhere = f"{number(other['figure']['agent_steps_per_second'])}, [{peer}](studies/{theirs}.py)"
            note = f", {other['note']}" if "note" in other else ""
            rows.append((marked(work, line), machine_of(line), rate, share, elsewhere + note))
            shown.append(line)
    return table("| CPU | agent steps/s | of the bound | elsewhere", rows) + notes(shown)


def rates_in_short() -> str:
    """The newest ones."""
    rows, shown = [], []
    for ours, work, theirs, peer in _PEERS:
        line = max(measured(ours), key=lambda line: line["day"])
        figures = [number(made["figure"]["agent_steps_per_second"]) for made in (line, beside(line, theirs))]
        rows.append((marked(work, line), figures[0], f"{figures[1]}, {peer}"))
        shown.append(line)
    return table("| agent steps/s | elsewhere", rows) + notes(shown)


def beside(line: dict[str, Any], peer: str) -> dict[str, Any]:
    """The line of a peer that was measured at the same time."""
    (found,) = (made for made in measured(peer) if (made["revision"], made["cpu"]) == (line["revision"], line["cpu"]))
    return found


def make_train() -> str:
    lines, names = measured("make-train"), ("seed", "seconds", "agent_steps", "missed")
    rows = [(machine_of(line), *(number(line["figure"].get(name)) or "?" for name in names)) for line in lines]
    return table("CPU | seed | seconds | agent steps | confirmations that missed", rows) + notes(lines)


def start_up() -> str:
    lines = measured("start-up")
    rows = [(f"`{line['command']}`", machine_of(line), f"{line['figure']['seconds']:.1f}") for line in lines]
    return table("command | CPU | seconds", rows) + notes(lines)


def how_long() -> str:
    """The shortest and the longest `make train`."""
    minutes = [line["figure"]["seconds"] / 60 for line in measured("make-train")]
    runs = f"{len(minutes)} runs of it took {min(minutes):.0f} to {max(minutes):.0f} minutes"
    return (
        f"{runs} on two cores once installed, by seed and CPU, before later confirmations needed a margin "
        f"([table](docs/scores.md#pong-time-to-a-return-of-18)).\n"
    )


# The presets of each row, which are divided alike.
_DIVIDED = (
    ("pong",),
    ("atari", "breakout", "images"),
    ("cartpole",),
    ("vectors", "lunarlander", "halfcheetah", "hopper"),
)


def divisions() -> str:
    """The form of an actor's rollouts, by preset and number of actors."""
    counts, rows = (1, 2, 4, 16, 64), []
    for names in _DIVIDED:
        (forms,) = {tuple(_divided(PRESETS[name].config, actors) for actors in counts) for name in names}
        actor = PRESETS[names[0]].config.actor
        in_all = f"{actor.total_environments} × {actor.unroll_length}"
        rows.append((", ".join(f"`{name}`" for name in names), in_all, *forms))
    actors = " | ".join(map(str, counts[1:]))
    return table(f"preset | environments in all × unroll length | 1 actor | {actors}", rows)


def _divided(preset: RunConfig, actors: int) -> str:
    config = divided_among(preset, actors)
    actor, gradients = config.actor, config.learner.gradients_per_update
    parts = [f"{actor.environments} × {actor.unroll_length}"]
    parts += [f"M {actor.minibatches}"] * (actor.minibatches > 1) + [f"K {gradients}"] * (gradients > 1)
    parts += [f"{actor.epochs} epochs"] * (actor.epochs != preset.actor.epochs)
    return ", ".join(parts)


def rehearsed() -> str:
    """Rates by `bench scaling --rehearse`, in the order of actors, and the seconds to the target."""
    lines, rows = newest_rehearsals(), []
    for line in lines:
        figure, form = line["figure"], line["form"]
        shape = (
            f"{form['actor.environments']} × {form['actor.unroll_length']}, K {form['learner.gradients_per_update']}"
        )
        needed, rate = figure.get("agent_steps_to_target"), figure["agent_steps_per_second"]
        shape += f", M {form['actor.minibatches']}, {form['actor.epochs']} epochs"
        least, most = ("at least ", "at most ") if figure.get("is_lower_bound") else ("", "")
        seconds = most + number(needed / rate) if needed else ""
        rows.append((figure["actors"], marked(shape, line), least + number(rate), number(needed), seconds))
    return table("actors | form | agent steps/s | agent steps to 18 | seconds", rows) + notes(lines)


def newest_rehearsals() -> list[dict[str, Any]]:
    """The last line of each number of actors, in the order of actors."""
    newest = {line["figure"]["actors"]: line for line in measured("rehearsal")}
    return [newest[actors] for actors in sorted(newest)]


def is_of_today(folder: RunFolder) -> bool:
    """Whether a run has the settings that its preset gives today; its file may lack later settings at their default."""
    config, file = folder.read_settings(), by_full_name(read_object(folder.settings_file))
    preset = PRESETS.get(str(read_object(folder.manifest).get("preset")))
    if preset is None:
        return False
    typed = {name: getattr(config, name) for name in ("seed", "actors", "executor", "stop_at_return", "total_frames")}
    game = replace(preset.config.environment, id=config.environment.id)
    actors = config.actors if type(config.actors) is int else 2
    divided = divided_among(replace(preset.config, environment=game, **typed), actors)
    made = by_full_name(json.loads(msgspec.json.encode(divided)))
    defaults = by_full_name(json.loads(msgspec.json.encode(RunConfig())))
    return file.keys() <= made.keys() and made == {name: file.get(name, defaults.get(name)) for name in made}


def settings(folder: RunFolder) -> str:
    return "today's" if is_of_today(folder) else "earlier"


def score(folder: RunFolder, protocol: str, digits: int) -> str:
    """Mean return and standard error of an evaluation."""
    result = read_object(folder.path / f"evaluation-{protocol}.json")
    return f"{result['mean_return']:,.{digits}f} ± {result['standard_error']:,.{digits}f}"


def return_digits(game: str) -> int:
    """Those after the point: returns of some games are differences of few points."""
    return 2 if game.lower().replace(" ", "") in ("pong", "doubledunk") else 0


class Game(NamedTuple):
    """A run of a game of Atari, with the published scores of the game."""

    name: str
    folder: RunFolder
    published: dict[str, str]

    @property
    def digits(self) -> int:
        return return_digits(self.name)

    def beside(self, *agents: str) -> str:
        """Scores of published agents; – for one that has not played this game."""
        scores = [self.published[agent] for agent in agents]
        digits = [int("." in score and abs(float(score)) < 100) if score else 0 for score in scores]
        return "; ".join(number(float(s), n) if s else "–" for s, n in zip(scores, digits, strict=True))


def games() -> list[Game]:
    """The agents that ship, of games that published agents have played."""
    with (STUDIES / "atari" / "published.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cleanrl = published_57()["CleanRL, PPO"]
    for row in rows:
        row["cleanrl_ppo"] = str(cleanrl[re.sub(r"\W", "", row["game"])])
    return [Game(row["game"], RunFolder(zoo.FOLDER / row["agent"]), row) for row in rows]


def published_57() -> dict[str, dict[str, float]]:
    """Mean returns of published agents of 40 M frames, by agent and game, of all games that they have played."""
    agents = defaultdict[str, dict[str, float]](dict)
    with (STUDIES / "atari" / "published-57.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            game = row.pop("game")
            for agent, mean_return in row.items():
                if mean_return:
                    agents[agent][game] = float(mean_return)
    return agents


def campaign() -> str:
    """Each game and seed that docs/studies/atari/campaign.py has stored."""
    rows = []
    for file in sorted((STUDIES / "atari").glob("*-seed-*/manifest.json")):
        folder, manifest = RunFolder(file.parent), read_object(file)
        config = folder.read_settings()
        game = config.environment.id.removeprefix("ALE/").removesuffix("-v5")
        made_with = f"{settings(folder)}, `{manifest['revision'][:7]}`"
        steps = f"{agent_steps_learned(folder) / 1e6:.2f} M"
        scores = [score(folder, protocol, return_digits(game)) for protocol in ("noop", "machado")]
        hours = read_object(folder.summary)["wall_seconds"] / 3600
        rows.append((game, config.seed, made_with, steps, *scores, f"{hours:.1f}", manifest["hardware"]["cpu"]))
    return table("game | seed | settings | agent steps | `noop` | `machado` | hours | CPU", rows)


# Coefficients of log10(1 + percent of a human) by Aitchison, Sweetser and Hutter 2022 (arXiv 2210.02019), Appendix E.
_ATARI_5 = {"BattleZone": 0.3820, "DoubleDunk": 0.0679, "NameThisGame": 0.3108, "Phoenix": 0.1241, "Qbert": 0.0805}


def atari_5() -> str:
    """Scores of five games and the median score of 57 that they predict, in percent of a human, beside the real one."""
    lines = []
    for agent, scores in published_57().items():
        real = statistics.median(_percent_of_a_human(*score) for score in scores.items())
        lines.append((agent, *_five(scores), f"{real:.0f} % ({len(scores)})"))
    lines.append(("`atari`, seed 1", *_five(_scores_of_five()), "?"))
    header = "agent | Battle Zone | Double Dunk | Name This Game | Phoenix | Q*bert"
    return table(f"{header} | predicted | median (games)", lines)


def _scores_of_five() -> dict[str, float]:
    """Mean returns by `noop` and today's settings, of those games of Atari-5 that the campaign has stored."""
    folders = {game: RunFolder(STUDIES / "atari" / f"{game.lower()}-seed-1") for game in _ATARI_5}
    stored = {game: folder for game, folder in folders.items() if folder.path.exists() and is_of_today(folder)}
    return {game: read_object(folder.path / "evaluation-noop.json")["mean_return"] for game, folder in stored.items()}


def _five(scores: dict[str, float]) -> list[str]:
    """The cells of the five games and of the prediction, – without one."""
    cells = [number(scores[game], return_digits(game)) if game in scores else "–" for game in _ATARI_5]
    return [*cells, f"{predicted_median(scores):.0f} %" if scores.keys() >= _ATARI_5.keys() else "–"]


def _percent_of_a_human(game: str, mean_return: float) -> float:
    percent = human_normalised(f"ALE/{game}-v5", mean_return)
    assert percent is not None, game
    return percent


def predicted_median(scores: dict[str, float]) -> float:
    """The median of 57 games in percent of a human, from mean returns in five; less than random play counts as that."""
    logs = {game: np.log10(1 + max(0.0, _percent_of_a_human(game, scores[game]))) for game in _ATARI_5}
    return float(10 ** sum(weight * logs[game] for game, weight in _ATARI_5.items()) - 1)


def games_in_short() -> str:
    rows = [
        (
            f"`{game.folder.name}`",
            score(game.folder, "noop", game.digits),
            game.beside("zoo_ppo"),
        )
        for game in games()
    ]
    return table("agent | score | PPO of Stable-Baselines3's zoo", rows)


def games_in_full() -> str:
    rows = []
    for game in games():
        manifest, noop = (read_object(game.folder.path / file) for file in ("manifest.json", "evaluation-noop.json"))
        rows.append(
            (
                game.name,
                f"{settings(game.folder)}, `{manifest['revision'][:7]}`",
                f"{agent_steps_learned(game.folder) / 1e6:.2f} M",
                score(game.folder, "noop", game.digits),
                f"{noop['human_normalised_percent']:,.0f} %",
                score(game.folder, "machado", game.digits),
                game.beside("zoo_a2c", "zoo_ppo"),
                game.beside("cleanrl_ppo"),
                game.published["highest"],
                game.beside("a3c_one_day", "a3c_four_days", "a3c_lstm"),
            )
        )
    header = "game | settings | agent steps | `noop` | of a human | `machado`"
    return table(f"{header} | zoo: A2C; PPO | CleanRL, PPO | a higher one | the paper's A3C: one day; four; LSTM", rows)


def returns_at(folder: RunFolder, points: Sequence[float]) -> list[str]:
    """The mean of the last 100 training episodes at these agent steps, empty after the end of the run."""
    rows = [
        (row["agent_steps"], row["mean_return_100"]) for row in read_rows(folder) if row["mean_return_100"] is not None
    ]
    steps, means = zip(*rows, strict=True)
    digits = 1 if max(map(abs, means)) < 100 else 0
    # Between rows. The last one may be a little before its point.
    shown = [point <= max(1.03 * steps[-1], steps[-1] + 6e4) for point in points]
    values = np.interp(points, steps, means).tolist()
    return [number(value, digits) * show for value, show in zip(values, shown, strict=True)]


def curve_table(runs: dict[str, RunFolder], millions: Sequence[float]) -> str:
    rows = [(name, *returns_at(folder, [1e6 * point for point in millions])) for name, folder in runs.items()]
    return table(" | ".join(["agent steps", *(f"{point:g} M" for point in millions)]), rows)


def game_curves() -> str:
    runs = {game.name: game.folder for game in games()}
    return curve_table(runs, (0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))


def pong_seeds() -> str:
    """Each try of each seed, and the agent steps of training and of confirmations to the verdict."""
    rows: list[tuple[Any, ...]] = []
    for folder in map(RunFolder, sorted(REFERENCE_RUNS.glob("pong-seed-*"))):
        summary, seed = read_object(folder.summary), folder.read_settings().seed
        tries = [entry for row in read_rows(folder) for entry in row.get("evaluations") or [] if entry["confirms"]]
        *missed, last = [f"{entry['mean_return']:.2f} ({entry['episodes']})" for entry in tries]
        at, played = summary["confirmed_crossing"], summary["evaluation_agent_steps"]
        error, training = (
            summary["evaluation"]["standard_error"],
            at.get("training_mean_return", at.get("mean_return_100")),
        )
        confirmed = last.replace(" (", f" ± {error:.2f} (")
        cells = (number(at["agent_steps"]), number(played), number(at["agent_steps"] + played))
        rows.append((seed, "; ".join(missed), len(tries), confirmed, *cells, number(training, 1)))
    medians = [number(statistics.median(int(row[i].replace(",", "")) for row in rows)) for i in (4, 5, 6)]
    rows.append(("median", "", "", "", *medians, ""))
    header = "seed | tries that missed (games) | tries | confirmed (games) | agent steps of training | of confirmations"
    return table(f"{header} | of both | mean of the last 100 training episodes", rows)


def pong_workers() -> str:
    rows = []
    for line in measured("workers-to-18"):
        figure, form = line["figure"], line["form"]
        shape = (
            f"{form['actor.environments']} × {form['actor.unroll_length']}, K {form['learner.gradients_per_update']}"
        )
        error = f" ± {figure['standard_error']:.2f}" if "standard_error" in figure else ""
        mean = f"{figure['confirmed']:.2f}{error} ({figure['episodes']})"
        shape = marked(f"{shape}, {form['actor.epochs']} epochs", line)
        cells = number(figure["agent_steps"]), figure["missed"] + 1, mean, f"{figure['mean_return_100']:.1f}"
        rows.append((figure["workers"], shape, *cells))
    header = "actors | form | agent steps to a confirmed 18 | tries | confirmed (games)"
    return table(f"{header} | mean of the last 100 training episodes", rows) + notes(measured("workers-to-18"))


def presets() -> str:
    """Agent steps of training of each seed, and the scores of the best weights."""
    rows = []
    for preset in dict.fromkeys(line["what"].partition("/")[2] for line in measured("scores")):
        lines = measured(f"scores/{preset}")
        config, figures = PRESETS[preset].config, [line["figure"] for line in lines]
        steps = "; ".join(number(figure["agent_steps"]) for figure in figures)
        means = "; ".join(f"{figure['mean_return']:.1f} ± {figure['standard_error']:.1f}" for figure in figures)
        mark = marked(f"{config.stop_at_return:g}", lines[0])
        seeds = ", ".join(str(figure["seed"]) for figure in figures)
        rows.append((f"`{preset}`, {config.environment.id}", mark, seeds, steps, means))
    header = "preset, environment | mark | seeds | agent steps until it ended | 100 other games"
    return table(header, rows) + notes(measured("scores"))


def a3c_results() -> str:
    """Agent steps and tries to a confirmed 18 in Pong, and the scores of those that ship."""
    rows = []
    for name, folder in list(_a3c_runs().items())[:4]:
        entries = [entry for row in read_rows(folder) for entry in row.get("evaluations") or []]
        summary, last = read_object(folder.summary), entries[-1]
        # The rows of an agent that ships are thinned.
        thinned = bool(summary) and summary["first_crossing"] != summary["confirmed_crossing"]
        tries = "2 or more" if thinned else len(entries)
        scores = [score(folder, name, 2) if folder.ships else "" for name in ("noop", "machado")]
        reached = f"{last['mean_return']:.2f} ({last['episodes']})"
        revision = read_object(folder.manifest)["revision"][:7]
        rows.append((name, f"`{revision}`", number(last["agent_steps"]), tries, reached, *scores))
    header = "run | revision | agent steps to a confirmed 18 | tries | confirmed (games) | `noop` | `machado`"
    return table(header, rows)


def a3c_curves() -> str:
    return curve_table(_a3c_runs(), (0.5, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10))


def _a3c_runs() -> dict[str, RunFolder]:
    shipped = {"`a3c`, seed 1": zoo.FOLDER / "pong-a3c", "`a3c-lstm`, seed 1": zoo.FOLDER / "pong-a3c-lstm"}
    studied = {"`a3c`, seed 2": "pong-seed-2", "`a3c`, seed 3": "pong-seed-3", "`a3c`, Breakout": "breakout"}
    studied |= {"`onestep-sarsa`": "onestep-sarsa"}
    folders = shipped | {name: STUDIES / "a3c" / folder for name, folder in studied.items()}
    return {name: RunFolder(folder) for name, folder in folders.items()}


# The paper's Table 2: the mean speed-up of seven games by threads.
_PAPERS_SPEED_UP = {1: 1.0, 2: 2.1, 4: 3.7, 8: 6.9, 16: 12.5}


def a3c_workers() -> str:
    lines = measured("a3c-workers")
    medians = {line["figure"]["workers"]: statistics.median(line["figure"]["agent_steps"]) for line in lines}
    rows = [
        (
            workers := line["figure"]["workers"],
            "; ".join(map(number, line["figure"]["agent_steps"])),
            number(medians[workers]),
            f"{workers * medians[1] / medians[workers]:.1f}",
            _PAPERS_SPEED_UP[workers],
        )
        for line in lines
    ]
    header = "actors | agent steps, seeds 1 to 5 | median | speed-up | the paper, mean of seven games"
    return table(header, rows) + notes(lines)


def agents() -> str:
    """The agents that ship, with the commands that repeat their scores."""
    rows: list[tuple[str, ...]] = []
    for name, agent in described_agents().items():
        weights = agent["evaluations"][0]["weights"].removeprefix("the weights that were ")
        first = [f"`{name}`", agent["environment"], f"{agent['agent_steps']:,}", weights]
        for made in agent["evaluations"]:
            rows.append((*first, made["protocol"]["name"], mean_and_error(made), f"`{made['command']}`"))
            first = [""] * len(first)
    return table("agent | environment | agent steps of training | weights | protocol | score | command", rows)


_POINTS = STUDIES / "many_workers" / "rows.csv"
_TASKS = {
    ("cartpole", "475"): "CartPole, 475",
    ("lunarlander", "240"): "LunarLander, 240",
    ("pong", "18"): "Pong, 18, training returns",
    ("pong by evaluations", "18"): "Pong, 18, evaluations",
}
# Seeds of the same number of workers and of agent steps stand side by side.
_SPREAD = 1.12


def workers_to_return() -> str:
    """Agent steps of each seed of rows.csv, + where a run was stopped before the target."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    with _POINTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["executor"] == "inline" and row["rules"] == "present" and (row["task"], row["mark"]) in _TASKS:
                steps = number(int(row["agent_steps"])) + "+" * (row["reached"] != "yes")
                found[_TASKS[row["task"], row["mark"]], row["workers"], row["agent_steps_in_flight"]].append(steps)
    rows = [(*key, "; ".join(steps)) for key, steps in found.items()]
    return table("task, target | actors | agent steps in flight | agent steps of each seed", rows)


@contextmanager
def draw_workers() -> Iterator[Any]:
    """Agent steps to the target return over workers: points are seeds, triangles runs that were stopped before."""
    rows: dict[str, dict[int, list[tuple[int, bool]]]] = defaultdict(lambda: defaultdict(list))
    with _POINTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["executor"] == "inline" and row["rules"] == "present" and (row["task"], row["mark"]) in _TASKS:
                reached = row["reached"] == "yes"
                rows[_TASKS[row["task"], row["mark"]]][int(row["workers"])].append((int(row["agent_steps"]), reached))
    with plot.figure(7.5, 4.8, columns=2, rows=2) as (drawn, panels):
        for axes, (title, by_workers), colour in zip(panels, sorted(rows.items()), plot.COLOURS, strict=False):
            counts = sorted(by_workers)
            # A run that was stopped counts with the agent steps that it had.
            axes.plot(counts, [statistics.median(n for n, _ in by_workers[count]) for count in counts], color=colour)
            for count, seeds in by_workers.items():
                for i, (agent_steps, reached) in enumerate(sorted(seeds)):
                    place = count * _SPREAD ** (i - (len(seeds) - 1) / 2)
                    marker, fill = ("o", "full") if reached else ("^", "none")
                    axes.plot(place, agent_steps, marker, color=colour, fillstyle=fill, markersize=5)
            axes.set(title=title, xscale="log", yscale="log", xlim=(0.7, 1500), ylim=(5e4, 3e6))
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        drawn.supxlabel("simulated actors", fontsize="medium")
        drawn.supylabel("agent steps to the return", fontsize="medium")
        yield drawn


@contextmanager
def draw_seconds() -> Iterator[Any]:
    """Rehearsed seconds to the target over cores, beside those of one core divided by their number."""
    figures = [line["figure"] for line in newest_rehearsals() if line["figure"].get("seconds_to_target")]
    cores = [figure["actors"] for figure in figures]
    seconds = [figure["seconds_to_target"] for figure in figures]
    with plot.figure(6.5, 4.2) as (drawn, (axes,)):
        axes.plot(cores, seconds, "o-", color=plot.COLOURS[0], label="rehearsed")
        axes.plot(cores, [seconds[0] * cores[0] / n for n in cores], "--", color="grey", label="ideal")
        axes.set(title="Pong to 18", xlabel="actors, one core each", ylabel="seconds", yscale="log")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False)
        yield drawn


TABLES: dict[str, Callable[[], str]] = {
    "games": games_in_full,
    "games-in-short": games_in_short,
    "campaign": campaign,
    "atari-5": atari_5,
    "game-curves": game_curves,
    "pong-seeds": pong_seeds,
    "pong-workers": pong_workers,
    "presets": presets,
    "a3c-results": a3c_results,
    "a3c-curves": a3c_curves,
    "a3c-workers": a3c_workers,
    "agents": agents,
    "workers-to-return": workers_to_return,
    "rates": rates,
    "rates-in-short": rates_in_short,
    "make-train": make_train,
    "how-long": how_long,
    "start-up": start_up,
    "rehearsed": rehearsed,
    "divisions": divisions,
}

_A3C, _PONG = STUDIES / "a3c", sorted(REFERENCE_RUNS.glob("pong-seed-*"))
_LSTM, _SEED_1 = (zoo.FOLDER / name for name in ("pong-a3c-lstm", "pong-a3c"))
# The rows of each picture, runs or a file or the name of measurements; and the axis of curves, or what draws others.
PICTURES: dict[Path, tuple[Sequence[Path | str], curves.XAxis | Callable[[], AbstractContextManager[Any]]]] = {
    REFERENCE_RUNS / "pong.svg": (_PONG, "agent_steps"),
    REFERENCE_RUNS / "atari.svg": ([game.folder.path for game in games()], "agent_steps"),
    ROOT / "docs/pictures/a3c-lstm.svg": (
        [_LSTM, _SEED_1, *(_A3C / name for name in ("pong-seed-2", "pong-seed-3", "onestep-sarsa")), *_PONG],
        "agent_steps",
    ),
    ROOT / "docs/pictures/a3c-minutes.svg": ([_LSTM, _A3C / "pong-seed-2", _A3C / "pong-default"], "seconds"),
    ROOT / "docs/pictures/a3c-breakout.svg": ([_A3C / "breakout"], "agent_steps"),
    ROOT / "docs/pictures/asynchronous.svg": (sorted(_A3C.glob("cartpole-actors-*")), "agent_steps"),
    ROOT / "docs/pictures/scaling.svg": ([_POINTS], draw_workers),
    ROOT / "docs/pictures/seconds.svg": (["rehearsal"], draw_seconds),
}


def rows_of(picture: Path) -> str:
    """A digest of the rows of a picture, which its description has: it is drawn anew where they have changed."""
    return hashlib.sha256(b"".join(map(_rows, PICTURES[picture][0]))).hexdigest()[:16]


def _rows(source: Path | str) -> bytes:
    if isinstance(source, str):
        return json.dumps(measured(source)).encode()
    return (source if source.is_file() else RunFolder(source).metrics).read_bytes()


def draw(picture: Path) -> None:
    sources, x = PICTURES[picture]
    if callable(x):
        drawing, names = x(), [Path(source).name for source in sources]
    else:
        found = [curves.curve_of(curves.read_metrics(Path(run)), x, curves.TRAINING_RETURN) for run in sources]
        names = [curve.run.folder.name for curve in found]
        drawing = plot.curves_figure(curves.bands(found), x, curves.TRAINING_RETURN)
    with drawing as drawn:
        plot.save(drawn, [picture], runs=names, rows=rows_of(picture))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written(text: str) -> str:
    """A page with its tables as of today's rows."""
    return MARKED.sub(lambda found: f"{found[1]}{_written(found[2])}{found[3]}", text)


def _written(name: str) -> str:
    """The table of that name; NAME.csv has the cells of one, in docs/studies."""
    if not name.endswith(".csv"):
        return TABLES[name]()
    with (STUDIES / name).open(encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    return table("|".join(head), rows)


def main() -> None:
    parser = argparse.ArgumentParser("python docs/figures.py", description="Write all tables and pictures of results.")
    actions = parser.add_subparsers(dest="action")
    adding = actions.add_parser("add", help="add the figures of a bench to docs/measurements.jsonl")
    adding.add_argument("what", help="their name, such as peers/pong")
    adding.add_argument("file", type=Path, help="what the bench's --json wrote")
    adding.add_argument("--cpu", required=True, help="as a reader knows it: AMD EPYC (Zen 5)")
    typed = parser.parse_args()
    if typed.action == "add":
        add(typed.what, typed.file, typed.cpu)
        return
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")
    for picture in PICTURES:
        if not picture.exists() or rows_of(picture) not in picture.read_text(encoding="utf-8"):
            draw(picture)
            print(f"drawn: {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(exit_code(main))
