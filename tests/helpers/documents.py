"""The Markdown pages of the project, in both languages."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# README.md and the other pages in the root, and all pages below docs/ (docs/zh/ has the Chinese
# pages).
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
