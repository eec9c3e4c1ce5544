"""The revision that each file names."""

import hashlib
import os
import platform
import subprocess
from pathlib import Path

import pytest

from launch.provenance import hardware, revision, source_digest


def test_the_revision_is_the_commit_or_a_digest_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a hook: the commands below would be about that repository.
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    assert source_digest() != hashlib.sha256().hexdigest()[:12]
    monkeypatch.setattr("launch.provenance._ROOT", tmp_path)
    assert revision.__wrapped__() == source_digest()
    # Presets are sources.
    (tmp_path / "launch").mkdir()
    without = source_digest.__wrapped__()
    (tmp_path / "launch" / "presets.toml").touch()
    assert source_digest.__wrapped__() != without
    # A checkout that git cannot read, which it says on stderr.
    (tmp_path / ".git").mkdir()
    assert revision.__wrapped__() == source_digest()
    own = ("user.name=a", "user.email=a@b", "commit.gpgsign=false", "core.hooksPath=/dev/null")
    git = ["git", "-C", str(tmp_path), *(word for setting in own for word in ("-c", setting))]
    (tmp_path / "file").touch()
    for command in (["init"], ["add", "file"], ["commit", "-m", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    assert revision.__wrapped__() == commit[:12]
    (tmp_path / "file").write_text("changed")
    assert revision.__wrapped__() == f"{commit[:12]}-dirty"


def test_a_processor_is_named_with_its_family_and_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines of several generations are called AMD EPYC."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr("launch.provenance._CPU_INFO", file)
    core = "processor\t: {}\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n\n"
    file.write_text(core.format(0, 17) + core.format(1, 17))
    assert hardware()["cpu"] == "AMD EPYC (family 25, model 17)"
    file.write_text("processor\t: 0\nCPU implementer\t: 0x41\n\n")
    assert hardware()["cpu"] == platform.machine()
