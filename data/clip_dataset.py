"""What datasets of clips share: their option keys, random crops for training, whole clips for testing."""

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch.utils.data import Dataset

from data import files, preflight, spike_grid, spike_info, spike_source
from data.augment import CAMERAS, Augment, CameraDraw
from data.clip import Clip
from data.io_backend import IO_BACKENDS
from data.manifest import HELD_OUT, Problem, Source
from data.self_calibration import calibrated
from utils import contract, random_streams, utils_dist
from utils.errors import DataError, OptionError
from utils.options.section import Section

logger = logging.getLogger(__name__)

Root = str | Annotated[list[str], Field(min_length=1)]
# Keys that may be lists with an entry for each root.
OF_ROOT = ("dataroot_gt", "dataroot_lq", "dataroot_spike", "dataroot_gt_instants", "lq_folder", "meta_info_file",
           "dataroot_share")  # fmt: skip


class FileReading(Section):
    """How files are read; every dataset of clips has these keys."""

    io_backend: Annotated[Any, IO_BACKENDS] = Field("disk", description="How files are read.")
    cache_data: bool = Field(False, description="Keep decoded pictures in memory.")


class ClipFiles(FileReading):
    """Where the frames are: one root, or lists with an entry for each of several roots."""

    dataroot_lq: Root = Field(description="Folder (or LMDB) of the blurry frames; a list: those of several roots.")
    dataroot_gt: Root | None = Field(
        None, description="Folder of the sharp frames; null: none, to test on or to train with a loss without gt."
    )
    lq_folder: Root = Field("blur", description="Folder of the blurry frames within a clip, if any.")
    meta_info_file: Root | None = Field(None, description="List of the clips to use; null: all folders.")
    filename_tmpl: str | None = Field(None, description='Form of the frame numbers, e.g. "08d"; null: any.')
    filename_ext: str = Field("png", description="Ending of the frames' names.")


class SharpFiles(Section):
    """Training needs sharp frames."""

    dataroot_gt: Root = Field(description="Folder of the sharp frames.")


class Spikes(Section):
    """The meaning of the spikes."""

    spike: Annotated[Any, spike_source.SPIKE_SOURCES] = Field(
        "dat", description="What the spikes mean, and how they become channels."
    )
    camera: Annotated[Any, CAMERAS] = Field(
        None, description='Changes of the spike camera, "perturb" or its options; null: none.'
    )


class Crops(Section):
    """Length, crop and augmentation of a training sample."""

    num_frame: int = Field(ge=1, description="In training: frames of a sample.")
    gt_size: int = Field(ge=1, description="Side of the crop of the sharp frames, in pixels.")
    interval_list: list[Annotated[int, Field(ge=1)]] = Field(
        [1], min_length=1, description="Steps from frame to frame, of which one is drawn for each sample."
    )
    random_reverse: bool = Field(False, description="Play half of the samples backwards.")
    use_hflip: bool = Field(False, description="Mirror half of the samples.")
    use_rot: bool = Field(False, description="Turn samples by multiples of 90 degrees.")
    dataroot_share: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)] | None = Field(
        None, description="Shares of several roots in the samples; null: by the number of samples that they have."
    )


class WholeClips(Section):
    """The tested part of a clip."""

    num_frame: int = Field(-1, description="In testing: only so many frames of each clip; -1 for all.")


def split_by_root(section: Any) -> list[Any]:
    """The section once for each of its roots; itself where it has one. Raises OptionError for unequal lists."""
    lists = {key: value for key in OF_ROOT if isinstance(value := getattr(section, key, None), list)}
    if not lists:
        return [section]
    one = [key for key in OF_ROOT[:4] if isinstance(getattr(section, key, None), str)]
    if one or len({len(value) for value in lists.values()}) > 1:
        what = ", ".join([f"{key} has {len(value)}" for key, value in lists.items()] + [f"{key} is one" for key in one])
        expected = "lists of the same length, one entry for each root"
        raise OptionError(f"the roots do not match: {what}", "datasets, dataroot_...", expected, "complete them")
    entries = zip(*lists.values(), strict=True)
    return [section.model_copy(update=dict(zip(lists, values, strict=True))) for values in entries]


@dataclass(frozen=True)
class Draw:
    """What a sample is made of.

    frames: of the clip, in the order in which the network sees them. backwards: whether time runs backwards within
    each of them. camera: the simulated spike camera, None for the recording one. rng: that of the sample, after the
    crop and the flips have been drawn; None in testing.
    """

    clip: Clip
    frames: list[int]
    backwards: list[bool]
    aug: Augment
    camera: CameraDraw | None
    rng: np.random.Generator | None = None


