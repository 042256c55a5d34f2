"""A hub on this machine: what is asked of it, what is fetched, and what stays there."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COMMIT = "c0ffee" * 6 + "c0de"
FILE = "data/validation-00000-of-00001.parquet"
ROWS = 3000
READ = """
from kvbench.registry import make_task
task = make_task("boolq")
print(task.data_of("boolq"), len(task.samples(None, {limit}, 42)))
"""


@dataclass
class Hub:
    """Holds one file of one repository, and counts the bytes of it that it has given away."""

    content: bytes
    address: str = ""
    given: list[int] = field(default_factory=list)


class Answers(BaseHTTPRequestHandler):
    """The few requests that huggingface_hub makes."""

    hub: Hub

    def do_GET(self) -> None:
        if re.match(r"/api/datasets/google/boolq(/revision/(main|v1|c0ffee\w+))?(\?|$)", self.path):
            siblings = [{"rfilename": name, "size": len(self.hub.content)} for name in (FILE, "README.md")]
            self._json({"id": "google/boolq", "sha": COMMIT, "siblings": siblings})
        elif f"/api/datasets/google/boolq/tree/{COMMIT}/data" in self.path:
            self._json([{"type": "file", "path": FILE, "size": len(self.hub.content), "oid": "1"}])
        elif self.path.partition("?")[0] in [f"/datasets/google/boolq/resolve/{at}/{FILE}" for at in (COMMIT, "main")]:
            self._file()
        else:
            self._json({"error": "Not found"}, 404)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        size = len(self.hub.content)
        self.rfile.read(int(self.headers["Content-Length"]))
        self._json([{"type": "file", "path": FILE, "size": size, "oid": "1"}] if "paths-info" in self.path else [])

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _file(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop = 0, len(self.hub.content)
        if asked:
            start, stop = int(asked[1]), min(stop, int(asked[2] or stop) + 1)
        self.send_response(206 if asked else 200)
        self.send_header("ETag", '"etag"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(stop - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(self.hub.content)}")
        self.end_headers()
        if self.command == "GET":
            self.hub.given.append(stop - start)
            self.wfile.write(self.hub.content[start:stop])

    def _json(self, content: object, status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status == 404:
            self.send_header("X-Error-Code", "RevisionNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    drawn = random.Random(0)
    rows = [
        {"question": f"is it {n}", "passage": drawn.randbytes(3000).hex(), "answer": n % 2 == 0} for n in range(ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=100)
    hub = Hub((tmp_path / "rows.parquet").read_bytes())
    with ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Answers,), {"hub": hub})) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()


def run(hub: Hub, tmp_path: Path, *arguments: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.address,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": str(int(offline)),
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_of_a_file_on_the_hub_only_the_first_rows_are_fetched(hub: Hub, tmp_path: Path) -> None:
    done = run(hub, tmp_path, "-c", READ.format(limit=5))
    assert done.stdout.split() == ["hub", f"google/boolq@{COMMIT}", "5"], done.stderr
    assert 0 < sum(hub.given) < len(hub.content) * 0.1
    assert not list((tmp_path / "cache").glob("**/*.parquet"))


def test_what_is_fetched_is_there_without_a_network(hub: Hub, tmp_path: Path) -> None:
    fetched = run(hub, tmp_path, "-m", "kvbench", "data", "fetch", "boolq", "--json")
    assert fetched.returncode == 0, fetched.stderr
    [found] = json.loads(fetched.stdout)
    assert found["origin"] == f"hub google/boolq@{COMMIT}"
    assert Path(found["files"][0]).read_bytes() == hub.content
    assert f"fetching BoolQ from hub google/boolq@{COMMIT}: 1 files, {len(hub.content) / 1e6:.1f} MB" in fetched.stderr
    hub.given.clear()
    again = run(hub, tmp_path, "-m", "kvbench", "data", "fetch", "boolq", "--revision", f"boolq={COMMIT}")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[0] == f"BoolQ (boolq), hub google/boolq@{COMMIT}:"
    assert "fetching" not in again.stderr
    offline = run(hub, tmp_path, "-c", READ.format(limit=None), offline=True)
    assert offline.stdout.split() == ["hub", f"google/boolq@{COMMIT}", str(ROWS)], offline.stderr
    assert hub.given == []


def test_a_revision_that_the_hub_has_not_got_is_refused(hub: Hub, tmp_path: Path) -> None:
    done = run(hub, tmp_path, "-m", "kvbench", "data", "fetch", "boolq", "--revision", "boolq=v7")
    assert done.returncode == 2
    assert "--revision boolq=v7: neither the hub's google/boolq nor its cache has" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
