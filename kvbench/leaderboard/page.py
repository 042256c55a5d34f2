"""The page's text: the template with style, script and data put into it."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvbench.errors import KvbenchError
from kvbench.record_table import reason


def make_page(content: dict[str, Any]) -> str:
    """Return the page. Its own policy lets it load nothing, and run only the script that is in it."""
    html, style, script = (_template(name) for name in ("page.html", "page.css", "page.js"))
    policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:"
    for mark, text in {
        "{{policy}}": policy,
        "{{style}}": style,
        "{{script}}": script,
        "{{data}}": embedded(content),  # the last: names in the data may look like the others
    }.items():
        html = html.replace(mark, text, 1)
    return html


def embedded(content: object) -> str:
    """Return JSON that cannot end the script element that it stands in, nor open a comment or an element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def write_page(page: str, folder: Path) -> Path:
    """Write `index.html` into a folder, which is made if it is not there; whole or not at all.

    Raises:
        KvbenchError: The folder cannot be written to.
    """
    file = folder / "index.html"
    partial = folder / "index.html.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(page, encoding="utf-8", errors="replace", newline="\n")
        partial.replace(file)
    except OSError as error:
        raise KvbenchError(f"cannot write to {file}: {reason(error)}") from error
    return file


def _template(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
