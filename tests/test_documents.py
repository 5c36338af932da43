"""What the documents name must be there, and the two READMEs must say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PATH = re.compile(r"(?<![\w/.])((?:scripts|tests|docs|models|data|utils|options)/[\w./-]+\.(?:py|md|sh|json|png))\b")
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")


def commands(page: Path) -> list[str]:
    """The lines of all bash blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    missing = {name for name in PATH.findall(text) if not (ROOT / name).exists()}
    missing |= {link for link in LINK.findall(text) if ":" not in link and not (page.parent / link).exists()}
    assert not missing


def test_the_code_in_the_page_on_extending_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    program = "\n".join(blocks) + "\nassert DATASETS.keys('LabTrain') and model.netG"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


def test_both_readmes_have_the_same_sections_commands_links_and_figures():
    english, chinese = (ROOT / name for name in ("README.md", "README_zh-CN.md"))
    assert commands(english) == commands(chinese)
    texts = [page.read_text(encoding="utf-8") for page in (english, chinese)]
    for pattern in (r"(?m)^#+ ", r"(?m)^\|", r"`(python [^`]*|\./[^`]*|make [^`]*|netG[^`]*)`", r"\d+\.\d\d+"):
        assert [re.findall(pattern, text) for text in texts[:1]] == [re.findall(pattern, text) for text in texts[1:]]
    links = [{link for link in LINK.findall(text) if not link.startswith("README")} for text in texts]
    assert links[0] == links[1]
