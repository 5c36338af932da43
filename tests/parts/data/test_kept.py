"""The record that the check of a data set keeps: it makes the same clips, and never other ones.

The check of a training writes what it found into the folder .preflight of the experiments: a file
.npz with arrays (the columns: names, sizes, ...) and a file .json with a digest of the arrays. The
next start takes the clips from this record, if the files are unchanged. The record may also be
damaged, or written by a stranger. Then the check must read the files again.
"""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from data.clips import manifest
from data.clips.preflight import check_source
from tests.dist.launching import ROOT
from tests.helpers.clip_files import (
    BINS,
    PLANES,
    section,
    source_of,
    write_clip,
    write_clips,
    write_info,
)
from tests.helpers.train_files import latest, train, write_options

RELATIVE = {"type": "relative", "half_windows": [2, 6]}
# Options of a training on frames alone.
RGB: dict[str, Any] = {
    "dataset_type": "VideoRecurrentTrainDataset",
    "dataroot_spike": None,
    "spike": None,
}


@pytest.fixture
def root(tmp_path):
    """Give a folder with the clips clip0 and clip10, each of six frames with spikes."""
    return write_clips(tmp_path, "clip0", "clip10")


def start(values, folder):
    """Check the data as a start of a training does. Return the report.

    values: the section datasets.train. folder: where the record is, in .preflight.
    """
    return check_source(source_of(values), "train", folder / ".preflight")


def is_known(report):
    """Return whether a start took the clips from the record."""
    return report.note.endswith("as checked before")


def said_of(clip):
    """All that a clip holds, with the types of its numbers."""
    fields = dataclasses.fields(clip)
    return {
        field.name: repr(getattr(clip, field.name)) for field in fields if field.name != "spikes"
    }


def one_file_of_each_clip(root):
    """Join the spike files of each clip to one file. Return the section `spike` for them."""
    spikes = root / "GOPRO_Large_spike_seq/train"
    for clip in list(spikes.iterdir()):
        planes = [path.read_bytes() for path in sorted((clip / "spike").iterdir())]
        clip.with_suffix(".dat").write_bytes(b"".join(planes))
        shutil.rmtree(clip)
    exposure = {"start": 0, "length": PLANES, "period": PLANES}
    return {"type": "dat", "center": "file", "exposure": exposure, "representation": BINS}


def changes_of(root, name):
    """The changes of the section that a kind of data set needs; its files are made of `root`."""
    if name == "instants":
        write_clip(root, "clip0", instants=3)
        write_clip(root, "clip10", instants=3, seed=1)
        return {"dataroot_gt_instants": str(root / "GOPRO_Large/train")}
    if name == "planes of the files beside":
        spike = {"type": "dat", "center": "file", "context": 30, "representation": RELATIVE}
        return {"spike": spike}
    if name == "one spike file":
        return {"spike": one_file_of_each_clip(root)}
    if name == "a rate of its own":
        write_info(root, clips={"clip10": {"rate": 0.5}})
        return {}
    if name == "a listed part":
        (root / "meta.txt").write_text("clip10 3 0 2\n")
        return {"meta_info_file": str(root / "meta.txt")}
    return {"RGB": RGB, "a slash at the end": {"dataroot_lq": f"{root}/GOPRO_Large/train/"}}[name]


@pytest.mark.parametrize(
    "name",
    [
        "instants",
        "planes of the files beside",
        "one spike file",
        "a rate of its own",
        "a listed part",
        "RGB",
        "a slash at the end",
    ],
)
def test_the_clips_of_a_record_are_those_of_the_files(root, name):
    values = section(root, **changes_of(root, name))
    expected, _ = manifest.scan(source_of(values))

    first = start(values, root)
    again = start(values, root)

    assert not is_known(first)
    assert is_known(again)
    assert first.counts() == again.counts()
    for report in (first, again):
        assert [said_of(clip) for clip in report.clips] == [said_of(clip) for clip in expected]


def remove(path):
    path.unlink()


def rewrite(path):
    path.write_bytes(path.read_bytes() + b"x")


def touch(path):
    os.utime(path, (1, 1))


def copy(path):
    """Copy the whole clip of a picture, so that there is one more clip."""
    shutil.copytree(path.parent.parent, path.parent.parent.with_name("clip2"))


@pytest.mark.parametrize("change", [remove, rewrite, touch, copy])
def test_files_that_changed_are_checked_anew(root, change):
    values = section(root, **RGB)
    start(values, root)

    change(root / "GOPRO_Large/train/clip10/sharp/000003.png")

    assert not is_known(start(values, root))


def test_a_folder_with_another_name_in_it_is_noticed_without_a_look_at_its_files(tmp_path):
    # 9902 files, all of one picture. A repeated start looks at 4096 files at most, but it looks at
    # every folder.
    write_clips(tmp_path, "c0", frames=1)
    train = tmp_path / "GOPRO_Large/train"
    for number in range(1, 100):
        for kind in ("blur", "sharp"):
            folder = train / f"c{number}" / kind
            folder.mkdir(parents=True)
            for frame in range(50):
                os.link(train / "c0" / kind / "000000.png", folder / f"{frame:06d}.png")
    values = section(tmp_path, **RGB)
    start(values, tmp_path)
    assert is_known(start(values, tmp_path))

    last = train / "c77/sharp/000049.png"
    last.rename(last.with_name("000050.png"))

    assert "lacks" in str(start(values, tmp_path).problems)


