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
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
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


def english(page: Path) -> Path:
    """The English page of a page in either language."""
    return page.parent.parent / page.name if page.parent.name == "zh" else page.with_name("README.md")


TRANSLATED = [ROOT / "README_zh-CN.md", *sorted((ROOT / "docs/zh").glob("*.md"))]


def skeleton(page: Path) -> list[dict[str, object]]:
    """What is equal in both languages, section by section; links as the files that they lead to, in English."""
    text, sections = page.read_text(encoding="utf-8"), []
    own = english(page) if page in TRANSLATED else page
    for part in re.split(r"(?m)^(?=#+ )", FENCED.sub(lambda block: block[0].replace("\n#", "\n\\#"), text)):
        blocks, prose = FENCED.findall(part), FENCED.sub("", part)
        rows = [line for line in prose.splitlines() if line.lstrip().startswith("|")]
        links = [(page.parent / link).resolve() for link in LINK.findall(prose) if ":" not in link]
        links = [english(link) if link in TRANSLATED else link for link in links]
        sections.append(
            {
                "heading": part[: part.find(" ")] if part.startswith("#") else "",
                "blocks": blocks if "docs" in page.parts else [re.sub(r"\s+# .*", "", block) for block in blocks],
                "cells of each row": [len(re.findall(r"(?<!\\)\|", row)) for row in rows],
                "numbers of each row": [sorted(NUMBER.findall(row)) for row in rows],
                "numbers": sorted(NUMBER.findall(prose)),
                "code": {code.replace("docs/zh/", "docs/") for code in re.findall(r"`([^`\n]+)`", prose)},
                "links": {str(link) for link in links if link != own},
            }
        )
    return sections


@pytest.mark.parametrize("chinese", TRANSLATED, ids=lambda page: page.name)
def test_a_page_has_the_same_sections_code_tables_numbers_and_links_in_both_languages(chinese):
    for ours, theirs in zip(skeleton(english(chinese)), skeleton(chinese), strict=True):
        assert theirs == ours
    pages = (english(chinese), chinese)
    for page, other in (pages, pages[::-1]):
        assert other in {(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))}
