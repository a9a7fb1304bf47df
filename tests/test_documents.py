"""What the documents tell people to type works, and what they link to exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for kind, body in _BLOCK.findall(text) if kind == language]


def run(script: str, folder: Path) -> str:
    """Run what somebody would paste into a shell that finds the `tidegate` of this environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("document", "last_words"),
    [
        ("README.md", "2025-01-08 16:30:00 / 5"),
        ("docs/how-to/first-sync.md", "2025-01-09 10:05:00 / 6"),
        ("docs/how-to/names.md", "mapped"),
    ],
)
def test_what_a_document_tells_to_type_works(document: str, last_words: str, tmp_path: Path) -> None:
    assert last_words in run("\n".join(blocks(document, "sh")), tmp_path)


@pytest.mark.parametrize("document", ["README.md", "docs/reference/cli.md"])
def test_python_in_documents_compiles(document: str) -> None:
    for body in blocks(document, "python"):
        compile(body, document, "exec")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for link in _LINK.findall(_BLOCK.sub("", text)):
        assert (ROOT / document).parent.joinpath(link).exists(), link