class ClipDataset(Dataset):
    """What the training and test datasets share: the clips, and reading consecutive frames of one clip.

    A dataset with other folders or keys overrides `places`; one with other kinds of files `sources_of` and `check`.
    Files are opened when a sample is read and closed at once, so that a fork inherits no open file.
    """

    is_training = False
    septuplets = other_images = False  # see `Source`; a training sample of septuplets is the middle of a clip

    def __init__(self, section: Any, seed: int = 0) -> None:
        self.sources = self.sources_of(section)
        self.seed, self.num_frame = seed, section.num_frame
        self.options = section.plain()  # for those of a subclass; a section cannot be sent to another process
        camera = getattr(section, "camera", None)
        self.camera = CAMERAS.build(camera, "camera") if camera else None
        spikes = self.sources[0].spikes
        is_undivided = spikes and (spikes.rate == "match" or "rate" in spikes.ignored)
        if is_undivided and self.camera and self.camera.known_rate:
            what = "camera.known_rate has no effect: the representation is not divided by a given rate"
            expected = "a proportional representation, and spike.rate other than match"
            raise OptionError(what, "camera.known_rate", expected, "remove it")
        self.files = IO_BACKENDS.build(section.io_backend, "io_backend", cache_data=section.cache_data)
        found = [self.files.clips(source) for source in self.sources]
        self.clips: list[Clip] = calibrated([clip for clips in found for clip in clips], self.files)
        self.ends_of_roots = np.cumsum([len(clips) for clips in found])
        first = {clip.size: clip for clip in reversed(self.clips) if clip.spikes}
        for clip in () if self.is_training else first.values():  # training draws no crop that has none
            spike_grid.warn_uncovered(clip.grid, f"clip {clip.name} and all others of its size", clip.lq[0])

    # The class methods are called before a dataset is built; `section` holds its resolved options.

    @classmethod
    def places(cls, section: Any) -> dict[str, Any]:
        """Where the clips are, as fields of `Source`; to be overridden where the option keys have other names."""
        return {key.name: getattr(section, key.name) for key in fields(Source) if hasattr(section, key.name)}

    @classmethod
    def sources_of(cls, section: Any) -> list[Source]:
        """Where the clips of each root are and what their spikes mean. Reads at most the dataset.json beside these."""
        sources, roots, build = [], split_by_root(section), spike_source.SPIKE_SOURCES.build
        for number, one in enumerate(roots):
            places, spikes, own = cls.places(one), None, {}
            if places.get("dataroot_gt_instants") and not places["dataroot_gt"]:
                what, expected = "dataroot_gt_instants without dataroot_gt", "both: gt is the middle one of gt_instants"
                raise OptionError(what, "dataroot_gt_instants", expected, "set dataroot_gt too")
            if hasattr(one, "spike"):
                folder, do = places["dataroot_spike"], "correct dataroot_spike, or make the data (docs/data_format.md)"
                if one.spike.h is None and not Path(folder).is_dir():
                    raise DataError("no such folder of spikes", folder, "a folder with one folder per clip", do)
                info = spike_info.load_info(folder)
                spikes = build(one.spike, "spike", info=info)
                known = {clip: info.of_clip(clip) for clip in info.clips}
                own = {clip: build(one.spike, "spike", info=each) for clip, each in known.items() if each is not info}
            left_out = HELD_OUT.get(getattr(one, "val_partition", None), frozenset())
            kind = {"septuplets": cls.septuplets, "other_images": cls.other_images, "left_out": left_out}
            part = f"{number}/" if len(roots) > 1 else ""
            sources.append(Source(**places, **kind, spikes=spikes, own_spikes=own, part=part))
        return sources

    @classmethod
    def spike_channels(cls, section: Any) -> int:
        """S of the samples; 0 for RGB. Reads no file."""
        return spike_source.channels_of(section.spike.representation) if hasattr(section, "spike") else 0

    @classmethod
    def spike_data(cls, section: Any) -> dict[str, Any] | None:
        """Properties of the training spikes, of the section and dataset.json, that are stored with the weights.

        rate: spikes per plane at full light, "match", or None where it is unknown and firing rates are not divided.
        light: "linear" or "display". center: of the section; planes, gt_plane: of most files, from dataset.json.
        calibration: the contents of the calibration file, for spikes of a second camera only.
        What differs between several roots is None, but rates that are all known "match", and light "linear".
        """
        if not hasattr(section, "spike"):
            return None
        spike, found = section.spike, []
        for one in split_by_root(section):
            info = spike_info.load_info(cls.places(one)["dataroot_spike"])
            rate = info.trained_rate if spike.rate is None else spike.rate
            light = spike.light or info.light or "linear"
            about = {"rate": rate, "light": light, "center": spike.center}
            about |= {"planes": info.planes, "gt_plane": info.gt_plane}
            recorded = info.calibration if spike.calibration == "recorded" else None
            if spike.calibration not in (None, "auto", None if recorded else "recorded"):
                about["calibration"] = spike_grid.load_calibration(spike.calibration, recorded).plain()
            found.append(about)
        several = {"rate": None if None in [each["rate"] for each in found] else "match", "light": "linear"}
        differ = [key for key in found[0] if any(each.get(key) != found[0][key] for each in found)]
        return found[0] | {key: several.get(key) for key in differ}

    @classmethod
    def check(cls, section: Any, split: str, **how: Any) -> list[preflight.Report]:
        """Check the data: a report of each root. how: see data.preflight.check_source."""
        reports = []
        for source in cls.sources_of(section):
            name = f"{split} {source.part}".rstrip(" /")
            if section.io_backend.type == "cache":  # a cache is checked by the digest of its source files
                clips = IO_BACKENDS.build(section.io_backend, "io_backend").clips(source)
                report = preflight.Report(name, source, clips, note=f"{len(clips)} cached clips")
            else:
                report = preflight.check_source(source, name, **how)
            if source.spikes and not source.spikes.is_rate_known and source.spikes.info.trained_rate is None:
                what = "neither dataset.json nor spike.rate gives the firing rate at full light; 1 is assumed"
                report.warnings.append(Problem("spikes", what, source.dataroot_spike))
            reports.append(report)
        return reports

    def read(self, draw: Draw) -> dict[str, torch.Tensor]:
        """lq (T, 3, h, w), gt (T, 3, s h, s w) in [0, 1] and spike (T, S, h, w) of a draw, cropped and flipped.

        Where there are any, also gt_instants (T, 3 K, s h, s w).
        """
        clip, aug, frames, backwards = draw.clip, draw.aug, draw.frames, draw.backwards
        wanted = {kind: self.frames_of(kind, frames) for kind in clip.image_kinds}
        if clip.instants:
            numbers = range(clip.instants)  # in the order of playing
            wanted["gt_instants"] = [
                i * clip.instants + k
                for i, back in zip(frames, backwards, strict=True)
                for k in (reversed(numbers) if back else numbers)
            ]
            del wanted["gt"]  # the middle instant
        images = {kind: self.files.images(clip, kind, numbers, aug) for kind, numbers in wanted.items()}
        if getattr(draw.camera, "rgb", None):
            images["lq"] = np.stack([draw.camera.photograph(*one) for one in zip(images["lq"], frames, strict=True)])
        # (T, h, w, 3) in the order B, G, R -> (T, 3, h, w) in the order R, G, B
        flipped = {kind: aug.flip(values[..., ::-1].transpose(0, 3, 1, 2)) for kind, values in images.items()}
        item = {kind: torch.from_numpy(values).to(torch.float32).div_(255.0) for kind, values in flipped.items()}
        if clip.instants:
            item["gt_instants"] = item["gt_instants"].unflatten(0, (len(frames), -1)).flatten(1, 2)
            item["gt"] = contract.middle_instant(item["gt_instants"], clip.instants)
        if spikes := clip.spikes:
            channels = [
                spikes.read(self.files, clip, i, aug, image, back, draw.camera)
                for i, image, back in zip(frames, images["lq"], backwards, strict=True)
            ]
            item["spike"] = torch.from_numpy(aug.flip(np.stack(channels)))
        return item

    def frames_of(self, kind: str, frames: list[int]) -> list[int]:
        """Which frames of a sample, in the order of playing, are read of kind "lq" or "gt"; may be overridden."""
        return frames


