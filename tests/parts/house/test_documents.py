"""Files that the documents name must exist, and both languages must state the same facts.

The tests read README.md and all pages below docs/, in English and in Chinese (docs/zh). They follow
links, run the code and the commands of a few pages, read the options of these pages, and compute
their tables again.

If a test fails after you have changed a page, its error names the page and the fault.
"""

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import json5
import matplotlib
import pytest

import main_train_vrt
from lab.card_recipes import clips_at_once
from models.vrt.memory.fit_memory import BYTES_PER_PARAMETER
from scripts import prepare_gopro_spike
from tests.dist.launching import run_ranks
from tests.helpers.checked import find_match, options_of_part
from tests.helpers.documents import PAGES, ROOT
from tests.helpers.gopro_files import moving_frames, write_folder
from utils.options.models import Options

# Folders of the project whose files a page may name.
FOLDERS = "scripts|lab|tests|docs|models|data|utils|options"
# A file of the project, e.g. "docs/ddp.md".
PATH = re.compile(rf"(?<![\w/.])((?:{FOLDERS})/[\w./-]+\.(?:py|md|sh|json|png))\b")
# A block of code between two lines that begin with three backticks.
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
# A number, e.g. "12", "1,111" or "0.9.1".
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# The target of a link without its heading, e.g. "ddp.md" of "[memory](ddp.md#memory)".
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
# A link to a heading. Group 1 is the file, or "" for the same page. Group 2 is the name of the
# heading.
LINK_TO_HEADING = re.compile(r"\]\(([^):]*)#([^)]+)\)")

# Runs a test once for each page.
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def read_page(name: str) -> str:
    """Return the text of a page, e.g. of "docs/ddp.md"."""
    return (ROOT / name).read_text(encoding="utf-8")


# ---- Links and files ----


def anchors(page: Path) -> set[str]:
    """Return the names that links use for the headings of a page.

    GitHub makes these names from the titles, e.g. "## Time limits" -> "time-limits".
    """
    # Leave out blocks of code, because a line of code may begin with "#", too.
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    names = set()
    for title in re.findall(r"(?m)^#+ (.*)$", text):
        without_marks = re.sub(r"[^\w -]", "", title.lower()).strip()
        names.add(without_marks.replace(" ", "-"))
    return names


@each_page
def test_links_to_headings_lead_to_headings(page):
    text = page.read_text(encoding="utf-8")

    for file, anchor in LINK_TO_HEADING.findall(text):
        # A link without a file leads to a heading of the same page.
        target = page.parent / file if file else page
        assert anchor in anchors(target), f"{file}#{anchor}"


