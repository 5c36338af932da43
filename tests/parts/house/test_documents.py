"""What the documents name must be there, and both languages must say the same.

The tests read README.md and all pages below docs/, in English and in Chinese (docs/zh). They follow
links, run the code and the commands of a few pages, read their options, and compute their tables
again.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import json5
import matplotlib
import pytest

import main_train_vrt
from models.vrt.fit_memory import BYTES_PER_PARAMETER
from scripts import prepare_gopro_spike
from tests.helpers.checked import found, of_part
from tests.helpers.documents import PAGES, ROOT
from tests.helpers.gopro_files import moving_frames, write_folder

FOLDERS = "scripts|lab|tests|docs|models|data|utils|options"
# A file of the project, e.g. "docs/ddp.md".
PATH = re.compile(rf"(?<![\w/.])((?:{FOLDERS})/[\w./-]+\.(?:py|md|sh|json|png))\b")
# A block of code between two lines of three backticks.
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
# A number, e.g. "12", "1,111" or "0.9.1".
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# The target of a link without its heading, e.g. "ddp.md" of "[memory](ddp.md#memory)".
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")


def anchors(page: Path) -> set[str]:
    """Return the names by which links lead to the headings of a page, as GitHub makes them.

    E.g. the heading "## Time limits" -> "time-limits".
    """
    titles = re.findall(r"(?m)^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_to_headings_and_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for file, anchor in re.findall(r"\]\(([^):]*)#([^)]+)\)", text):
        assert anchor in anchors(page.parent / file if file else page), f"{file}#{anchor}"
    # A page also names files that its reader writes, e.g. "Save this as `a.py`". The change log
    # names files that have left since.
    given = set(re.findall(r"(?m)^# (\S+\.py)$", text))
    given |= set(re.findall(r"(?:Save this as|保存为) `(\S+)`", text))
    named = set(PATH.findall(text)) - given if page.name != "CHANGELOG.md" else set()
    missing = {name for name in named if not (ROOT / name).exists()}
    missing |= {
        link for link in LINK.findall(text) if ":" not in link and not (page.parent / link).exists()
    }

    assert not missing


# Data sets, programs and methods that the pages name, and whose addresses docs/links.md must have.
PLACES = (
    "GoPro", "Spk-GoPro", "REDS", "Vimeo-90K", "DVD", "DAVIS", "X4K1000FPS", "Spk-X4K", "S-SDM",
    "Spike-Zoo", "SpikeCV", "VRT", "SpyNet", "SpkDeblurNet", "SCFlow", "TFSTP", "LPIPS", "SSIM",
    "KAIR", "S-VRT", "BasicSR", "coffee", "park",
)  # fmt: skip
# An address, with the bracket before it if it has one.
ADDRESS = re.compile(r"<?\bhttps?://[^\s<>()\]`\"']+")


def test_each_named_data_set_paper_and_program_has_its_address_and_addresses_are_whole():
    rows = [
        line
        for line in (ROOT / "docs/links.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    with_address = "\n".join(row for row in rows if ADDRESS.search(row))
    assert not [
        name
        for name in PLACES
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", with_address)
    ]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        papers = set(re.findall(r"(?i)\barxiv[ :.\w/]*?(\d{4}\.\d{5})", text))
        assert all(paper in with_address for paper in papers), (page.name, papers)
        for address in ADDRESS.findall(FENCED.sub("", text)):
            assert re.fullmatch(r"<?https?://[\w.-]+\.\w+(?:/[\w./%~+-]*)?[\w/]", address), (
                page.name,
                address,
            )


def test_the_code_of_the_page_on_python_and_of_the_notebook_runs(tmp_path, monkeypatch):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(encoding="utf-8"), re.DOTALL
    )
    book = json.loads((ROOT / "notebooks/restore.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    matplotlib.use("Agg")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for parts, folder in ((blocks, tmp_path), (cells, ROOT / "notebooks")):
        assert len(parts) > 5
        monkeypatch.chdir(folder)
        exec("\n".join(parts), {"__name__": "page"})


def test_the_notebook_alone_fetches_the_project_as_on_colab(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("no repository to clone from")
    book = json.loads((ROOT / "notebooks/restore.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    # git takes this repository in place of the address on GitHub.
    env = {**os.environ, "MPLBACKEND": "Agg", "GIT_CONFIG_COUNT": "1"}
    env |= {"GIT_CONFIG_KEY_0": f"url.file://{ROOT}.insteadOf"}
    env |= {"GIT_CONFIG_VALUE_0": "https://github.com/OWNER/SpikeVRT.git"}
    fetched = "\n".join(cells[:2])
    code = f"{fetched}\nfrom models.portable import read_saved\nprint(ROOT)"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert said.stdout.split() == [str(tmp_path / "SpikeVRT")], said.stderr


def test_the_commands_that_make_data_run_as_the_quick_start_gives_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "GOPRO_Large_all/train/GOPR0001_03_00", moving_frames(7))
    write_folder(
        tmp_path / "my_videos/train/GOPR0001_03_00", moving_frames(10).repeat(6, 1).repeat(6, 2)
    )
    text = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    given = re.findall(r"(?m)^ *python scripts/prepare_gopro_spike\.py (.*)$", text)
    assert len(given) == 3
    for line in given:
        assert prepare_gopro_spike.main(shlex.split(line, comments=True)) == 0
        made = list(
            (tmp_path / "trainsets").rglob("GOPRO_Large_spike_seq/*/GOPR0001_03_00*/spike/*.dat")
        )
        assert made
        shutil.rmtree(made[0].parents[3])


def test_the_tests_that_make_quick_names_exist():
    command = subprocess.run(
        ["make", "-n", "quick"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", command)
    assert len(named) > 20
    for file, test in named:
        assert (ROOT / file).is_file(), (file, test)
        assert not test or f"def {test}(" in (ROOT / file).read_text(), (file, test)


def read_dataset(file: Path, section: dict[str, object]) -> Any:
    """Read a section `datasets.train` as a part of the sample's option file."""
    options = {
        "base": "000_train_vrt_sample_rgbspike.json",
        "datasets": {"train": section, "test": None},
    }
    file.write_text(json.dumps(options))
    return main_train_vrt.read_options(["--opt", str(file)]).datasets.train


