"""The account of a run and all its other numbers, as its folder has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def account_of(run: Path) -> dict[str, Any]:
    """The summary of a run, from whose account nothing is lost."""
    summary = json.loads((run / "summary.json").read_text())
    dropped = sum(summary["agent_steps_dropped"].values())
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
    return summary


def check_finite(run: Path) -> None:
    """Check that each number of a run is finite or null: rows, summary, and the newest checkpoint."""
    # Here, as TensorFlow is not always set up before this module is imported.
    import tensorflow as tf

    from learner.checkpoint import checkpoint_paths

    # A run that fails in its first rollout has no rows.
    rows = run / "metrics.jsonl"
    written = [*(rows.read_text().splitlines() if rows.exists() else ()), (run / "summary.json").read_text()]
    reader = tf.train.load_checkpoint(str(checkpoint_paths(run / "checkpoints")[0]))
    written.append(reader.get_tensor("state/.ATTRIBUTES/py_state"))
    json.dumps([*map(json.loads, written)], allow_nan=False)
    for name, dtype in reader.get_variable_to_dtype_map().items():
        assert not dtype.is_floating or np.isfinite(reader.get_tensor(name)).all(), name