class TrainClips(ClipDataset):
    """Random crops of clips, one sample from each frame on. Clips shorter than num_frame are played back and forth."""

    is_training = True

    def __init__(self, section: Any, seed: int = 0) -> None:
        super().__init__(section, seed)
        self.gt_size, self.intervals = section.gt_size, section.interval_list
        self.turns = {"hflip": section.use_hflip, "rot": section.use_rot, "reverse": section.random_reverse}
        self.ends = np.cumsum([1 if self.septuplets else len(clip) for clip in self.clips])
        # Samples up to the end of each root: those that there are, and those of an epoch, by the shares.
        self.has = self.takes = self.ends[self.ends_of_roots - 1]
        if shares := getattr(section, "dataroot_share", None):
            self.takes = np.rint(np.cumsum(shares) / sum(shares) * len(self)).astype(int)
            if 0 in (epoch := np.diff(self.takes, prepend=0).tolist()):
                what = f"dataroot_share {shares} gives {epoch} samples in an epoch"
                expected = "at least one of each root"
                raise OptionError(what, "datasets.train.dataroot_share", expected, "raise the small shares")
        usual = self.clips[0]
        for clip in self.clips:
            if (clip.scale, clip.instants) != (usual.scale, usual.instants):
                about = [f"scale {c.scale} and {c.instants} sharp instants in clip {c.name}" for c in (clip, usual)]
                what, expected = f"samples of different kinds: {about[0]}, {about[1]}", "the same in all roots"
                raise DataError(what, clip.lq[0], expected, "correct dataroot_gt and dataroot_gt_instants")
            (_, _, height, width), step = clip.croppable
            if self.gt_size % (clip.scale * step):
                what, expected = f"datasets.train.gt_size is {self.gt_size}", f"a multiple of {clip.scale * step}"
                expected += ": gt pixels per lq pixel x lq pixels per spike pixel"
                raise OptionError(what, "datasets.train.gt_size", expected, "correct gt_size")
            height, width = height * clip.scale, width * clip.scale
            if self.gt_size > min(height, width):
                seen = "" if (height, width) == clip.gt_size else ", which is what the spike camera sees of them"
                what, where = f"crops of {self.gt_size} do not fit into clip {clip.name}", (clip.gt or clip.lq)[0]
                expected = f"images of at least {self.gt_size} x {self.gt_size}, not {height} x {width}{seen}"
                raise DataError(what, where, expected, "lower datasets.train.gt_size, or correct dataroot_gt")
        frames = (self.num_frame - 1) * max(self.intervals) + 1
        short = [clip.name for clip in self.clips if len(clip) < frames]
        if short and utils_dist.is_main_process():
            names = ", ".join(short[:5]) + (", ..." if len(short) > 5 else "")
            text = "%d clips have fewer than %d frames and are played back and forth: %s"
            logger.warning(text, len(short), frames, names)

    def sample_names(self) -> list[str]:
        """Properties of each clip and of the spikes, then clip/frame of every sample, in order.

        A resumed run compares them with those of its checkpoint.
        """
        about = [f"{clip.name}: {clip.size} {clip.gt_size} {clip.planes}" for clip in self.clips]
        for spikes in dict.fromkeys(clip.spikes for clip in self.clips if clip.spikes):
            timing = spikes.timing.describe()
            about += [f"{spikes.geometry} {spikes.rate} {spikes.light} {spikes.info.gt_plane}{timing}"]
            about += [f"calibration {spikes.calibration.digest()}"] if spikes.calibration else []
        about += [f"samples of the roots {self.takes}"] if self.takes is not self.has else []
        return about + [f"{clip.name}/{stem}" for clip in self.clips for stem in clip.stems]

    def transform(self, item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """The finished sample; to be overridden. rng: of the sample, after the crop and the flips have been drawn."""
        return item

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, sample_id: tuple[int, int]) -> dict[str, Any]:
        """Sample `index` in `epoch`, a function of (seed, epoch, index) only.

        An index beyond the length of the dataset draws another sample from the same frame (dataloader_epoch_repeat).
        """
        draw = self.draw(sample_id)
        item = self.transform(self.read(draw), draw.rng)
        return {**item, "key": f"{draw.clip.name}/{draw.clip.stems[draw.frames[-1 if draw.aug.reverse else 0]]}"}

    def place_of(self, epoch: int, index: int) -> int:
        """The place, among the samples of all clips, of sample `index`.

        A root has as many samples in an epoch as its share says. They go on where those of the last epoch ended, so
        that each of its frames is the first one of as many samples, in the long run.
        """
        again, place = divmod(index, len(self))
        root = int(np.searchsorted(self.takes, place, side="right"))
        first, start = (int(ends[root - 1]) if root else 0 for ends in (self.takes, self.has))
        takes, has = int(self.takes[root]) - first, int(self.has[root]) - start
        return start + ((epoch + again) * takes + place - first) % has

    def draw(self, sample_id: tuple[int, int]) -> Draw:
        """The clip, frames, crop, flips and camera of a sample."""
        epoch, index = sample_id
        rng = random_streams.random_stream("sample", self.seed, epoch, index)
        place = self.place_of(epoch, index)
        number = int(np.searchsorted(self.ends, place, side="right"))
        clip = self.clips[number]
        interval = int(rng.choice(self.intervals))
        last = len(clip) - 1 - (self.num_frame - 1) * interval  # the last one from which the sample fits, or < 0
        if self.septuplets:
            first = max(last, 0) // 2
        else:
            first, redrawn = place - int(self.ends[number]) + len(clip), int(rng.integers(0, max(last, 0) + 1))
            first = first if first <= last else redrawn
        (top, left, height, width), step = clip.croppable
        patch = self.gt_size // clip.scale
        aug = Augment.draw(rng, (height, width), patch, step, origin=(top, left), **self.turns)
        # Played back and forth: 0 1 2 1 0 1 ...
        period = max(2 * (len(clip) - 1), 1)
        phases = [(first + i * interval) % period for i in range(self.num_frame)]
        phases = phases[::-1] if aug.reverse else phases
        frames, backwards = [min(p, period - p) for p in phases], [(p >= len(clip)) != aug.reverse for p in phases]
        camera = self.camera.draw([self.seed, epoch, index]) if self.camera else None
        return Draw(clip, frames, backwards, aug, camera, rng)