def test_the_options_in_the_pages_are_valid(tmp_path):
    for file in (ROOT / "options/vrt").glob("*.json"):
        shutil.copy(file, tmp_path)
    own = tmp_path / "own.json"
    quickstart = (ROOT / "docs/quickstart.md").read_text()
    own.write_text(found(r"```json\n(.*?)```", quickstart, re.DOTALL)[1])
    test = of_part(main_train_vrt.read_options(["--opt", str(own)]).datasets.test)
    assert test.dataroot_gt.startswith("trainsets/mine/")
    blocks = re.findall(
        r"```jsonc\n(.*?)```", (ROOT / "docs/data_format.md").read_text(), re.DOTALL
    )
    *cases, several, dataset, roots, camera = blocks
    assert len(cases) == 3
    for case in cases:
        assert (
            read_dataset(own, json5.loads(f"{{{case}}}")["train"]).dataroot_spike
            == "my_data/spikes/train"
        )
    exposures = re.split(r'^(?="exposure")', several, flags=re.MULTILINE)[1:]
    for exposure in exposures:
        train = json5.loads(f"{{{dataset}, {roots}, {camera}}}")
        values = train.pop("train") | train
        values["spike"] |= json5.loads(f"{{{exposure}}}")
        read = read_dataset(own, values)
        assert (list(read.spike.representation.half_windows), read.camera.drop_max) == (
            [2, 6, 12],
            0.1,
        )
        assert len(read.dataroot_lq) == len(read.dataroot_share)
        assert len(read.dataroot_spike) == len(read.dataroot_share)

    assert len(exposures) == 3


