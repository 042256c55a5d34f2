"""What a run is made with: versions and hardware, recorded beside every result."""

import platform
from pathlib import Path

import torch
import transformers

from kvbench import __version__
from kvbench.records import Environment


def describe_environment() -> Environment:
    """Describe this process and machine."""
    return Environment(
        kvbench=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        processor=_processor(),
        threads=torch.get_num_threads(),
        platform=platform.platform(),
    )


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
