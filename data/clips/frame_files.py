"""Find which file of each kind belongs to which frame of a clip, and report missing files.

A kind of file is "lq" (blurry frames), "gt" (sharp frames), "gt_instants" (several sharp frames of
an exposure) or "spike". The stem of a file is its name without the suffix. Files are matched by the
number in their stems, e.g. 47.png with 000047.dat. `ClipCheck` (data/clips/clip_check.py) calls
three methods of `FrameFiles` in this order:

    find_files    is there a folder with files for each kind?
    find_stems    which file of each kind belongs to which frame?
    find_frames   which frames does the clip have, and in which order? Reports missing files, gaps
                  in the numbers, and wrong names

A frame has a key, the part that the stems of its files have in common (`FrameKey`). A data set may
have a meta file, a list of its clips with the number of frames of each clip.

What must stay:

* the order of the frames, because training samples are numbered in this order
  (test_frames_are_in_the_order_of_their_numbers),
* which files belong to one frame,
* every problem that is reported (test_a_fault_of_the_data_is_named_before_training).

Free to add: a rule. If you add a rule, raise FORMAT in data/clips/kept.py, because stored results
of earlier checks did not use the new rule.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data.clips.clip_problems import ClipProblems, names_in_short
from data.clips.frame_names import NO_NUMBER, NUMBERED, FrameKey, frame_key
from data.clips.listed_files import FileEntry, is_lmdb
from data.clips.source import Source
from utils.name_order import are_values, natural_key, order_of


@dataclass
class FrameFiles:
    """The files of a clip, matched with its frames.

    problems: what is wrong with the clip. The methods report to this object.
    listed: {kind: {stem: file}}. The value of a kind is None if its folder is missing, and {} if
    the folder has no such file.
    by_kind: `listed` without the missing folders. `find_files` fills it.
    stems: {kind: {frame: stem}}. `find_stems` fills it. Two kinds of files are not matched by their
    names and have no entry: gt_instants, and one spike file for all frames.
    """

    problems: ClipProblems
    listed: Mapping[str, dict[str, FileEntry] | None]
    by_kind: dict[str, dict[str, FileEntry]] = field(default_factory=dict)
    stems: dict[str, dict[FrameKey, str]] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        return self.problems.source

    def find_files(self) -> None:
        """Fill `by_kind`. Report kinds without a folder or without a file."""
        clip = self.problems.clip
        for name, kind in self.source.kinds().items():  # e.g. "lq", Kind(root="/data/blur", ...)
            files = self.listed[name]
            if files:
                self.by_kind[name] = files
            elif files is None:
                missing = f"key {clip}/<frame>" if is_lmdb(kind.root) else f"folder {clip}"
                self.problems.report(f"{name} has no {missing}", name)
            else:  # {}: the folder has no such file
                self.problems.report(f"{name} holds no {' or '.join(kind.suffixes)} file", name)
        needs_file_per_frame = "spike" in self.by_kind and not self.source.has_one_spike_file
        # `_report_unexpected_single_spike_file` reads "lq". `by_kind` has "lq" for certain only if
        # no problem was found.
        if needs_file_per_frame and not self.problems.found:
            self._report_unexpected_single_spike_file()

    def _report_unexpected_single_spike_file(self) -> None:
        """Report one spike file for many frames, if the options expect a file for each frame.

        The file probably holds the planes of the whole clip, and the user has forgotten the option
        spike.exposure. So a message about spike.exposure helps more than a message about missing
        spike files.

        Test: test_one_spike_file_for_several_frames_asks_for_exposures
        """
        frames = len(self.by_kind["lq"])
        spike_files = list(self.by_kind["spike"].values())
        if len(spike_files) != 1 or frames == 1:
            return
        what = (
            f"one spike file for {frames} frames needs spike.exposure, which says which planes "
            "belong to which frame"
        )
        do = "restore the other spike files, or give spike.exposure (docs/data_format.md)"
        if self.source.is_user_clip:
            path = spike_files[0].path
            do += f"; --spike {path} treats it as the recording of the whole clip"
        self.problems.report(what, "spike", do)

    def find_stems(self) -> None:
        """Fill `stems`. Report two files of one kind for a frame."""
        # In a data set, the files of a frame need only have the same number, e.g. 47.png and
        # 000047.dat. In two cases, the files of a frame must have equal names: for a user's own
        # files, and if the names are times, e.g. 432.033333. The last digits of a time are not a
        # frame number.
        compares_whole_names = self.source.is_user_clip or are_values(self.by_kind["lq"])
        for kind, files in self.by_kind.items():
            # Two kinds are not matched by names: instants (their names are <frame>_0, <frame>_1,
            # ...), and one spike file for all frames.
            if kind == "gt_instants" or (kind == "spike" and self.source.has_one_spike_file):
                continue
            stems: dict[FrameKey, str] = {}
            for stem in files:
                # "frame_0047" has the key ("frame_", 47, ""), or ("frame_0047", NO_NUMBER, "") if
                # whole names are compared.
                if compares_whole_names:
                    key = FrameKey(before=stem, number=NO_NUMBER, after="")
                else:
                    key = frame_key(stem)
                # `setdefault` returns the stem of an earlier file if it has the same key.
                first_stem = stems.setdefault(key, stem)
                if first_stem != stem:
                    names = names_in_short([first_stem, stem])
                    self.problems.report(f"{kind} has two files of one number: {names}", kind)
            self.stems[kind] = stems

    def is_complete(self, key: FrameKey) -> bool:
        """Return whether a frame has a file of each kind whose files are matched by names."""
        return all(key in stems for stems in self.stems.values())

    def paths(self, kind: str, keys: Sequence[FrameKey]) -> tuple[str, ...]:
        """Return the path of one kind of file for each frame.

        keys: the frames.
        """
        # The key of a frame gives its stem, the stem gives its file, and the file has the path.
        file_of_stem = self.by_kind[kind]
        stem_of_frame = self.stems[kind]
        return tuple(file_of_stem[stem_of_frame[key]].path for key in keys)

    def find_frames(self, meta_entry: Sequence[Any] | None) -> list[FrameKey]:
        """Return the frames of the clip in order. Report missing files, gaps and wrong names.

        meta_entry: [number of frames, number of the first frame] of the clip in the meta file, e.g.
        [100, "0"]. None: there is no meta file, so all frames of the folders are wanted.
        """
        names_of_files = self._names_of_files()
        if meta_entry is None:
            wanted_frames = set(names_of_files)  # the frames that have any file
        else:
            wanted_frames = self._listed_frames(meta_entry)
        names = self._names_of_frames(wanted_frames, names_of_files)

        # All files of a kind may have different numbers or names than in lq. E.g. lq has 0, 1, 2
        # and gt has 1, 2, 3. In this case, only the different numbers are reported, because a
        # report of missing files would mislead.
        if not all(self.is_complete(key) for key in wanted_frames):
            kinds = self._kinds_with_other_numbers()
            for kind in kinds:
                self._report_other_first_name(kind)
            if kinds:
                # The clip will not be used. Its complete frames are returned for the later checks,
                # so that one run shows all problems.
                return [key for key in self.stems["lq"] if self.is_complete(key)]
        self._report_missing(wanted_frames, names)
        # Sort the frames by time: "2" before "10". Names that are times are sorted by their value.
        # `order` is a function: name -> sort key.
        order = order_of(names.values())
        keys = sorted(wanted_frames, key=lambda key: order(names[key]))
        self._report_gaps(keys, names)
        self._report_names_unlike_template(keys)
        return keys

    def _names_of_files(self) -> dict[FrameKey, str]:
        """Return {key of a frame: its name}, for each frame that has any file.

        Stems may differ between kinds, e.g. 47.png in "lq" and 000047.dat in "spike". The name of a
        frame is its stem in lq. If lq lacks the file, the name is the stem in the first kind that
        has the file.
        """
        name_of: dict[FrameKey, str] = {}
        for stems in self.stems.values():  # "lq" comes first, as in `Source.kinds`
            for key, stem in stems.items():
                name_of.setdefault(key, stem)  # changes nothing if the frame has a name
        return name_of

    def _listed_frames(self, meta_entry: Sequence[Any]) -> set[FrameKey]:
        """Return the frames that the meta file lists.

        meta_entry: [number of frames, number of the first frame], e.g. [100, "0"].

        Test: test_a_meta_file_of_basicsr_lists_frames_from_0_on
        """
        count, first_text = meta_entry
        first_number = int(first_text)
        # The frames of a septuplet (a clip of Vimeo-90K) are im1 ... im7. The list of Vimeo-90K
        # gives no first number, so the meta entry has "0".
        if first_number == 0 and self.source.septuplets:
            first_number = 1
        # A key also has the texts before and after the number. The meta file does not give these
        # texts. If all names in lq have the same texts, e.g. "im" and "", the listed frames get the
        # texts of lq.
        texts_around_number = {(key.before, key.after) for key in self.stems["lq"]}
        before = ""
        after = ""
        if len(texts_around_number) == 1:
            [(before, after)] = texts_around_number  # the only pair of the set
        numbers = range(first_number, first_number + count)
        return {FrameKey(before, number, after) for number in numbers}

    def _names_of_frames(
        self, wanted_frames: set[FrameKey], name_of: Mapping[FrameKey, str]
    ) -> dict[FrameKey, str]:
        """Return {key of a frame: its name}, for each wanted frame: {("", 47, ""): "000047"}.

        A key is the text before the number, the number, and the text after the number (`FrameKey`).

        A frame without a file gets the name that its file should have: between "000046" and
        "000048", the missing frame is "000047". The number in this name has as many digits as the
        longest number with leading zeros.

        name_of: names of the frames that have a file.

        Test: test_a_listed_frame_that_is_missing_gets_a_name_in_the_form_of_the_present_frames
        """
        digits = 1
        for stem in name_of.values():
            numbered = NUMBERED.fullmatch(stem)
            if numbered and numbered["number"].startswith("0"):  # e.g. "000046"
                digits = max(digits, len(numbered["number"]))
        names = {}
        for key in wanted_frames:
            if key in name_of:
                names[key] = name_of[key]
            else:
                # The key has a number, because only a meta file wants frames that have no file.
                padded_number = f"{key.number:0{digits}d}"  # 47 with 6 digits: "000047"
                names[key] = f"{key.before}{padded_number}{key.after}"
        return names

    def _report_missing(self, wanted_frames: set[FrameKey], names: Mapping[FrameKey, str]) -> None:
        """Report frames of which a file is missing.

        wanted_frames: all frames of the clip.
        names: the name of each frame.
        """
        for kind, stems in self.stems.items():  # e.g. "lq", {key of a frame: stem}
            missing_keys = wanted_frames - stems.keys()
            missing_names = [names[key] for key in missing_keys]
            if not missing_names:
                continue
            missing_names.sort(key=natural_key)
            suffix = self._shown_suffix(kind)
            files = names_in_short(f"{name}{suffix}" for name in missing_names)
            self.problems.report(
                f"{kind} lacks {len(missing_names)} of {len(wanted_frames)} frames: {files}", kind
            )

    def _shown_suffix(self, kind: str) -> str:
        """Return the suffix of the missing files of a kind for a message, e.g. ".png".

        The suffix is taken from a file that exists. In an LMDB, the keys have no suffix, e.g.
        "clip_a/000046". In this case, the first suffix that files of this kind may have is
        returned.
        """
        a_file = next(iter(self.by_kind[kind].values()))
        _, suffix = os.path.splitext(a_file.path)
        return suffix or self.source.kinds()[kind].suffixes[0]

    def _report_gaps(self, keys: Sequence[FrameKey], names: Mapping[FrameKey, str]) -> None:
        """Report jumps in the numbers of the frames, e.g. "000012-000014".

        keys: frames in the order of time.
        names: the name of each frame.

        Test: test_a_gap_is_looked_for_in_the_order_of_numbers
        """
        # E.g. in "im1", the texts around the number are "im" and "". If the texts are not the same
        # in all names, the numbers of all names need not follow one another.
        texts_around_number = {(key.before, key.after) for key in keys}
        if len(texts_around_number) != 1:
            return
        gaps = []
        for key, following in itertools.pairwise(keys):
            if following.number != key.number + 1:
                gaps.append(f"{names[key]}-{names[following]}")
        if gaps:
            self.problems.report(f"frame numbers jump at {names_in_short(gaps)}", "lq")

    def _report_names_unlike_template(self, keys: Sequence[FrameKey]) -> None:
        """Report names that do not follow the option filename_tmpl, a format such as "08d".

        keys: the frames of the clip.

        Test: test_names_of_frames_must_follow_a_given_template
        """
        template = self.source.filename_tmpl
        if not template:
            return
        for kind, stems in self.stems.items():
            other_names = []
            for key in keys:
                if key not in stems:
                    continue  # `_report_missing` has reported this file
                stem = stems[key]
                # With the template "08d", the name "47" is wrong, because it should be "00000047".
                # A name that is more than a number, e.g. "im47", is accepted.
                if stem.isdecimal() and format(int(stem), template) != stem:
                    other_names.append(stem)
            if other_names:
                shown = names_in_short(other_names)
                what = (
                    f"{len(other_names)} names of {kind} do not follow filename_tmpl {template!r}"
                )
                self.problems.report(f"{what}: {shown}", kind)

    def _kinds_with_other_numbers(self) -> list[str]:
        """Return the kinds that have all files, but with different numbers or names than lq.

        For example, lq has the files 0, 1, 2 and gt has 1, 2, 3, or lq has im1, im2 and gt has
        frame1, frame2. In such a case the user must rename files. Returns [] if single files are
        missing.

        Test: test_spikes_that_count_from_another_number_are_one_problem
        """
        # A kind has all files if the distances of its numbers from its first number are the same as
        # in lq. E.g. 0, 1, 2 and 1, 2, 3 both have the distances [0, 1, 2].
        first_keys = {}  # {kind: key of its first frame}
        distances = {}  # {kind: distance of each number from the first number}
        for kind, stems in self.stems.items():
            # The keys of `stems` may be whole names (`find_stems`), so make keys with numbers.
            keys = sorted(frame_key(stem) for stem in stems.values())
            first = keys[0]
            texts_around_number = {(key.before, key.after) for key in keys}
            # Names without a number, or with different texts around the number, cannot be compared
            # by distances.
            if len(texts_around_number) > 1 or first.number == NO_NUMBER:
                return []
            first_keys[kind] = first
            distances[kind] = [key.number - first.number for key in keys]
        other_kinds = []
        for kind in self.stems:
            if distances[kind] != distances["lq"]:
                return []  # Single files are missing. `_report_missing` reports them.
            if first_keys[kind] != first_keys["lq"]:
                other_kinds.append(kind)
        return other_kinds

    def _report_other_first_name(self, kind: str) -> None:
        """Report that the first file of a kind and the first file of lq have different names."""
        name = min(self.stems[kind].values(), key=natural_key)
        lq_name = min(self.stems["lq"].values(), key=natural_key)
        if frame_key(name).number != frame_key(lq_name).number:
            what = f"{kind} counts from {name}, lq from {lq_name}"
        else:
            what = f"{kind} has the name {name} where lq has {lq_name}"
        # Only the user knows whether both names mean the same frame.
        do = "give the files of one frame the same name, if both begin with the same frame"
        self.problems.report(what, kind, do)