def test_the_table_of_memory_per_rank_follows_from_the_bytes_of_a_parameter():
    text = (ROOT / "docs/ddp.md").read_text(encoding="utf-8")
    P = int(found(r"\bP is (\d+) M\b", text)[1])
    N = int(found(r"\bN = (\d+) ranks", text)[1])
    # P is in millions of parameters, so A is in millions of bytes.
    A = 1000 * float(found(r"\bA = ([\d.]+) GB", text)[1])
    rows = re.findall(r"^\| (?:DDP|ZeRO|FSDP).*`\d+ P.*$", text, re.MULTILINE)
    assert len(rows) == 4
    for row, divided in zip(rows, ((), (8,), (4, 8), (4, 4, 8)), strict=True):
        _, *parts, formula, total, saved, sent = [
            cell.strip() for cell in row.strip("|").split("|")
        ]
        # Bytes for each parameter: those of `divided` are shared out among N ranks.
        expected = BYTES_PER_PARAMETER - sum(divided) * (1 - 1 / N)
        assert eval(re.sub(r"(\d) P", r"\1 * P", formula.strip("`"))) == pytest.approx(
            P * expected + A
        )
        assert float(total) == pytest.approx(sum(map(float, parts)), abs=2e-3)
        assert float(total) == pytest.approx((P * expected + A) / 1000, abs=6e-4)
        assert float(saved) == pytest.approx(P * (BYTES_PER_PARAMETER - expected) / 1000, abs=6e-4)
        assert float(parts[-1]) == A / 1000
        assert float(sent) == pytest.approx(
            (1.5 if len(divided) == 3 else 1) * P * 8 * (N - 1) / N / 1000, abs=6e-4
        )
    of_all = float(found(r"([\d.]+) % of this sum", text)[1])

    assert of_all == pytest.approx(
        100 * float(saved) / (P * BYTES_PER_PARAMETER + A) * 1000, abs=0.06
    )


def english(page: Path) -> Path:
    """Return the English page of a Chinese page."""
    return (
        page.parent.parent / page.name if page.parent.name == "zh" else page.with_name("README.md")
    )


# The Chinese pages.
TRANSLATED = [ROOT / "README_zh-CN.md", *sorted((ROOT / "docs/zh").glob("*.md"))]


def skeleton(page: Path) -> list[dict[str, object]]:
    """Return what must be equal in both languages, for each section of a page.

    This is its heading, its code, its table without the words, its numbers and its links. A link is
    the file to which it leads, or the English page of this file.
    """
    text = page.read_text(encoding="utf-8")
    sections = []
    own = english(page) if page in TRANSLATED else page
    for part in re.split(
        r"(?m)^(?=#+ )", FENCED.sub(lambda block: block[0].replace("\n#", "\n\\#"), text)
    ):
        blocks = FENCED.findall(part)
        prose = FENCED.sub("", part)
        rows = [line for line in prose.splitlines() if line.lstrip().startswith("|")]
        links = [(page.parent / link).resolve() for link in LINK.findall(prose) if ":" not in link]
        links = [english(link) if link in TRANSLATED else link for link in links]
        if page.parent == ROOT:
            blocks = [re.sub(r"\s+# .*", "", block) for block in blocks]
        names = re.findall(r"`([^`\n]+)`", prose)
        sections.append({
            "heading": part[: part.find(" ")] if part.startswith("#") else "",
            "blocks": blocks,
            "cells of each row": [len(re.findall(r"(?<!\\)\|", row)) for row in rows],
            "numbers of each row": [sorted(NUMBER.findall(row)) for row in rows],
            "numbers": sorted(NUMBER.findall(prose)),
            "links": {str(link) for link in links if link != own},
            "code": {name.replace("docs/zh/", "docs/") for name in names},
        })  # fmt: skip
    return sections


@pytest.mark.parametrize("chinese", TRANSLATED, ids=lambda page: page.name)
def test_a_page_has_the_same_sections_code_tables_numbers_and_links_in_both_languages(chinese):
    for ours, theirs in zip(skeleton(english(chinese)), skeleton(chinese), strict=True):
        assert theirs == ours
    pages = (english(chinese), chinese)
    for page, other in (pages, pages[::-1]):
        assert other in {
            (page.parent / link).resolve()
            for link in LINK.findall(page.read_text(encoding="utf-8"))
        }
