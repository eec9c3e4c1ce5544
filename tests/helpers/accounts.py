"""The account of a run, as its folder has it."""

import json
from pathlib import Path
from typing import Any


def account_of(run: Path) -> dict[str, Any]:
    """The summary of a run, from whose account nothing is lost."""
    summary = json.loads((run / "summary.json").read_text())
    dropped = sum(summary["agent_steps_dropped"].values())
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
    return summary
