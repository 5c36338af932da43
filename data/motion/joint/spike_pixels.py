"""Map pictures from RGB pixels to spike pixels, as the spike camera sees them, and map values back.

The spike camera has a lens of its own, and its pixels cover other areas than the RGB pixels. So a
spike pixel sees the mean of a part of the frame:

    seen = D L l

    l       (H, W), a grey picture on the RGB pixels
    L       blur by the lens of the spike camera, a Gaussian
    D       mean over the area of each spike pixel, a sparse matrix
    seen    (h, w), on the spike pixels

The area of a spike pixel is sampled at m x n points, about one for each RGB pixel that it covers
(`View.points_in_pixel`). A point lies between four RGB pixels and is interpolated from them. So a
row of D has an entry for each point and each of its four RGB pixels.

One map leads back, from spike pixels to RGB pixels: `to_frame` interpolates values that are known
for spike pixels, e.g. how far each spike pixel is trusted.

For a scene in motion, the equations of an exposure take the mean at each place of the sharp frame
(`area_means`, area_means.py).

What must stay: D.

Tests: tests/parts/data/joint/test_cameras.py. With another map,
test_the_cameras_see_what_their_equations_say fails.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.joint.area_means import AreaMeans
from data.motion.joint.lens import blur, gaussian_kernel
from data.motion.joint.sampling import corners_of, grid_positions, weights_of
from data.motion.joint.sparse import product, sparse_matrix
from data.motion.view import View

# A spike pixel counts as on the frame if all of its points lie on the frame (share 1 of 1).
# The limit is a little below 1, because the mean of ones may be rounded to a value below 1.
ON_FRAME = 0.999


class SpikePixels:
    """D L: the linear map from grey pictures to what spike pixels see.

    L is the blur by the lens of the spike camera, and D the mean over the area of each spike pixel.
    The map depends only on the view, so it is made once for all frames of a clip.

    view: where the spike pixels lie on the frame, and how much the lens blurs.

    Attributes:
    view: the argument of the constructor.
    area_means: K L, the means over the area of a spike pixel at each place of the frame.
    are_on_frame: whether each spike pixel lies on the frame with all its points, (h, w) bool.
    """

    def __init__(self, view: View, device: torch.device) -> None:
        self.view = view
        height, width = view.size
        points = view.points_on_frame()  # (h m, w n, 2), x and y in RGB pixels
        positions = torch.from_numpy(points).to(device)

        # D as a matrix (h w, H W).
        entries = _entries_of_D(positions, view)
        pixel_count = height * width
        spike_pixel_count = view.plane[0] * view.plane[1]
        self._D = sparse_matrix(
            entries.spike_pixels, entries.pixels, entries.values, (spike_pixel_count, pixel_count)
        )

        # L. Sigma in RGB pixels: sigma in spike pixels, times the RGB pixels along the longer side
        # of a spike pixel. `points_in_pixel` is this number, rounded.
        sigma = view.lens_blur * max(view.points_in_pixel)
        # If the lens does not blur, the kernel is None, and L changes nothing.
        self._kernel = gaussian_kernel(sigma).to(device) if sigma > 0 else None

        self.area_means = AreaMeans(view, self._kernel, device)
        self.are_on_frame = _shares_on_frame(positions, view) > ON_FRAME
        # Where each RGB pixel lies on the spike plane, (1, H, W, 2).
        on_plane = torch.from_numpy(view.pixels_on_plane()).to(device)
        self._positions_on_plane = grid_positions(on_plane, view.plane)

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return D L of N grey pictures (N, H, W): what the spike pixels see, (N, h, w)."""
        seen = self.means(_columns_of(self._lens(pictures)))  # (h w, N)
        return seen.t().reshape(-1, *self.view.plane)

    def means(self, columns: Tensor) -> Tensor:
        """Return D of N pictures as columns: (H W, N) -> (h w, N), without a blur by the lens."""
        return product(self._D, columns)

    def to_frame(self, values: Tensor) -> Tensor:
        """Interpolate values of the spike pixels, (C, h, w), to the RGB pixels, (C, H, W)."""
        # [ ] takes the only element of the batch.
        [on_frame] = F.grid_sample(
            values[None], self._positions_on_plane, padding_mode="border", align_corners=True
        )
        return on_frame

    def _lens(self, pictures: Tensor) -> Tensor:
        """Return L of pictures (N, H, W), in the same shape."""
        if self._kernel is None:
            return pictures
        return blur(pictures[:, None], self._kernel)[:, 0]