@each_page
def test_links_to_files_lead_to_files(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    # The other links are addresses on the web, e.g. "https://...".
    links_to_files = [link for link in links if ":" not in link]

    missing = [link for link in links_to_files if not (page.parent / link).exists()]
    assert not missing


def files_that_the_reader_writes(text: str) -> set[str]:
    """Return the files that the user of a page must write, e.g. "Save this file as `a.py`".

    A block of code with the first line "# a.py" also is the file a.py.
    """
    files = set(re.findall(r"(?m)^# (\S+\.py)$", text))
    files |= set(re.findall(r"(?:[Ss]ave (?:this|this file|it) as|保存为) `(\S+)`", text))
    return files


# The change log is left out, because it names files that were removed later.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_files_of_the_project_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    named = set(PATH.findall(text)) - files_that_the_reader_writes(text)

    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


# ---- Heads of folders ----


def heads_that_list_modules() -> list[Path]:
    """Return each __init__.py that names modules."""
    heads = []
    for folder in ("data", "models", "utils", "scripts"):
        for path in sorted((ROOT / folder).rglob("__init__.py")):
            if ".py" in path.read_text(encoding="utf-8"):
                heads.append(path)
    return heads


@pytest.mark.parametrize(
    "head", heads_that_list_modules(), ids=lambda head: str(head.parent.relative_to(ROOT))
)
def test_the_head_of_a_folder_names_each_of_its_modules(head):
    """A new module needs a line in the __init__.py of its folder."""
    # A name of a module without a folder: "clip.py", but not "utils/image.py".
    named = set(re.findall(r"(?<![\w/])\w+\.py\b", head.read_text(encoding="utf-8")))
    modules = {path.name for path in head.parent.glob("*.py")} - {head.name}
    programs = {path.name for path in ROOT.glob("*.py")}

    missing = modules - named
    unknown = named - modules - programs
    assert not missing
    assert not unknown


# ---- Addresses on the web ----

# Data sets, programs and methods that the pages name. docs/links.md must have their addresses.
PLACES = (
    "GoPro", "Spk-GoPro", "REDS", "Vimeo-90K", "DVD", "DAVIS", "X4K1000FPS", "Spk-X4K", "S-SDM",
    "Spike-Zoo", "SpikeCV", "VRT", "SpyNet", "SpkDeblurNet", "SCFlow", "TFSTP", "LPIPS", "SSIM",
    "KAIR", "S-VRT", "BasicSR", "coffee", "park",
)  # fmt: skip
# An address, e.g. "https://a.b/c". If the page has the bracket "<" before it, the match begins with
# the bracket.
ADDRESS = re.compile(r"<?\bhttps?://[^\s<>()\]`\"']+")
# A complete address: the host has a point, and the path does not end with a point.
WHOLE_ADDRESS = re.compile(r"<?https?://[\w.-]+\.\w+(?:/[\w./%~+-]*)?[\w/]")


@pytest.fixture(scope="module")
def rows_with_address() -> str:
    """Give the rows of the tables in docs/links.md that have an address."""
    lines = read_page("docs/links.md").splitlines()
    return "\n".join(line for line in lines if line.startswith("| ") and ADDRESS.search(line))


@pytest.mark.parametrize("name", PLACES)
def test_each_named_data_set_and_program_has_its_address(rows_with_address, name):
    # Look for a whole word: "VRT" must not be found in "S-VRT".
    assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", rows_with_address)


@each_page
def test_each_named_paper_has_its_address(rows_with_address, page):
    text = page.read_text(encoding="utf-8")

    # E.g. "arXiv:2201.12288" or "arxiv.org/abs/2201.12288".
    papers = set(re.findall(r"(?i)\barxiv[ :.\w/]*?(\d{4}\.\d{5})", text))
    assert [paper for paper in papers if paper not in rows_with_address] == []


@each_page
def test_addresses_are_whole(page):
    # Addresses in code may be made up, e.g. "http://host".
    text = FENCED.sub("", page.read_text(encoding="utf-8"))

    for address in ADDRESS.findall(text):
        assert WHOLE_ADDRESS.fullmatch(address), address


# ---- Code and commands ----


def cells_of_notebook() -> list[str]:
    """Return the cells of code of the notebook."""
    book = json.loads(read_page("notebooks/restore.ipynb"))
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def run_in(monkeypatch):
    """Give a function that runs parts of code one after another in a folder.

    The code may change the folder of the process and `sys.path`. The fixture restores both.
    """
    # With another backend, matplotlib would open windows.
    matplotlib.use("Agg")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(parts: list[str], folder: Path) -> None:
        monkeypatch.chdir(folder)
        exec("\n".join(parts), {"__name__": "page"})

    return run


def test_the_code_of_the_page_on_python_runs(run_in, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", read_page("docs/python.md"), re.DOTALL)
    assert len(blocks) > 5  # fewer blocks: the pattern does not fit the page any more

    run_in(blocks, tmp_path)


def test_the_code_of_the_notebook_runs(run_in):
    cells = cells_of_notebook()
    assert len(cells) > 5  # fewer cells: `cells_of_notebook` misses some

    run_in(cells, ROOT / "notebooks")


# This test is slow, because it clones the whole project.
@pytest.mark.slow
def test_the_notebook_alone_fetches_the_project_as_on_colab(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("no repository to clone from")
    # The first two cells fetch the project and make it importable.
    fetching = "\n".join(cells_of_notebook()[:2])
    # The program must find the project only in the clone.
    forget = f"import sys\nsys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]"
    code = f"{forget}\n{fetching}\nfrom models import portable\nprint(portable.__file__)"
    program = tmp_path / "program.py"
    program.write_text(code)
    # These variables are one setting of git. With this setting, git clones this repository instead
    # of the address on GitHub.
    git_settings = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/OWNER/SpikeVRT.git",
    }

    result = run_ranks(1, program, env={"MPLBACKEND": "Agg", **git_settings}, cwd=tmp_path)

    assert result.stdout[0].split() == [str(tmp_path / "SpikeVRT/models/portable.py")], result.text


def commands_that_make_data(page: str) -> list[str]:
    """Return the arguments of each command "python scripts/prepare_gopro_spike.py ..." of a page.

    A command is a line of a block, or stands between backticks in a table.
    """
    return re.findall(
        r"(?m)(?:^|`)python scripts/prepare_gopro_spike\.py ([^`\n]*)", read_page(page)
    )


COMMANDS_THAT_MAKE_DATA = [
    *commands_that_make_data("docs/quickstart.md"),
    *commands_that_make_data("docs/gopro.md"),
]


def test_the_pages_give_three_commands_that_make_data():
    # The quick start has two commands: for two cameras, and for an ideal camera. The page on GoPro
    # has one command.
    assert len(COMMANDS_THAT_MAKE_DATA) == 3


@pytest.mark.parametrize("arguments", COMMANDS_THAT_MAKE_DATA)
def test_a_command_that_makes_data_runs_as_its_page_gives_it(tmp_path, monkeypatch, arguments):
    # Write the folders that the commands read. GoPro's frames have 32 x 32 pixels here. Two
    # simulated cameras need larger frames, so the user's videos have frames of 192 x 192 pixels.
    write_folder(tmp_path / "GOPRO_Large_all/train/GOPR0001_03_00", moving_frames(7))
    large_frames = moving_frames(10).repeat(6, axis=1).repeat(6, axis=2)
    write_folder(tmp_path / "my_videos/train/GOPR0001_03_00", large_frames)
    monkeypatch.chdir(tmp_path)

    code = prepare_gopro_spike.main(shlex.split(arguments, comments=True))

    assert code == 0
    made = (tmp_path / "trainsets").rglob("GOPRO_Large_spike_seq/*/GOPR0001_03_00*/spike/*.dat")
    assert list(made)


def test_every_test_of_make_quick_exists():
    # -n prints the commands of the target and runs none of them.
    printed = subprocess.run(
        ["make", "-n", "quick"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    # A file, e.g. "tests/dist/test_dist.py", or a test of it, e.g.
    # "tests/dist/test_dist.py::test_x".
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", printed)
    # `make quick` names about 12 files and 14 single tests, 26 names. If the pattern finds 20 names
    # or fewer, the pattern does not fit the output of make any more.
    assert len(named) > 20
    for file, test in named:
        assert (ROOT / file).is_file(), file
        if test:
            assert f"def {test}(" in (ROOT / file).read_text(), (file, test)


# ---- Options ----


@pytest.fixture
def option_file(tmp_path) -> Path:
    """Give the path of an option file to write, beside copies of the published files.

    The options in the pages are based on a published file.
    """
    for file in (ROOT / "options/vrt").glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path / "own.json"


def read_section(option_file: Path, section: dict[str, Any]) -> Any:
    """Read a section `datasets.train` as a part of the sample's option file."""
    options = {
        "base": "000_train_vrt_sample_rgbspike.json",
        "datasets": {"train": section, "test": None},
    }
    option_file.write_text(json.dumps(options))
    return main_train_vrt.read_options(["--opt", str(option_file)]).datasets.train


@pytest.mark.parametrize("index", range(2))
def test_each_option_file_of_the_quick_start_is_valid(option_file, index):
    texts = re.findall(r"```json\n(.*?)```", read_page("docs/quickstart.md"), re.DOTALL)
    option_file.write_text(texts[index])

    opt = main_train_vrt.read_options(["--opt", str(option_file)])

    # `options_of_part` tells the type checker that the section has the keys of its dataset.
    assert options_of_part(opt.datasets.test).dataroot_gt.startswith("trainsets/mine/")


def keys_of(block: str) -> dict[str, Any]:
    """Return the keys of a block of options. The block lacks the outer brackets."""
    return json5.loads(f"{{{block}}}")


@dataclass
class OptionBlocks:
    """The blocks of options in the pages on data, in the order of the pages."""

    # A complete option file for each of four layouts: case 1, case 2, and both forms of case 3.
    files: list[dict[str, Any]]
    exposures: list[str]  # three forms of the key `exposure`
    section: str  # a section `train` with most of its keys
    roots: str  # keys that name several folders
    camera: str  # the key `camera`


def read_option_files(page: str) -> list[dict[str, Any]]:
    """Return the whole option files that a page shows. Another block may be a dataset.json."""
    texts = re.findall(r"```json\n(.*?)```", read_page(page), re.DOTALL)
    blocks = [json5.loads(text) for text in texts]
    return [block for block in blocks if "datasets" in block]


def files_of_the_cases() -> list[dict[str, Any]]:
    """Return the option file of docs/data_format.md with the line of each case, as users write it.

    The page has one whole file, with the line `"spike": ...` of the first case in `train` and in
    `test`. Each case has a block with its own line.
    """
    page = read_page("docs/data_format.md")
    [text] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    lines = re.findall(r"```jsonc\n(.*)\n```", page)
    assert text.count(lines[0]) == 2

    return [json5.loads(text.replace(lines[0], line)) for line in lines]


@pytest.fixture(scope="module")
def option_blocks() -> OptionBlocks:
    """Give the blocks of options in docs/data_format.md and docs/data_reference.md."""
    reference = read_page("docs/data_reference.md")
    blocks = re.findall(r"```jsonc\n(.*?)```", reference, re.DOTALL)
    forms, section, roots, camera = blocks
    # One block has all forms of `exposure`. Each form begins with the key at the start of a line.
    # The split gives an empty text before the first form.
    _, *exposures = re.split(r'^(?="exposure")', forms, flags=re.MULTILINE)
    return OptionBlocks(files_of_the_cases(), exposures, section, roots, camera)


def test_the_page_on_data_shows_four_layouts(option_blocks):
    assert len(option_blocks.files) == 4
    for file in option_blocks.files:
        # Training and test have the same kind of data.
        assert file["datasets"]["train"]["spike"] == file["datasets"]["test"]["spike"]


def test_the_page_on_data_shows_three_forms_of_exposure(option_blocks):
    assert len(option_blocks.exposures) == 3


@pytest.mark.parametrize("index", range(4))
def test_the_options_for_each_layout_are_valid(option_file, option_blocks, index):
    option_file.write_text(json.dumps(option_blocks.files[index]))

    opt = main_train_vrt.read_options(["--opt", str(option_file)])

    for split, section in (("train", opt.datasets.train), ("test", opt.datasets.test)):
        read = options_of_part(section)  # the keys of the dataset
        assert read.dataroot_spike == f"trainsets/mine/spikes/{split}"
        # Without this key, the check of the data would refuse clips without a dataset.json.
        assert read.spike.center == "file"


# ---- The page on the large network ----


def clips_of_step(opt: Options, gpus: int) -> int:
    """Return the number of clips of an optimizer step on this number of GPUs."""
    clips_of_gpu = options_of_part(opt.datasets.train).dataloader_batch_size
    return gpus * clips_of_gpu * opt.for_ranks(gpus).train.accumulation_steps


@pytest.fixture(scope="module")
def large_file() -> dict[str, Any]:
    """Give the option file of docs/large.md."""
    [large] = read_option_files("docs/large.md")
    return large


# The additions to the key `spike` that docs/large.md names, e.g. '"context": 88'.
ADDITIONS = re.findall(r"(?m)^\* If it has no .*?, add `([^`]*)`", read_page("docs/large.md"))


def spike_of_large_network(spike: dict[str, Any]) -> dict[str, Any]:
    """Return `spike` of a small network with the additions of docs/large.md that it lacks."""
    large = dict(spike)
    for addition in ADDITIONS:
        for key, value in keys_of(addition).items():
            large.setdefault(key, value)
    return large


def spikes_of_small_networks() -> dict[str, dict[str, Any]]:
    """Return the key `spike` of the small network for each kind of data that the pages name."""
    case_1, case_2, case_3, case_3_one_file = files_of_the_cases()
    two_cameras, ideal_camera = read_option_files("docs/quickstart.md")
    files = {
        "case 1": case_1,
        "case 2": case_2,
        "case 3": case_3,
        "case 3, one file": case_3_one_file,
        "two cameras": two_cameras,
        "ideal camera": ideal_camera,
    }
    spikes = {}
    for name, file in files.items():
        spikes[name] = file["datasets"]["train"].get("spike", {})
    # With a dataset.json, users give only the calibration. The file has the size of the planes and
    # the sharp instants.
    spikes["dataset.json"] = {"calibration": "auto"}
    return spikes


SMALL_SPIKES = spikes_of_small_networks()


def test_the_file_for_a_gpu_has_the_data_of_two_simulated_cameras(large_file):
    # Change copies, because other tests read the same files.
    large = copy.deepcopy(large_file["datasets"])
    small = copy.deepcopy(read_option_files("docs/quickstart.md")[0]["datasets"])
    for section in small.values():
        section["spike"] = spike_of_large_network(section["spike"])

    # The large network has larger crops.
    assert large["train"].pop("gt_size") == 128
    assert large == small


def test_both_splits_of_a_small_network_have_the_same_spikes():
    # Then the additions to the line of `train` are right in `test`, too.
    for file in [*files_of_the_cases(), *read_option_files("docs/quickstart.md")]:
        sections = file["datasets"]
        assert sections["train"].get("spike") == sections["test"].get("spike")


# The key `spike` of the large network for each kind of data, as docs/large.md tells it.
FULL = {"h": 250, "w": 400, "center": "file", "context": 88, "calibration": "auto"}
EXPOSURE = {"start": 12, "length": 400, "period": 833.3333}
NO_SIZE = {"h": None, "w": None, "context": 88}
LARGE_SPIKES = {
    "case 1": FULL,
    "case 2": FULL | {"exposure": EXPOSURE},
    "case 3": NO_SIZE | {"center": "file", "calibration": "trainsets/mine/rig.json"},
    "case 3, one file": NO_SIZE
    | {"center": "file", "calibration": "trainsets/mine/rig.json", "exposure": EXPOSURE},
    "dataset.json": NO_SIZE | {"calibration": "auto"},
    "ideal camera": NO_SIZE,
    "two cameras": NO_SIZE | {"calibration": "recorded"},
}


@pytest.mark.parametrize("kind", LARGE_SPIKES)
def test_the_additions_give_the_spikes_of_the_large_network(kind):
    assert spike_of_large_network(SMALL_SPIKES[kind]) == LARGE_SPIKES[kind]


@pytest.mark.parametrize("page", ["docs/large.md", "docs/zh/large.md"])
def test_the_lines_spike_of_the_large_network_follow_the_additions(page):
    # A row has the data, the folders, the line `spike` or what to add to it, and the side of the
    # crops, e.g. "| ... | ... | `"spike": {"h": null, "w": null, "context": 88}` | 192 |".
    rows = re.findall(r"(?m)^\| .* \| .* \| (.*) \| (?:128|192) \|$", read_page(page))
    # The keys between backticks at the end of each cell, {} if a cell has none.
    added = []
    for cell in rows:
        blocks = re.findall(r'`("[^`]*)`$', cell)  # no block, or one
        added.append(keys_of("".join(blocks)))
    two_cameras, ideal_camera, recordings, calibration_file = added

    # The row of two simulated cameras says only "As above", because the test before compares it.
    assert two_cameras == {}
    assert ideal_camera["spike"] == LARGE_SPIKES["ideal camera"]
    # The lines of case 1 and case 2 have all keys. The line of case 3 lacks what the row adds.
    assert recordings == {}
    for case in ("case 1", "case 2"):
        assert SMALL_SPIKES[case] == LARGE_SPIKES[case]
    for case in ("case 3", "case 3, one file"):
        assert SMALL_SPIKES[case] | calibration_file == LARGE_SPIKES[case]


@pytest.mark.parametrize("kind", SMALL_SPIKES)
def test_the_file_for_a_gpu_trains_the_large_network_on_each_kind_of_data(
    option_file, large_file, kind
):
    options = copy.deepcopy(large_file)
    for section in options["datasets"].values():
        section["spike"] = spike_of_large_network(SMALL_SPIKES[kind])
    option_file.write_text(json.dumps(options))

    opt = main_train_vrt.read_options(["--opt", str(option_file)])

    assert opt.task == "large"
    assert opt.train.amp.enable
    # A step must have 8 clips, as published.
    for gpus in (1, 2, 4, 8):
        assert clips_of_step(opt, gpus) == 8
    for section in (opt.datasets.train, opt.datasets.test):
        read = options_of_part(section)
        # The height of GoPro's planes, 360, must be replaced.
        assert read.spike.h in (250, None)
        assert read.spike.context == 88


@pytest.mark.parametrize("page", ["docs/large.md", "docs/zh/large.md"])
def test_the_clips_of_a_step_on_any_gpus_are_as_published(option_file, large_file, page):
    # A row has the number of GPUs, the least memory of each and an option, e.g.
    # "| 1 | 24 to 79 GB | `datasets.train.dataloader_batch_size=2` |".
    row = r"(?m)^\| (\d) \| (\d+) [^|\n]*\| `([\w.]+=(\d))` \|$"
    rows = re.findall(row, read_page(page))
    option_file.write_text(json.dumps(large_file))

    assert len(rows) == 6
    for gpus, gb, option, clips in rows:
        opt = main_train_vrt.read_options(["--opt", str(option_file), option])
        assert clips_of_step(opt, int(gpus)) == 8
        assert int(clips) == clips_at_once(int(gpus), int(gb))


@pytest.mark.parametrize("page", ["docs/ddp.md", "docs/zh/ddp.md"])
def test_other_numbers_of_gpus_take_the_clips_that_the_page_says(option_file, large_file, page):
    option_file.write_text(json.dumps(large_file))
    opt = main_train_vrt.read_options(["--opt", str(option_file)])

    # Two rows of a table: the numbers of GPUs, and the clips of a step. The first column is for
    # several numbers of GPUs. The last column is for more than 8 GPUs, with one clip for each GPU.
    table = r"(?m)^\| GPU[^|\n]*\|(.*)\|\n\|[-|]+\|\n\|[^|\n]*\|(.*)\|$"
    gpus_row, clips_row = re.findall(table, read_page(page))[-1]
    *columns, _more_than_8 = zip(gpus_row.split("|"), clips_row.split("|"), strict=True)
    for gpus_cell, clips_cell in columns:
        for gpus in re.findall(r"\d+", gpus_cell):
            assert clips_of_step(opt, int(gpus)) == int(clips_cell)
    # The columns name the numbers 1 to 8, and the last column names 8 again: "more than 8".
    named = [int(gpus) for gpus in re.findall(r"\d+", gpus_row)]
    assert sorted(named) == [*range(1, 9), 8]
    for gpus in (9, 16):
        assert clips_of_step(opt, gpus) == gpus


@pytest.mark.parametrize("size", [64, 72, 128])
def test_the_large_network_takes_smaller_crops(option_file, large_file, size):
    option_file.write_text(json.dumps(large_file))
    command = ["--opt", str(option_file), f"datasets.train.gt_size={size}"]

    assert options_of_part(main_train_vrt.read_options(command).datasets.train).gt_size == size


# ---- The option file for GoPro ----


@pytest.mark.parametrize(
    "section",
    ['{"lq_folder": "blur_gamma"}', '{"spike": {"light": "display"}}'],
    ids=["simulated", "spk-gopro"],
)
def test_the_file_for_gopro_has_eight_clips_a_step(option_file, section):
    # The page says to write the second section in place of the first one for other spikes.
    [text] = re.findall(r"```json\n(.*?)```", read_page("docs/gopro.md"), re.DOTALL)
    option_file.write_text(text.replace('{"lq_folder": "blur_gamma"}', section))

    opt = main_train_vrt.read_options(["--opt", str(option_file)])

    assert opt.train.amp.enable
    for gpus in (1, 2, 4, 8):
        assert clips_of_step(opt, gpus) == 8
    for part in (options_of_part(opt.datasets.train), options_of_part(opt.datasets.test)):
        # Frames and spikes must both show light, or both show display values. Frames of blur_gamma
        # are means of light. The light None is taken from dataset.json.
        frames_and_light = (part.lq_folder, part.spike.light)
        assert frames_and_light in [("blur_gamma", None), ("blur", "display")]


# ---- The reference of data ----


@pytest.mark.parametrize("index", range(3))
def test_each_form_of_exposure_is_valid_together_with_the_other_options(
    option_file, option_blocks, index
):
    section = keys_of(option_blocks.section)["train"]
    section |= keys_of(option_blocks.roots)
    section |= keys_of(option_blocks.camera)
    section["spike"] |= keys_of(option_blocks.exposures[index])

    read = read_section(option_file, section)

    # The result has a value from each block.
    assert list(read.spike.representation.half_windows) == [2, 6, 12]
    assert read.camera.drop_max == 0.1
    assert len(read.dataroot_lq) == len(read.dataroot_share)
    assert len(read.dataroot_spike) == len(read.dataroot_share)


# ---- The table of memory per rank in docs/memory.md ----


# A parameter needs 16 bytes: 4 for the weight, 4 for its gradient, 8 for its two moments. A method
# divides some of these among the ranks. Each rank holds the rest for all parameters.


@dataclass
class Method:
    """A method of the table. E.g. ZeRO-1 divides the moments, 8 bytes of each parameter."""

    name: str
    divided: int  # bytes of a parameter that are divided among the ranks
    exchanges: int  # number of times that the ranks exchange gradients or weights in a step


# DDP and ZeRO sum the gradients in one exchange, and spread the sums or the new weights in another.
# FSDP collects the weights before the forward pass and before the backward pass, and sums the
# gradients.
METHODS = [
    Method("DDP", divided=0, exchanges=2),
    Method("ZeRO-1", divided=8, exchanges=2),
    Method("ZeRO-2", divided=4 + 8, exchanges=2),
    Method("FSDP", divided=4 + 4 + 8, exchanges=3),
]
# Allowed error of a number in the table. Half a unit of its last digit is 0.0005 GB. The limit is a
# little larger, because A is rounded in the page.
ROUNDED_GB = 6e-4


class MemoryRow(NamedTuple):
    """The texts of a row of the table. All fields but `formula` are numbers of GB."""

    weights: str  # e.g. "0.140"
    gradients: str
    moments: str
    activations: str
    formula: str  # bytes per rank, e.g. "`8 P + 8 P / N + A`"
    total: str
    saved: str  # how much less than DDP the method needs
    sent: str  # how much a rank sends in a step


@dataclass
class MemoryTable:
    """The table, and the numbers in the text around it."""

    parameters: float  # P in the page, number of parameters
    ranks: int  # N in the page
    activations: float  # A in the page, bytes
    rows: dict[str, MemoryRow]  # name of the method -> its row
    share_of_fsdp: float  # how much FSDP saves, in percent of the bytes of DDP


@pytest.fixture(scope="module")
def memory() -> MemoryTable:
    """Give the table of memory per rank."""
    text = read_page("docs/memory.md")
    rows = {}
    for row in re.findall(r"^\| (?:DDP|ZeRO|FSDP).*`\d+ P.*$", text, re.MULTILINE):
        name, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        # E.g. "ZeRO-1: moments divided" -> "ZeRO-1", and "DDP (this project)" -> "DDP".
        rows[find_match(r"[\w-]+", name)[0]] = MemoryRow(*cells)
    return MemoryTable(
        parameters=1e6 * int(find_match(r"\bP is (\d+) M\b", text)[1]),
        ranks=int(find_match(r"\bN = (\d+) ranks", text)[1]),
        activations=1e9 * float(find_match(r"\bA = ([\d.]+) GB", text)[1]),
        rows=rows,
        share_of_fsdp=float(find_match(r"([\d.]+) % of this sum", text)[1]),
    )


def bytes_per_rank(memory: MemoryTable, method: Method) -> float:
    """Return the bytes that a rank holds: its part of all parameters, and the activations."""
    # The bytes of a parameter that this rank does not hold, on average over all parameters. E.g. if
    # 8 bytes are divided among 8 ranks, these are 7 bytes.
    on_other_ranks = method.divided * (1 - 1 / memory.ranks)
    return memory.parameters * (BYTES_PER_PARAMETER - on_other_ranks) + memory.activations


def test_the_table_of_memory_has_a_row_for_each_method(memory):
    assert list(memory.rows) == [method.name for method in METHODS]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_formula_of_a_row_gives_the_bytes_per_rank(memory, method):
    formula = memory.rows[method.name].formula.strip("`")  # e.g. "8 P + 8 P / N + A"

    letters = {"P": memory.parameters, "N": memory.ranks, "A": memory.activations}
    value = eval(re.sub(r"(\d) P", r"\1 * P", formula), letters)

    assert value == pytest.approx(bytes_per_rank(memory, method))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_numbers_of_a_row_follow_from_the_bytes_of_a_parameter(memory, method):
    row = memory.rows[method.name]
    parts = [row.weights, row.gradients, row.moments, row.activations]
    expected = bytes_per_rank(memory, method) / 1e9
    ddp = METHODS[0]
    expected_of_ddp = bytes_per_rank(memory, ddp) / 1e9

    assert float(row.activations) == memory.activations / 1e9
    # The sum has four rounded numbers. Each error is at most 0.0005, so the error of the sum is at
    # most 0.002.
    sum_of_parts = sum(float(part) for part in parts)
    assert float(row.total) == pytest.approx(sum_of_parts, abs=2e-3)
    assert float(row.total) == pytest.approx(expected, abs=ROUNDED_GB)
    assert float(row.saved) == pytest.approx(expected_of_ddp - expected, abs=ROUNDED_GB)
    # In an exchange, a rank sends 4 bytes for each parameter, except for its own share, 1 / N of
    # the parameters.
    bytes_of_exchange = 4 * memory.parameters * (memory.ranks - 1) / memory.ranks
    expected_sent = method.exchanges * bytes_of_exchange / 1e9
    assert float(row.sent) == pytest.approx(expected_sent, abs=ROUNDED_GB)


def test_the_share_that_fsdp_saves_follows_from_the_table(memory):
    saved = float(memory.rows["FSDP"].saved)
    ddp = METHODS[0]
    of_ddp = bytes_per_rank(memory, ddp) / 1e9

    # The page has one digit after the point.
    assert memory.share_of_fsdp == pytest.approx(100 * saved / of_ddp, abs=0.06)


# ---- Both languages ----

# The Chinese pages.
TRANSLATED = [ROOT / "README_zh-CN.md", *sorted((ROOT / "docs/zh").glob("*.md"))]

each_chinese_page = pytest.mark.parametrize("chinese", TRANSLATED, ids=lambda page: page.name)


def english(page: Path) -> Path:
    """Return the English page of a Chinese page, e.g. docs/ddp.md of docs/zh/ddp.md."""
    if page.parent.name == "zh":
        return page.parent.parent / page.name
    return page.with_name("README.md")


def files_linked_by(page: Path, text: str) -> set[Path]:
    """Return the files to which the links in a text of this page lead."""
    return {(page.parent / link).resolve() for link in LINK.findall(text) if ":" not in link}


def sections_of(page: Path) -> list[str]:
    """Return the text of each section of a page, from its heading to the next heading.

    The first text is the text before the first heading.
    """
    text = page.read_text(encoding="utf-8")
    # In a block of code, a comment begins with "#" like a heading. Put a backslash before "#", so
    # that the text is not cut at the comment.
    without_comments = FENCED.sub(lambda block: block[0].replace("\n#", "\n\\#"), text)
    return re.split(r"(?m)^(?=#+ )", without_comments)


def english_page_of(path: Path) -> Path:
    """Return the English page of a Chinese page. Any other file is returned as it is."""
    return english(path) if path in TRANSLATED else path


def facts_of_section(page: Path, section: str) -> dict[str, object]:
    """Return what must be equal in both languages of a section: everything except its words."""
    # "##" of "## Time limits": the level of the heading.
    heading = section[: section.find(" ")] if section.startswith("#") else ""
    blocks = FENCED.findall(section)
    if page.parent == ROOT:
        # The READMEs translate the comments in their code.
        blocks = [re.sub(r"\s+# .*", "", block) for block in blocks]
    prose = FENCED.sub("", section)
    rows = [line for line in prose.splitlines() if line.lstrip().startswith("|")]
    # A Chinese page links to Chinese pages. Replace each of these by the English page, so that both
    # languages can be compared.
    links = {english_page_of(link) for link in files_linked_by(page, prose)}
    # Each page links to itself in the other language.
    links.discard(english_page_of(page))
    names = re.findall(r"`([^`\n]+)`", prose)
    return {
        "heading": heading,
        "blocks": blocks,
        # "\|" is a character of a cell, and "|" separates two cells.
        "cells of each row": [len(re.findall(r"(?<!\\)\|", row)) for row in rows],
        # The numbers are sorted, because the order of words differs between the languages.
        "numbers of each row": [sorted(NUMBER.findall(row)) for row in rows],
        "numbers": sorted(NUMBER.findall(prose)),
        "links": links,
        "code": {name.replace("docs/zh/", "docs/") for name in names},
    }


@each_chinese_page
def test_a_page_has_the_same_sections_code_tables_numbers_and_links_in_both_languages(chinese):
    page = english(chinese)

    pairs = zip(sections_of(page), sections_of(chinese), strict=True)
    for english_section, chinese_section in pairs:
        expected = facts_of_section(page, english_section)
        assert facts_of_section(chinese, chinese_section) == expected


@each_chinese_page
def test_a_page_links_to_itself_in_the_other_language(chinese):
    page = english(chinese)

    assert chinese in files_linked_by(page, page.read_text(encoding="utf-8"))
    assert page in files_linked_by(chinese, chinese.read_text(encoding="utf-8"))
