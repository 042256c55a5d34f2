"""Writing safetensors files that are there only once they are whole."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a whole file, which is on disk when this returns, or none of it; an older one stays until then.

    A killed writer leaves a folder `.<name>.partial` behind, which the next one clears.

    Raises:
        OSError: The system refuses (a full disk, say).
    """
    partial = file.with_name(f".{file.name}.partial")  # a folder: safetensors puts files of its own beside the file
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        written = partial / file.name
        written.touch()
        mode = written.stat().st_mode
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, written, metadata)
        written.chmod(mode)  # safetensors lets nobody else read the file
        with written.open("rb") as stream:
            os.fsync(stream.fileno())
        written.replace(file)
    except SafetensorError as error:
        raise _system_error(error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _system_error(error: SafetensorError) -> OSError:
    """Return the error of the system that safetensors tells of."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))
