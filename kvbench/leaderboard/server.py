"""Serving the leaderboard to this machine alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kvbench.errors import UsageError
from kvbench.record_table import reason

HOST = "127.0.0.1"


def serve(folder: Path, port: int, ready: Callable[[str], object]) -> None:
    """Serve a folder until it is interrupted.

    Args:
        folder: What to serve.
        port: 0 for any that is free.
        ready: Called with the address once it answers.

    Raises:
        UsageError: The port is taken.
    """
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Quiet, directory=str(folder)))
    except OSError as error:
        raise UsageError(f"port {port} cannot be used: {reason(error)}; --port 0 takes any that is free") from error
    with server:
        ready(f"http://{HOST}:{server.server_port}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _Quiet(SimpleHTTPRequestHandler):
    """Never from a cache: results grow while one looks at them."""

    def end_headers(self) -> None:
        """Forbid caching."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
