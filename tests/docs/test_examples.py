"""The examples are run: a notebook, and a method of the user's own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tributary_rl as tributary
from shared.methods.names import METHODS, register_method

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
_CELL_SECONDS = 250


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer frames. Its cells show the lines of the run, a curve and a video."""
    import nbformat
    from nbclient import NotebookClient

    # The kernel finds the project as this process does.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    notebook = nbformat.read(EXAMPLES / "cartpole.ipynb", as_version=4)
    assert notebook.cells[1].source.count("300_000") == 1
    notebook.cells[1].source = notebook.cells[1].source.replace("300_000", "4_000")
    NotebookClient(notebook, timeout=_CELL_SECONDS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "run folder:" in printed
    assert "frames reached" in printed
    shown = {kind for output in outputs if output.output_type == "execute_result" for kind in output.data}
    assert {"image/png", "image/gif", "text/plain"} <= shown
    assert float(outputs[-1].data["text/plain"]) > 0


def test_a_method_of_the_users_own_trains_and_is_evaluated(tmp_path: Path) -> None:
    """Each command imports it, in a process that knows nothing of it; a name that it does not have is told."""
    shutil.copy(EXAMPLES / "own_method.py", tmp_path)
    small = "--total-frames 500 --stop-at-return None --stop-measure training --evaluation.every-frames 0 --actors 1"
    chosen = f"--environment.import own_method --method.name sign --executor inline {small} --run-dir run"
    variables = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}

    def run(line: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "launch.cli", *line.split()]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    misspelt = run(f"train cartpole {chosen}".replace("sign", "sing"))
    assert misspelt.returncode == 2
    assert "--method.name sing: no such method; there are actor_critic, q_learning, sarsa, sign" in misspelt.stderr
    trained = run(f"train cartpole {chosen}")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["method"]["name"], config["environment"]["imports"]) == ("sign", ["own_method"])
    evaluated = run("evaluate run --episodes 2")
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr


def test_a_method_does_not_take_the_name_of_another() -> None:
    """The same one may be entered again, where its module is imported again."""

    class Another:
        pass

    try:
        for _ in range(2):
            tributary.register_method("another", Another, continuous_actions=False)
        assert METHODS["another"].class_name == "Another"
        with pytest.raises(ValueError, match="there is a method sarsa already"):
            register_method("sarsa", Another, continuous_actions=False)
    finally:
        METHODS.pop("another", None)
