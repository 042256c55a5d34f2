"""Plug-ins for tests: what pip leaves of a package that registers presses and tasks, without its installation."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvbench.registry import PRESSES, TASKS, registered

EXAMPLE = Path(__file__).parent / "plugin" / "src"
"""The sources of the plug-in package that the tests install."""


def register(
    folder: Path, package: str, presses: Mapping[str, str] | None = None, tasks: Mapping[str, str] | None = None
) -> None:
    """Make `folder`, once it is on the import path, hold a package with these entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = {PRESSES: presses or {}, TASKS: tasks or {}}
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in groups.items()
        )
    )


@contextmanager
def on_path(*folders: Path) -> Iterator[None]:
    """Let this process find the packages in these folders."""
    before = sys.path[:]
    sys.path[:0] = map(str, folders)
    registered.cache_clear()
    try:
        yield
    finally:
        sys.path[:] = before
        registered.cache_clear()
