"""`tributary report`: complete, self-contained, right in a browser, with the bottlenecks of a run."""

import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import pytest
from written_runs import written_run

from launch.cli import main
from launch.results.report import held_back, time_spent
from shared.config import RunConfig


@pytest.fixture(scope="module")
def page(cartpole_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run that was evaluated, and of another seed."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    assert main(f"evaluate {cartpole_runs[0]} --episodes 5".split()) == 0
    assert main(["report", *map(str, cartpole_runs), "--output", str(file)]) == 0
    return file


def test_a_report_has_all_sections_and_seeds_share_one(page: Path) -> None:
    text = page.read_text()
    for wanted in ("Learning curves", "standard error", "optimizer.learning_rate", "&quot;tensorflow&quot;: &quot;2"):
        assert wanted in text, wanted
    for wanted, count in {"How it was made": 1, "Where the time went": 1, "<td>frames reached</td>": 2}.items():
        assert text.count(wanted) == count, wanted
    # Two curves and four small ones.
    assert text.count("<svg") == 6
    assert all(f">{name}<" in text for name in ("entropy", "explained variance", "policy lag mean"))
    assert re.findall("<th>(.*?)</th>", text)[:3] == ["run", "seed-1", "seed-2"]
    facts = set(re.findall("<tr><td>(.*?)</td>", text))
    assert facts >= {"seed", "status", "return, last 100", "start-up, s"}
    assert not facts & {"actors replaced", "agent steps dropped", "policy lag: mean, 95 %, most", "best evaluation"}
    assert text.count("<td>seed</td>") == 1, "it is no setting of the group"


def test_a_report_refers_to_nothing_outside_itself(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r'(?:src|href)\s*=\s*"([^"]{0,40})', text) + re.findall(r"url\(([^)]{0,40})", text)
    assert targets
    assert all(target.startswith(("data:", "#")) for target in targets), targets
    assert "<script" not in text
    assert "@import" not in text


# Sends what it finds of the page around it to the page of the frame, which shows it.
PROBE = """<script>addEventListener("load", () => {
  const style = getComputedStyle(document.body);
  parent.postMessage({width: document.documentElement.scrollWidth, font: parseFloat(style.fontSize)}, "*");
});</script>"""
# A window of Chromium is not as narrow as a telephone.
FRAME = """<iframe src="page.html" width="{width}" height="844"></iframe>
<script>onmessage = event => document.body.innerHTML = `<pre>${{JSON.stringify(event.data)}}</pre>`</script>"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_in_a_browser(page: Path, tmp_path: Path, width: int) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "these tests need Chromium: apt-get install chromium"
    (tmp_path / "page.html").write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    (tmp_path / "frame.html").write_text(FRAME.format(width=width))
    flags = f"--headless --no-sandbox --disable-gpu --enable-logging=stderr --user-data-dir={tmp_path}/profile"
    command = [program, *flags.split(), "--window-size=1400,900", "--virtual-time-budget=20000", "--dump-dom"]
    shown = subprocess.run([*command, f"{tmp_path}/frame.html"], capture_output=True, text=True, check=True)
    assert "CONSOLE" not in shown.stderr, "an error or a warning of the page"
    (found,) = re.findall("<pre>(.*)</pre>", shown.stdout)
    found = json.loads(found)
    # Nothing sticks out sideways, and text can be read without zooming in.
    assert found["width"] <= width
    assert found["font"] >= 16


def row(seconds: float, rate: float, stages: dict[str, float], learner: float, **others: Any) -> dict[str, Any]:
    return {
        "elapsed_seconds": seconds,
        "agent_steps": 1000,
        "agent_steps_per_second": rate,
        "stage_microseconds": stages,
        "learner_milliseconds": learner,
        "gradients_per_second": 20.0,
        "agent_steps_dropped": {},
        "actor_restarts": 0,
        **others,
    }


def test_stages_are_weighted_by_agent_steps_and_the_learner_by_time() -> None:
    rows = [
        row(10.0, 100.0, {"environment": 60.0, "wait": 40.0}, 5.0),
        row(20.0, 300.0, {"environment": 100.0, "wait": 0.0}, 15.0),
        row(21.0, 1000.0, {"environment": 100.0, "wait": 0.0}, 0.0),
    ]
    # The time of each run counts from its own start.
    spent, alone = time_spent([rows[:1], rows]), time_spent([rows[:1]])
    assert spent.microseconds["environment"] == pytest.approx((2000 * 60 + 3000 * 100 + 1000 * 100) / 6000)
    assert alone.learner_busy == pytest.approx(0.1)
    spent = time_spent([rows])
    assert spent.microseconds["environment"] == pytest.approx((1000 * 60 + 3000 * 100 + 1000 * 100) / 5000)
    assert spent.shares["wait"] == pytest.approx(1000 * 40 / 5000 / 100)
    # 20 gradients a second, of 5 ms in the first 10 s and of 15 ms in the next.
    assert spent.learner_busy == pytest.approx((1.0 + 3.0) / 21)
    # After a resume the seconds may be fewer than before.
    resumed = time_spent([[*rows, row(15.0, 1000.0, {"environment": 900.0}, 90.0)]])
    assert (resumed.microseconds, resumed.learner_busy) == (spent.microseconds, spent.learner_busy)


@pytest.mark.parametrize(
    ("stages", "learner", "expected"),
    [
        ({"environment": 80.0, "gradient": 20.0}, 5.0, ["environment, 80% of their time", "it is no bottleneck"]),
        ({"gradient": 60.0, "wait": 40.0}, 45.0, ["gradient, 60% of their time", "the learner is the bottleneck"]),
        ({"gradient": 20.0, "wait": 80.0}, 5.0, ["gradient, 20% of their time", "busy 10% of its own: the rest"]),
        ({}, 0.0, []),
    ],
)
def test_what_held_a_run_back(stages: dict[str, float], learner: float, expected: list[str]) -> None:
    lines = held_back(time_spent([[row(10.0, 100.0, stages, learner)]]), RunConfig())
    assert len(lines) == len(expected)
    assert all(words in line for line, words in zip(lines, expected, strict=True))


def test_faults_lags_and_evaluations_are_shown(tmp_path: Path) -> None:
    point = {"agent_steps": 2, "elapsed_seconds": 0.5, "standard_error": 0.25, "episodes": 3, "collapsed_episodes": 1}
    for seed in (1, 2):
        metrics = {
            "frames": 10,
            "mean_return_100": 1.0,
            "policy_lag_counts": {0: 1, seed: 4},
            "evaluations": [point | {"frames": frames, "mean_return": 9.0 - frames} for frames in (4, 8)],
        }
        faults = {"agent_steps_dropped": {"too_old": 2000 * seed}, "actor_restarts": seed}
        stages = {"environment": 60.0, "gradient": 40.0}
        written_run(tmp_path / f"seed-{seed}", [row(1.0, 10.0, stages, 5.0, **faults) | metrics], RunConfig(seed=seed))
    file = tmp_path / "report.json"
    # What an evaluation that is killed leaves, and what a crash of the machine leaves of a file.
    for name, content in (("noop.part-1", '{"protocol'), ("noop", "")):
        (tmp_path / f"seed-1/evaluation-{name}.json").write_text(content)
    assert main(["report", str(tmp_path), "--json", str(file)]) == 0
    text, figures = (tmp_path / "report.html").read_text(), json.loads(file.read_text())["runs"]
    for run in figures:
        assert [point["frames"] for point in run["training_evaluations"]] == [4, 8]
        assert run["stage_shares"].items() >= {"environment": 0.6, "gradient": 0.4, "wait": 0.0}.items()
        assert escape(run["held_back"][0]) in text
    assert "evaluations of the weights at that" in text
    best, last = (f"{mean} ± 0.25, median -, 1 collapsed, at {at} frames" for mean, at in (("5.00", 4), ("1.00", 8)))
    for fact, first, second in (
        ("best evaluation", best, best),
        ("last evaluation", last, last),
        ("agent steps dropped", "2,000 for too_old", "4,000 for too_old"),
        ("actors replaced", "1", "2"),
        # The rate of the whole run, not that of its last row.
        ("agent steps/s", "1,000", "1,000"),
        ("policy lag: mean, 95 %, most", "0.80, 1, 1", "1.60, 2, 2"),
    ):
        assert f"<td>{fact}</td><td>{first}</td><td>{second}</td>" in text
