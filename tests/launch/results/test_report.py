"""The HTML report: complete, self-contained, and sound in a browser at both ends of the range of screens."""

import json
import re
from html import escape
from pathlib import Path

import pytest
from browser import Browser

from launch.cli import main


@pytest.fixture(scope="module")
def page(cartpole_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that was evaluated and filmed, and of another seed."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    assert main(f"evaluate {cartpole_runs[0]} --episodes 5".split()) == 0
    assert main(f"record {cartpole_runs[0]} --overlay".split()) == 0
    assert main(["report", *map(str, cartpole_runs), "--output", str(file)]) == 0
    return file


def test_a_report_has_all_that_a_reader_asks_for(page: Path) -> None:
    text = page.read_text()
    for wanted in ("Learning curves", "standard error", "<video", "Faults met", "All settings", "policy lag", "seed 2"):
        assert wanted in text, wanted
    assert "optimizer.learning_rate" in text
    assert "tensorflow 2" in text
    assert text.count("<svg") == 2 + 2 * 2


def test_a_report_says_what_held_the_run_back_and_what_evaluations_saw(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    settings = "cartpole --total-frames 3000 --network.hidden-sizes 8 --executor inline --actors 1"
    evaluated = "--evaluation.every-frames 1000 --evaluation.episodes 3 --stop-at-return None --stop-measure training"
    assert main(["train", *settings.split(), *evaluated.split(), "--run-dir", str(run)]) == 0
    page, file = tmp_path / "page.html", tmp_path / "page.json"
    assert main(["report", str(run), "--output", str(page), "--json", str(file)]) == 0
    (figures,) = json.loads(file.read_text())["runs"]
    assert len(figures["training_evaluations"]) >= 2
    frames = [point["frames"] for point in figures["training_evaluations"]]
    assert frames == sorted(frames)
    assert all(point["episodes"] == 3 for point in figures["training_evaluations"])
    assert abs(sum(figures["stage_shares"].values()) - 1) < 1e-9
    text = page.read_text()
    assert f"{len(frames)} evaluations during training" in text
    assert "evaluations of the weights at that time" in text
    assert figures["held_back"]
    assert all(escape(line) in text for line in figures["held_back"])


def test_a_report_refers_to_nothing_outside_itself(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r'(?:src|href)\s*=\s*"([^"]{0,40})', text) + re.findall(r"url\(([^)]{0,40})", text)
    assert targets
    assert all(target.startswith(("data:", "#")) for target in targets), targets
    assert "<script" not in text
    assert "@import" not in text


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height", "mobile"), [(1280, 900, False), (390, 844, True)])
def test_a_report_in_a_browser(page: Path, tmp_path: Path, width: int, height: int, mobile: bool) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(page, width, height, mobile=mobile)
        assert browser.requests == []
        assert browser.errors == []
        # Nothing sticks out sideways, and text can be read without zooming in.
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
        loaded = "new Promise(done => { const v = document.querySelector('video'); if (v.readyState) done(v.duration); "
        loaded += "else { v.onloadedmetadata = () => done(v.duration); v.onerror = () => done(0); } })"
        assert browser.evaluate(loaded) > 0.1
        browser.screenshot(page.with_name(f"report-{width}.png"))
