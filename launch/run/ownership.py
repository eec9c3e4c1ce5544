"""Whether a run folder is this user's own, so that the modules that it names may be imported.

Settings may name code: modules, and what is in them. The folder of such a run holds a signature of these settings, by a
key that only this user has. Whoever else made a folder, or changed what one names, could not sign it.
"""

import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.output.json_file import write_json

SIGNATURE = "signature.json"


def sign(folder: Path, environment: dict[str, Any]) -> None:
    """Sign the settings of an environment, as config.json has them, as this user's own.

    Where the key can be neither read nor made nothing is signed, and --trust-imports is asked for later.
    """
    with suppress(OSError, ValueError):
        write_json(folder / SIGNATURE, {"environment": _signature(_key(), environment)})


def is_own(folder: Path, environment: Any) -> bool:
    """Whether this user has signed the settings of an environment, as config.json has them."""
    try:
        signed = json.loads((folder / SIGNATURE).read_text())["environment"]
        return hmac.compare_digest(str(signed), _signature(_key(), environment))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _signature(key: bytes, environment: dict[str, Any]) -> str:
    return hmac.new(key, json.dumps(environment, sort_keys=True).encode(), "sha256").hexdigest()


def _key() -> bytes:
    """This user's key, which is made when it is first needed.

    Raises:
        OSError: it can be neither read nor made.
        ValueError: it is damaged.
    """
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    file = Path(home) / "tributary" / "key"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"key.{secrets.token_hex(4)}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(secrets.token_hex(32))
        try:
            # Another process may have made one meanwhile: the first stays.
            with suppress(FileExistsError):
                os.link(part, file)
        finally:
            part.unlink()
    key = bytes.fromhex(file.read_text())
    if len(key) != 32:
        raise ValueError(f"{file} is damaged")
    return key
