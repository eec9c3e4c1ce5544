"""Virtual environments with packages that the one that runs the tests is without."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(folder: Path, *packages: str, beside: Path | None = None) -> Path:
    """A virtual environment's programs, installed once. Sees what is installed in `beside`, too."""
    done = folder / ".installed"
    if not done.is_file() or done.read_text() != " ".join(packages):
        venv.create(folder, clear=True, symlinks=True)
        if beside is not None:
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            (folder / "lib" / version / "site-packages" / "beside.pth").write_text(f"{beside}\n")
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", *packages], cwd=ROOT, check=True)
        done.write_text(" ".join(packages))
    return folder / "bin"
