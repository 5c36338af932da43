"""Rank the geometries that a spike file may have, by how smooth their images are.

A packed file holds planes, the readouts of a spike camera, one after the other and without a
header. A geometry is the height, width and storage of a plane. A wrong width lets each row begin at
a wrong pixel, and a wrong height lets the planes begin at wrong rows. Then neighbouring pixels
resemble one another less than in the right image. So the smoothest image most likely has the right
size.

    Candidate   a file read with one geometry, and what speaks against the geometry
    Ranking     the candidates of a file, the smoothest first, and whether the first one is clear

spike_sizes.py lists the sizes that the length of a file allows. spike_info.py prints a ranking, and
uploaded_clip.py takes the best size if the ranking is clear.

What must stay: a wrong size is never clear. A file of another size, or without an image, stays
unclear (test_info_names_no_size_if_two_are_as_good,
test_info_names_no_size_if_none_gives_a_picture).
Free to change: the limits below, and the texts, except where
tests/parts/scripts/test_spike_tool.py quotes them.
"""

from collections.abc import Sequence
from pathlib import Path

from data.spike import formats
from data.spike.geometry import SpikeGeometry
from data.spike.headers import HEAD_BYTES, refuse_other_format
from data.spike.known_geometries import KNOWN_GEOMETRIES
from scripts.parts.spike_tool.spike_geometry import (
    GeometryOptions,
    camera_geometries,
    given_geometry,
    is_flipped,
    no_geometry,
)
from scripts.parts.spike_tool.spike_sizes import (
    SHAPES_TRIED,
    SIDES_TRIED,
    has_shape,
    sizes_that_fit,
    smoothest_first,
    smoothness,
)
from utils.errors import DataError

# A size is judged by the mean of this number of planes in the middle of the file. With more planes
# the mean is less noisy, but moving objects are blurred.
AVERAGED_PLANES = 64
# The smoothest size is clear if its smoothness is larger than every other by more than this number.
# E.g. 0.62 and 0.55: clear. 0.62 and 0.60: not clear, so the user must give --size. With a smaller
# number, a wrong size would sometimes be clear. Smoothness is the correlation of neighbouring
# pixels, from -1 to 1 (spike_sizes.py).
CLEAR_LEAD = 0.05
# Below this smoothness an image is hardly better than noise. The smoothness of noise is 0.
LEAST_SMOOTHNESS = 0.3
# The mean spikes per plane and pixel of real streams lie in this range. With a wrong geometry, a
# header or an array of other numbers may be read as spikes, and the mean may lie outside.
USUAL_RATES = (0.001, 0.98)
# Hundreds of sizes may fit the length of a file. Only this number of the smoothest sizes become
# candidates. Each candidate needs the mean of AVERAGED_PLANES planes, so a larger number takes more
# time.
SHOWN_DERIVED = 8


class Candidate:
    """One geometry that a file may have, and how smooth its images would be.

    file: the open spike file.
    spikes: the planes in the middle of the file, (planes, h, w), 0 or 1.
    rates: (h, w), spikes per plane of each pixel.
    smooth: "columns" -> correlation of each column with the next column, "rows" -> correlation of
        each row with the next row.
    score: the smaller number of `smooth`, by which candidates are ranked.
    name: e.g. "250 x 400".
    """

    def __init__(self, path: Path, geometry: SpikeGeometry) -> None:
        """Read the planes in the middle of the file with this geometry, and judge their mean."""
        self.file = formats.open_spikes(path, geometry)
        # The planes in the middle of the file.
        count = min(self.file.planes, AVERAGED_PLANES)
        first = (self.file.planes - count) // 2
        self.spikes = self.file.read(first, count)
        self.rates = self.spikes.mean(axis=0)
        self.smooth = smoothness(self.rates)
        self.score = min(self.smooth.values())
        self.name = _name_of(geometry)

    def doubts(self, best: "Candidate") -> list[str]:
        """Return what speaks against this candidate, a text for each reason.

        `Ranking.is_clear` trusts the best candidate only if it has no doubts, so a new doubt makes
        more files unclear.

        best: the candidate with the smoothest image. It may be this candidate.

        Test: test_an_array_with_its_planes_last_is_named
        """
        planes = self.file.planes
        height, width = self.file.size
        rate = self.rates.mean()
        known_sizes = {(h, w) for h, w, _ in KNOWN_GEOMETRIES}
        # The direction in which this image is least smooth: "columns" or "rows". A wrong size may
        # spoil one direction more than the other. So this candidate is compared with the best
        # candidate in this direction.
        direction = min(self.smooth, key=lambda name: self.smooth[name])
        smoothness_there = self.smooth[direction]
        best_smoothness_there = best.smooth[direction]

        doubts = []
        # An array may have its planes on the last axis, e.g. (250, 400, 1000) of a camera with
        # 250 x 400 pixels. Such an array is read as 250 planes of 400 x 1000. Then (planes, height)
        # is the size of a camera, and (height, width) is not.
        if (planes, height) in known_sizes and (height, width) not in known_sizes:
            doubts.append(
                f"{planes} x {height} is the size of a camera: the axes seem to be (h, w, planes), "
                "but (planes, h, w) is expected"
            )
        if smoothness_there < best_smoothness_there - CLEAR_LEAD:
            doubts.append(
                f"neighbouring {direction} resemble one another less ({smoothness_there:.2f}; the "
                f"smoothest size has {best_smoothness_there:.2f})"
            )
        if self.score < LEAST_SMOOTHNESS:
            doubts.append(f"neighbouring {direction} do not resemble one another")
        if planes == 1:
            doubts.append("a single plane")
        lowest_rate, highest_rate = USUAL_RATES
        if not lowest_rate < rate < highest_rate:
            doubts.append(f"{100 * rate:.0f} % of the pixels fire in each plane")
        return doubts