def _columns_of(pictures: Tensor) -> Tensor:
    """Return N pictures (N, H, W) as columns, (H W, N): the right factor of a product with D."""
    # In this format of torch the N values of a pixel are side by side, as in a matrix of columns.
    # The conversion takes half of the time of `t().contiguous()`.
    side_by_side = pictures[None].contiguous(memory_format=torch.channels_last)
    return side_by_side[0].flatten(1).t()


def _shares_on_frame(positions: Tensor, view: View) -> Tensor:
    """Return the share (h, w) of the points of each spike pixel that lie on the frame.

    positions: (h m, w n, 2), x and y of all points in RGB pixels.
    """
    height, width = view.size
    x = positions[..., 0]  # (h m, w n)
    y = positions[..., 1]
    # The frame ends half a pixel beyond the middles of its outermost pixels, e.g. at -0.5.
    on_frame = (x > -0.5) & (x < width - 0.5) & (y > -0.5) & (y < height - 0.5)
    # The mean of 0 and 1 over the m x n points of each spike pixel. E.g. 3 of 4 points give 0.75.
    [shares] = F.avg_pool2d(on_frame.float()[None], view.points_in_pixel)
    return shares


class MatrixEntries(NamedTuple):
    """The entries of the matrix D (h w, H W), each field (entries,).

    Pixels are numbered row by row.
    """

    spike_pixels: Tensor  # number of the spike pixel: the row of the matrix
    pixels: Tensor  # number of the RGB pixel: the column of the matrix
    values: Tensor


def _entries_of_D(positions: Tensor, view: View) -> MatrixEntries:
    """Return the entries of the matrix D, one for each point and each of its four RGB pixels:

        entry = (weight of the RGB pixel in the point) / (number of points in a spike pixel)

    E.g. a spike pixel has two points, on the RGB pixels 4 and 5. Its row of D has the entry 1/2 in
    the columns 4 and 5: the mean of these pixels.

    Points of a spike pixel may share an RGB pixel. In this case several entries have the same place
    in the matrix, and `sparse_matrix` adds them.

    positions: (h m, w n, 2), x and y of the points on the frame. A spike pixel has m x n points.
    """
    plane_height, plane_width = view.plane
    down, across = view.points_in_pixel
    device = positions.device
    # The spike pixel of each point. E.g. with 3 points across, the columns 0 to 2 of points belong
    # to column 0 of the plane.
    row = torch.arange(plane_height * down, device=device) // down  # (h m,)
    column = torch.arange(plane_width * across, device=device) // across  # (w n,)
    spike_pixel_of_point = (row[:, None] * plane_width + column).flatten()  # (h m w n,)

    # The four RGB pixels of a point have the numbers corner + offset.
    corners = corners_of(positions, view.size)
    spike_pixels = []
    pixels = []
    values = []
    weights_of_pixels = weights_of(corners.right, corners.below)  # (4, points)
    for offset, weights in zip(corners.offsets, weights_of_pixels, strict=True):
        # If both cameras are aligned, most weights are 0. Entries of 0 are left out, so that the
        # matrix is smaller.
        is_used = weights > 0
        spike_pixels.append(spike_pixel_of_point[is_used])
        pixels.append(corners.corner[is_used] + offset)
        values.append(weights[is_used] / (down * across))
    return MatrixEntries(torch.cat(spike_pixels), torch.cat(pixels), torch.cat(values))
