"""Where kvbench keeps what it can make again: converted models and generated data."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache folder for kvbench: `$KVBENCH_CACHE`, else `$XDG_CACHE_HOME/kvbench`, else `~/.cache/kvbench`."""
    if chosen := os.environ.get("KVBENCH_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvbench"