def _name_of(geometry: SpikeGeometry) -> str:
    """Return the name of a candidate, e.g. "250 x 400".

    If 16 columns without image are at the end of each row, the name is "250 x 400 + 16". These
    columns are the `head_columns` of `SpikeGeometry` (data/spike/geometry.py). For the camera
    SPS100, the name is "1000 x 1000 (SPS100)".
    """
    extra = ""
    if geometry.head_columns:
        extra = f" + {geometry.head_columns}"
    elif geometry.layout == "sps100":
        extra = " (SPS100)"
    return f"{geometry.height} x {geometry.width}{extra}"


def smoothest_candidate(path: Path, geometries: Sequence[SpikeGeometry]) -> Candidate:
    """Return the candidate with the smoothest image among some geometries of a file."""
    candidates = [Candidate(path, geometry) for geometry in geometries]
    return max(candidates, key=lambda candidate: candidate.score)


class Ranking:
    """The candidates for the geometry of a file.

    shown: the candidates, the smoothest image first.
    others: sizes (h, w) that fit the length of the file too, but are less smooth. They were judged
        by the mean of a few planes (`smoothest_first`). They are no candidates, because the mean of
        more planes, which a candidate needs, takes time.
    is_given: whether the file, the options or dataset.json say the geometry.
    picture: height and width of a frame of the same view. Only sizes with its ratio of height to
        width are tried. None: no frame is given.
    """

    def __init__(
        self, path: Path, options: GeometryOptions, picture: tuple[int, int] | None
    ) -> None:
        """Find the candidates. A given geometry is the only candidate.

        Without a given geometry, there are two kinds of candidates:

            known      the geometries of known cameras that fit the length of the file
            derived    the smoothest of all other sizes that fit it

        options: what the user says about the geometry.
        picture: height and width of a frame of the same view, or None.
        Raises DataError if no size fits.
        """
        self.picture = picture
        self.others: list[tuple[int, int]] = []

        given = given_geometry(path, options)
        self.is_given = given is not None
        if given is not None:
            self.shown = [Candidate(path, given)]
            return

        geometries = camera_geometries(path, options)
        if picture is not None:
            geometries = [g for g in geometries if has_shape((g.height, g.width), picture)]
        # The camera SPS100 stores lines with a pattern that no other file has. `camera_geometries`
        # returns its geometry only if the file has this pattern. Then no other size is tried.
        has_sps100_lines = any(geometry.layout == "sps100" for geometry in geometries)
        if not has_sps100_lines:
            derived_sizes = self._derived_sizes(path, options, known=geometries)
            self.others = derived_sizes[SHOWN_DERIVED:]  # all but the smoothest
            flip = is_flipped(path, options)
            for height, width in derived_sizes[:SHOWN_DERIVED]:
                geometries.append(SpikeGeometry(height, width, flip, bit_order=options.bit_order))
        if not geometries:
            raise self._nothing_fits(path)
        candidates = [Candidate(path, geometry) for geometry in geometries]
        self.shown = sorted(candidates, key=lambda candidate: candidate.score, reverse=True)

    @property
    def is_clear(self) -> bool:
        """Return whether the size is given, or the smoothest size leads clearly, without doubts."""
        if self.is_given:
            return True
        best = self.shown[0]
        if best.doubts(best):
            return False
        if len(self.shown) == 1:
            return True
        second = self.shown[1]
        return best.score > second.score + CLEAR_LEAD

    def nearly_best(self) -> list[Candidate]:
        """Return the best candidate, and the candidates that are nearly as smooth."""
        best = self.shown[0]
        nearly = [other for other in self.shown[1:] if other.score >= best.score - CLEAR_LEAD]
        return [best, *nearly]

    def tried(self) -> str:
        """Return in words which sizes were tried."""
        if self.picture is None:
            return f"the known cameras; {SIDES_TRIED}, {SHAPES_TRIED}"
        height, width = self.picture
        return f"the sizes of the shape of the picture, {height} x {width}; {SIDES_TRIED}"

    def _derived_sizes(
        self, path: Path, options: GeometryOptions, known: Sequence[SpikeGeometry]
    ) -> list[tuple[int, int]]:
        """Return the sizes (h, w) that the length of the file allows, the smoothest first.

        known: geometries of known cameras that fit the file. Their sizes are left out.
        """
        # A file of another format, e.g. a picture, is refused by its first bytes.
        with open(path, "rb") as file:
            refuse_other_format(file.read(HEAD_BYTES), path)
        length = path.stat().st_size
        # A derived size has no head columns. So no size is derived if the user gave head columns.
        if options.head_columns or not length:
            return []
        # In the file, a row of a known camera holds its head columns, too. E.g. 400 columns and 16
        # head columns are read as a derived width of 416.
        known_sizes = {(g.height, g.width + g.head_columns) for g in known}
        sizes = sizes_that_fit(length, self.picture)
        new_sizes = [size for size in sizes if size not in known_sizes]
        return smoothest_first(path, new_sizes, options.bit_order)

    def _nothing_fits(self, path: Path) -> DataError:
        """Return the error for a file that no size fits."""
        if self.picture is None:
            return no_geometry(path)
        return DataError(
            what=f"no size of the picture's shape fits {path.stat().st_size} bytes",
            where=str(path),
            expected=f"whole planes; tried: {self.tried()}",
            do="give --size H W; leave --picture out if the cameras have different views",
        )
