"""The command line, run in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from kvbench.cli import main


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def kvbench(*arguments: str) -> Done:
    """Run the command line without a terminal: 80 columns wide, no colours."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", ["kvbench", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
    return Done(int(exit_.value.code or 0), stdout.getvalue(), stderr.getvalue())
