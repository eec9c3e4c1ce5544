"""The search of docs/sweeps.md on the real Ray Tune, with fewer frames and trials."""

import re
import sys
from pathlib import Path

import pytest
from accounts import account_of
from watched_processes import output_of

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"
SHORTENED = {"num_samples=4": "num_samples=2", "10_000": "2_000", "40_000": "6_000"}


def test_the_search_of_the_document_finds_settings(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    for long, short in SHORTENED.items():
        assert script.count(long) == 1
        script = script.replace(long, short)
    (tmp_path / "script.py").write_text(f"import os\nos.environ['HOME'] = {str(tmp_path)!r}\n{script}")
    *_, config, score = output_of(sys.executable, "script.py", cwd=tmp_path, timeout=900).splitlines()
    assert re.search(r"'optimizer.learning_rate': 0\.\d+.*\} [1-9]\d*\.\d+ [1-9]\d+$", config), config
    assert float(score) > 0
    runs = list((tmp_path / "runs" / "sweep").iterdir())
    assert len(runs) == 2
    # The scheduler stops the worse one.
    ended = [account_of(run) for run in runs if (run / "summary.json").is_file()]
    assert any(summary["status"] == "frames_reached" and summary["frames"] >= 6_000 for summary in ended)
