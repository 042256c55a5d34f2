"""A page of results in headless Chromium."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbench.commands.plot import reads_attention
from kvbench.commands.table import is_bound
from kvbench.leaderboard.content import make_content
from kvbench.leaderboard.page import make_page, write_page
from kvbench.store import load
from simulated import PRESSES, make_protocol, simulate

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'kvbench[dev]'")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
LABEL = "snapkv:window=32,kernel=7"


@pytest.fixture(scope="session")
def browser() -> Iterator["sync_api.Browser"]:
    """Chromium, with a profile of its own."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    file = os.environ.get("KVBENCH_AXE")
    if not file or not Path(file).is_file():
        pytest.skip("axe-core is not here: KVBENCH_AXE names its axe.min.js")
    return Path(file).read_text()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of three protocols, opened from disk."""
    folder = tmp_path_factory.mktemp("results")
    presses = PRESSES | {LABEL: 7.3}
    budgets = ("64", "128", "256", "512", "25%", "50%")
    simulate(folder, presses=presses, budgets=budgets, failing=0.02)
    simulate(folder, make_protocol(question="after"), presses, seed=1)
    simulate(folder, make_protocol(task="ruler-8k", schedule="chunked", chunk=512), {"kvp": 5.0, "tova": 6.8}, seed=2)
    page = make_page(make_content(load(folder), folder, reads_attention, is_bound))
    return write_page(page, tmp_path_factory.mktemp("site")).as_uri()