# ---- Records of a stranger -------------------------------------------------------------------


def write_record(folder, columns, **about):
    """Replace the arrays of the record in a folder, and its digest, which then fits the arrays.

    about: further keys of the description.
    """
    (arrays,) = folder.glob("*.npz")
    file = io.BytesIO()
    np.savez(file, **columns)
    arrays.write_bytes(file.getvalue())
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    text = arrays.with_suffix(".json")
    text.write_text(json.dumps(json.loads(text.read_text()) | {"arrays": digest} | about))


def text(*parts):
    """Return a text column of these texts."""
    return np.frombuffer("".join(f"{part}\0" for part in parts).encode(), np.uint8)


def doubled(columns, name):
    """Return a column with all its values twice."""
    return np.concatenate((columns[name], columns[name]))


def names(*frames):
    """Return the text column with the names of these frames, once for each of the two clips."""
    return text(*[f"{frame:06d}.png" for frame in frames] * 2)


def plus(columns, name, value):
    """Return a column with `value` added to each number, in the same type."""
    return columns[name] + np.array(value, columns[name].dtype)


# What is wrong -> a function from the columns of a true record to the columns that it replaces. A
# text column has all texts one after another, each with a zero byte at its end. The two clips have
# six frames each, so a column of names has 12 texts.
LIES = {
    "a file above the root": lambda c: {"lq_places": text("/../../x/", "/clip10/blur/")},
    "another folder": lambda c: {"lq_places": text("/clip0/sharp/", "/clip10/blur/")},
    "a name with a folder": lambda c: {"lq_names": text(*["../x.png"] * 12)},
    "an empty name": lambda c: {"lq_names": text(*[""] * 12)},
    "pictures of other frames": lambda c: {"gt_names": names(1, 0, 2, 3, 4, 5)},
    "one clip less": lambda c: {"clips": text("clip0")},
    "a clip twice": lambda c: {"clips": text("clip0", "clip0")},
    "a clip of a bad name": lambda c: {"clips": text("clip0", "../clip10")},
    "bytes that are no text": lambda c: {"stems": np.full(len(c["stems"]), 0xFF, np.uint8)},
    "no frames": lambda c: {"frames": plus(c, "frames", -6)},
    "2^31 frames": lambda c: {"frames": np.full(2, 2**31 - 1, np.int32)},
    "another size": lambda c: {"sizes": plus(c, "sizes", 2)},
    "a size below zero": lambda c: {"sizes": -c["sizes"]},
    "more planes": lambda c: {"planes": plus(c, "planes", 1)},
    "planes outside of the file": lambda c: {"rows": plus(c, "rows", 1000)},
    "no such exposure": lambda c: {"exposures": plus(c, "exposures", 5)},
    "an exposure below zero": lambda c: {"exposures": plus(c, "exposures", -1)},
    "another center": lambda c: {"centers": plus(c, "centers", 1)},
    "a center that is no number": lambda c: {"centers": np.full(len(c["centers"]), np.nan)},
    "twice as many values": lambda c: {"sizes": doubled(c, "sizes")},
    "values of another type": lambda c: {"frames": c["frames"].astype(np.float32)},
    "a pickle": lambda c: {"clips": np.array([{"a": 1}], object)},
    "two dimensions": lambda c: {"sizes": c["sizes"].reshape(2, -1)},
    "states of other folders": lambda c: {"folders": text(*["/"] * (len(c["folder_states"]) // 2))},
    "no states": lambda c: {"folders": text()[:0], "folder_states": c["folder_states"][:0]},
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_record_that_does_not_fit_is_as_good_as_none(root, name):
    values = section(root)
    start(values, root)
    folder = root / ".preflight"
    with np.load(next(folder.glob("*.npz"))) as file:
        columns = dict(file)
    write_record(folder, columns)
    assert is_known(start(values, root))

    write_record(folder, columns | LIES[name](columns))
    report = start(values, root)

    assert not is_known(report)
    assert not report.problems
    expected, _ = manifest.scan(source_of(values))
    assert [clip.lq for clip in report.clips] == [clip.lq for clip in expected]
    assert is_known(start(values, root))


def test_a_record_without_one_of_the_clips_is_as_good_as_none(root):
    values = section(root)
    one = section(root, meta_info_file=str(root / "meta.txt"))
    (root / "meta.txt").write_text("clip0 6 0 0\n")
    start(values, root)
    start(one, root / "other")
    (arrays,) = (root / ".preflight").glob("*.npz")
    (of_one,) = (root / "other/.preflight").glob("*.npz")
    with np.load(arrays) as every, np.load(of_one) as few:
        columns = dict(few) | {name: every[name] for name in ("folders", "folder_states")}
    write_record(root / ".preflight", columns)

    report = start(values, root)

    assert not is_known(report)
    assert len(report.clips) == 2


# Kind of damage -> a function from the content of a file to its new content.
DAMAGES = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[:-50],
    "a flipped bit": lambda content: content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
    "a pickle": lambda content: pickle.dumps({"clips": 1}),
    "a web page": lambda content: b"<html></html>",
    "many brackets": lambda content: b"[" * 100_000,
}


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_as_good_as_none(root, name, suffix):
    values = section(root)
    start(values, root)
    (record,) = (root / ".preflight").glob(f"*{suffix}")
    record.write_bytes(DAMAGES[name](record.read_bytes()))

    assert not is_known(start(values, root))
    assert is_known(start(values, root))


def test_a_compressed_record_is_as_good_as_none(root):
    values = section(root)
    start(values, root)
    (record,) = (root / ".preflight").glob("*.npz")
    with np.load(record) as file:
        columns = dict(file)
    file = io.BytesIO()
    np.savez_compressed(file, **columns)
    record.write_bytes(file.getvalue())
    about = json.loads(record.with_suffix(".json").read_text())
    about["arrays"] = hashlib.sha256(file.getvalue()).hexdigest()
    record.with_suffix(".json").write_text(json.dumps(about))

    assert not is_known(start(values, root))


def test_a_folder_that_cannot_be_written_costs_the_record_alone(root, caplog):
    (root / ".preflight").write_text("a file in its place")
    caplog.set_level("INFO")

    report = start(section(root), root)

    assert not report.problems
    assert len(report.clips) == 2
    assert "the result of the data check cannot be stored" in caplog.text


# ---- Calls -----------------------------------------------------------------------------------

# The system calls that ask for the state of a file. A question mark: this kernel may not have it.
STATES = "?stat,?lstat,fstat,newfstatat,?statx"
# A program that checks the data in the folder of its argument.
CHECK = """
import sys
from pathlib import Path
from tests.helpers.clip_files import section, source_of
from data.clips.preflight import check_source
root = Path(sys.argv[1])
report = check_source(source_of(section(root)), "train", root / ".preflight")
print(report.problems, report.note)
"""


def calls_for(root, ending):
    """How often a start asks for the state of files with this ending."""
    table = root / "calls.txt"
    command = ["strace", "-f", "-y", "-o", str(table), "-e", f"trace={STATES}"]
    ran = subprocess.run(
        [*command, sys.executable, "-c", CHECK, str(root)], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("[]"), ran.stderr
    lines = table.read_text(errors="replace").splitlines()
    return sum(str(root) in line and f"{ending}" in line for line in lines)


@pytest.mark.skipif(not shutil.which("strace"), reason="counts calls with strace")
@pytest.mark.parametrize(("ending", "again"), [(".png", 4), (".dat", 2)])
def test_a_first_start_asks_for_the_state_of_each_file_once(root, ending, again):
    files = len(list(root.rglob(f"*{ending}")))

    # The first picture and the first spikes of each clip are compared, which opens them again, and
    # the content of the first pictures of one clip.
    assert calls_for(root, ending) == files + again


# A rank of a training: it prints which files and folders it opens to make its data set, and whether
# the data set has the same samples as one that was made from the files.
RANK = """
import pickle
import sys
from pathlib import Path
from data.clips.preflight import preflight
from data.select_dataset import build_dataset
from tests.helpers.clip_files import resolved, same, section
from utils import utils_dist
from utils.dist.state import RUN
from utils.options.models import DatasetsOptions

root = Path(sys.argv[1])
values = section(root)
expected = build_dataset(values, "train", 0)
RUN.kept = root / ".preflight"
utils_dist.share_checked(preflight(DatasetsOptions(train=resolved(values)), RUN.kept))
opened = []

def note(event, args):
    if event in ("open", "os.scandir", "os.listdir") and str(root) in str(args[0]):
        opened.append(Path(str(args[0])).suffix)

sys.addaudithook(note)
dataset = build_dataset(values, "train", 0)
print(sorted(opened))
sent = pickle.loads(pickle.dumps(dataset))
print(dataset.sample_names() == expected.sample_names())
for index in range(len(expected)):
    assert same(dataset[(1, index)], expected[(1, index)]), index
    assert same(sent[(1, index)], expected[(1, index)]), index
"""


def test_a_rank_reads_the_record_alone_and_makes_the_same_samples(root):
    command = [sys.executable, "-c", RANK, str(root)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["['.json', '.npz']", "True"]


def test_two_ranks_train_as_before_on_what_one_of_them_has_checked(tmp_path):
    options = write_options(tmp_path)
    short = ("train.total_iter=2", "datasets.test={}")

    results = [train(options, *short, f"task={task}", ranks=2) for task in ("a", "b")]

    assert all(result.exit_codes == [0, 0] for result in results), results[0].text
    assert "as checked before" in results[1].text
    assert latest(options, "a")["step"] == latest(options, "b")["step"] == 2