class TestClips(ClipDataset):
    """Whole clips."""

    __test__ = False  # not a test case for pytest

    def __len__(self) -> int:
        return len(self.clips)

    def count_folders(self) -> int:
        """Number of clips in the data folder, including those that the meta file does not list; 0: nobody knows."""
        places = [source.kinds()["lq"] for source in self.sources]  # root, folder within a clip, endings of the names
        if self.septuplets or any(files.is_lmdb(root) or not Path(root).is_dir() for root, _, _ in places):
            return 0
        return sum(len(files.list_root(*place)) for place in places)

    def frame_count(self, index: int) -> int:
        """How many frames of clip `index` are read: all, or the first num_frame."""
        count = len(self.clips[index])
        return count if self.num_frame < 1 else min(count, self.num_frame)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The whole clip: lq, spike, gt as in training, key: its name, frames: the stems of its frames."""
        return self.read_frames(index, 0, self.frame_count(index))

    def read_frames(self, index: int, first: int, count: int, reverse: bool = False) -> dict[str, Any]:
        """Frames first ... first + count - 1 of clip `index`, as `__getitem__` returns them.

        reverse: the frames stay in this order, but each has the spikes of reversed time.
        """
        draw = self.draw(index, first, count, reverse)
        return {**self.read(draw), "key": draw.clip.name, "frames": [draw.clip.stems[i] for i in draw.frames]}

    def draw(self, index: int, first: int, count: int, reverse: bool = False) -> Draw:
        """What `read_frames` reads."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        clip, frames = self.clips[index], list(range(first, first + count))
        camera = self.camera.draw([self.seed, index]) if self.camera else None
        return Draw(clip, frames, [reverse] * count, Augment.whole(clip.size), camera)


def check_clips(dataset: Dataset, split: str, scale: int, instants: int | None) -> None:
    """Raise DataError where clips have another scale, or number of sharp instants, than the network restores.

    instants: None where any number will do.
    """
    for clip in getattr(dataset, "clips", ()):
        if clip.gt and clip.scale != scale:
            sizes = "gt of {} x {} for lq of {} x {}".format(*clip.gt_size, *clip.size)
            what = f"datasets.{split} has {sizes} in clip {clip.name}, but scale is {scale}"
            do = f"correct datasets.{split}.dataroot_gt or dataroot_lq, or scale and netG.upscale"
            raise DataError(what, clip.gt[0], f"sharp frames {scale} times as large as the lq frames", do)
        if instants and clip.instants not in (0, instants):
            found = f"{clip.instants} sharp frames for each blurry one in clip {clip.name}"
            what, do = f"datasets.{split} has {found}, but netG.out_instants is {instants}", "correct one of them"
            raise DataError(what, clip.gt_instants[0], f"{instants} for each", do)
