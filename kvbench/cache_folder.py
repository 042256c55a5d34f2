"""Where kvbench keeps what it can make again: converted models and generated data."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache folder: `$KVBENCH_CACHE`, else `kvbench` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    if chosen := os.environ.get("KVBENCH_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvbench"
