"""Find the data roots of a dataset in its options, and check them, before the dataset is built.

`ClipSources` is the part of a dataset class that needs no dataset. Its methods are class methods.
The main programs call these methods with the resolved options of the dataset (`section`):

    places           which option key is which folder
    sources_of       the folders of each root, and how its spikes are read (`Source`)
    spike_channels   number of spike channels of a sample, which the network needs
    spike_data       properties of the training spikes, which are stored with the weights
    check            the check of the data before a run

A root is a set of folders that belong together, one for each kind of file. With several roots, the
clips of the second root come after the clips of the first root, and so on. The names of the clips
get the number of their root as a prefix, e.g. "1/clip_07".

What must stay:

* the methods, their arguments and results, because docs/extending.md promises them to users,
* the prefixes, because a resumed run compares the names of samples.

Tests: tests/parts/data/test_manifest.py (roots, spike data), tests/parts/data/test_preflight.py,
tests/stories/test_extending.py (a user's own folders), tests/stories/test_bad_input.py (refusals)
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

from data.cameras.dataset_info import load_info
from data.cameras.representation_section import channels_of
from data.clip_options import split_by_root
from data.clips import preflight, root_check
from data.clips.io_backend import IO_BACKENDS
from data.clips.manifest import HELD_OUT, Problem, Source, raise_problems, same_files
from data.root_spikes import common_properties, is_rate_assumed, properties_of, spikes_of
from utils.errors import DataError, OptionError
from utils.user_path import expand_path
from utils.words import counted


class ClipSources:
    """The data roots of a class of datasets.

    Subclasses may override `places`, `may_share_frames`, `sources_of` and `check`.
    """

    # Whether the clips are the septuplets of Vimeo-90K, clips of 7 frames. Each septuplet gives one
    # training sample, its middle part.
    septuplets = False
    # Whether pictures with other endings are taken if a clip has no picture with the ending
    # `filename_ext`.
    accepts_other_images = False

    @classmethod
    def places(cls, section: Any) -> dict[str, Any]:
        """Return where the files of the clips are, as {field of `Source`: value}.

        E.g. {"dataroot_lq": "/data/blur", "dataroot_gt": "/data/sharp", "lq_folder": "blur", ...}.
        A field is taken from the key of the same name, if the section has this key.
        Subclasses override this method for keys with other names.
        """
        places = {}
        for field in fields(Source):
            if hasattr(section, field.name):
                places[field.name] = getattr(section, field.name)
        return places

    @classmethod
    def _expanded_places(cls, section: Any) -> dict[str, Any]:
        """Return `places` with ~ and $NAME replaced in the paths: "~/data" -> "/home/me/data"."""
        places = cls.places(section)
        for key, value in places.items():
            is_path = key == "meta_info_file" or key.startswith("dataroot_")
            if is_path and isinstance(value, str):
                places[key] = expand_path(value)
        return places

    @classmethod
    def may_share_frames(cls, section: Any) -> bool:
        """Return whether the blurry and the sharp frames may be the same files.

        If not, the same files for both are refused as a wrong option, because the network would
        learn to copy its input.
        Subclasses return True in two cases: the dataset changes the blurry frames after reading, or
        a sample takes its blurry frames and its sharp frame from different frames of one folder.
        """
        return False

    @classmethod
    def sources_of(cls, section: Any) -> list[Source]:
        """Return the source of each root: the folders of the root, and how its spikes are read.

        A root is a set of folders that belong together, e.g. blurry frames, sharp frames, spikes.
        Reads no file except the dataset.json of each root, and files that the options name.
        """
        sections = split_by_root(section)
        sources = []
        for root_index, section_of_root in enumerate(sections):
            # Two roots may have clips of one name. The prefix makes the names different: "0/a" and
            # "1/a". A resumed run compares the names of samples, so the prefix must stay.
            name_prefix = f"{root_index}/" if len(sections) > 1 else ""
            sources.append(cls._source_of(section_of_root, name_prefix))
        return sources

    @classmethod
    def _source_of(cls, section: Any, name_prefix: str) -> Source:
        """Return the source of one root.

        section: the section of this root.
        name_prefix: text before the names of its clips.
        """
        places = cls._expanded_places(section)
        _refuse_instants_without_gt(places)
        # How the spike files are read: `spikes` for most clips, and `own_spikes` as
        # {clip: settings} for the clips that differ, e.g. with another firing rate. An RGB dataset
        # has no section `spike`.
        spikes = None
        own_spikes = {}
        if hasattr(section, "spike"):
            # Reads dataset.json of the folder of spikes.
            spikes, own_spikes = spikes_of(section.spike, places["dataroot_spike"])
        # The key val_partition names a list of the REDS clips that are held out for the validation.
        # A dataset without this key, or with its default null, leaves out no clip.
        val_partition = getattr(section, "val_partition", None)
        excluded_clips = HELD_OUT.get(val_partition, frozenset())
        # data/clips/source.py explains the fields.
        return Source(
            **places,
            septuplets=cls.septuplets,
            accepts_other_images=cls.accepts_other_images,
            may_share_frames=cls.may_share_frames(section),
            excluded_clips=excluded_clips,
            spikes=spikes,
            own_spikes=own_spikes,
            name_prefix=name_prefix,
        )

    @classmethod
    def spike_channels(cls, section: Any) -> int:
        """Return S, the number of spike channels of a sample. It is 0 for RGB. Reads no file."""
        if not hasattr(section, "spike"):
            return 0
        return channels_of(section.spike.representation)

    @classmethod
    def spike_data(cls, section: Any) -> dict[str, Any] | None:
        """Return the properties of the training spikes that are stored with the weights.

        When main_test_vrt.py tests these weights, it compares the properties with the spikes of
        the test data. Returns None for a dataset without spikes. A plane is one read-out of the
        spike camera. The keys are:

            rate              spikes per plane at full light, a number. "match" if each clip has
                              its own rate. None if no rate is known: then the network was trained
                              with firing rates that were not divided by a rate
            light             what the spikes integrate, "linear" or "display"
            center            the plane of the sharp frame, as the option spike.center says
            planes, gt_plane  number of planes of a spike file, and the plane of the sharp frame,
                              as dataset.json says; a few clips may have other values
            calibration       contents of the calibration file; only if there are two cameras

        If the roots have different values of a key, the result has None. There are two exceptions:
        different light becomes "linear", and different rates become "match" if all are known.

        What must stay: the keys, because files of weights have them. A new key needs a default for
        files that lack it.
        """
        if not hasattr(section, "spike"):
            return None
        properties_of_roots = []
        for section_of_root in split_by_root(section):
            folder = cls._expanded_places(section_of_root)["dataroot_spike"]
            info = load_info(folder)  # what dataset.json in this folder says
            properties_of_roots.append(properties_of(section.spike, info))
        return common_properties(properties_of_roots)

    @classmethod
    def check(
        cls,
        section: Any,
        split: str,
        *,
        stored: Path | None = None,
        decode: bool = False,
        show: root_check.OpenProgress = preflight.NO_PROGRESS_BAR,
        scale: int = 1,
    ) -> list[root_check.Report]:
        """Check the data, and return one report for each root, in the order of the roots.

        A problem of a clip is listed in a report and raises no error here.

        section: the resolved options of the dataset.
        split: "train" or "test", for the names of the reports.
        stored: folder of the results of earlier checks. If the data of a root have not changed, its
        stored result is returned. None: all files are checked, and nothing is stored.
        decode: whether to decode every image, which takes longer and also finds flipped bits.
        show: a function that opens a progress bar over the number of files.
        scale: scale of the network, the side of gt over the side of lq.

        Raises DataError if a root cannot be read, e.g. because a folder is missing. The error also
        names the problems of the other roots.
        """
        is_cached = section.io_backend.type == "cache"
        reports = []
        unreadable = []  # errors of whole roots
        for source in cls.sources_of(section):
            name = _name_of_report(split, source)
            try:
                if is_cached:
                    # The files were checked when the cache was built. So `stored`, `decode` and
                    # `show` have no effect.
                    report = cls._report_of_cache(section, source, name, scale)
                else:
                    report = preflight.check_source(
                        source,
                        name,
                        stored=stored,
                        decode=decode,
                        show=show,
                        scale=scale,
                        share=section.checked_share,
                    )
            except DataError as e:
                unreadable.append(e)  # go on with the next root
                continue
            if is_rate_assumed(source):
                report.warnings.append(_warning_of_assumed_rate(source))
            reports.append(report)
        if unreadable:
            problems = [(report.source, report.problems) for report in reports]
            raise_problems(problems, unreadable=unreadable)
        return reports

    @classmethod
    def _report_of_cache(
        cls, section: Any, source: Source, name: str, scale: int
    ) -> root_check.Report:
        """Return the report of a root that is read from a clip cache.

        The files of the source were checked when the cache was built, so they are not checked
        again. `CacheReader.clips` only compares their digest, to find a change since the cache was
        built.

        scale: scale of the network.
        """
        cache = IO_BACKENDS.build(section.io_backend, "io_backend")
        clips = cache.clips(source)
        # Look for clips whose lq and gt are the same files by mistake. With another scale than 1,
        # `check_clips` (data/network_fit.py) refuses such clips with a better message.
        problems = same_files(source, clips) if scale == 1 else []
        return root_check.Report(
            name, source, clips=clips, problems=problems, note=counted(len(clips), "cached clip")
        )


def _name_of_report(split: str, source: Source) -> str:
    """Return the name of the report on a root: "train", or with several roots "train 0", ..."""
    # The numbers are the prefixes of the names of the clips: "0/", "1/", ..., or "" for one root.
    root_number = source.name_prefix.removesuffix("/")
    return f"{split} {root_number}" if root_number else split


def _warning_of_assumed_rate(source: Source) -> Problem:
    """Return the warning that the firing rate of the spikes of a root is not known."""
    what = "neither dataset.json nor spike.rate gives the firing rate at full light; 1 is assumed"
    return Problem("spikes", what, str(source.dataroot_spike))


def _refuse_instants_without_gt(places: dict[str, Any]) -> None:
    """Refuse several sharp frames of each exposure (instants) without gt, the middle instant.

    places: the folders of the clips, as {field of `Source`: value}.
    """
    if places.get("dataroot_gt_instants") and not places["dataroot_gt"]:
        raise OptionError(
            what="dataroot_gt_instants without dataroot_gt",
            where="dataroot_gt_instants",
            expected="both folders: gt is the middle frame of gt_instants",
            do="set dataroot_gt too",
        )
