"""What a Markdown file quotes of `results/`: commands and what they print, put in by cog (`make readme`).

<!-- [[[cog show("kvbench table results") ]]] -->
<!-- [[[end]]] -->
"""

import shlex
import subprocess
import sys


def show(command: str) -> None:
    """Print a command of kvbench, and below it what the command prints; cog puts both into the file.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    _, *arguments = shlex.split(command)
    ran = subprocess.run([sys.executable, "-m", "kvbench", *arguments], capture_output=True, text=True, check=True)
    print(f"\n    {command}\n\n{ran.stdout.strip()}\n")
