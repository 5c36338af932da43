"""Compute the light of a photograph in motion, plane by plane, and the true motion of each pixel.

A plane is one read-out of the spike camera. The camera shakes, zooms, turns and tilts over the
photograph. Two pieces of the photograph are nearer than the rest, so the shake of the camera moves
them more. Each piece also has a motion of its own (data/making/photo_layers.py).

The view is the image of the camera, before it is scaled down to the made frame. It has FINE x FINE
pixels for each pixel of the made frame, and FINE is 2. A sheet is the image of a layer, i.e. of the
whole photograph or of one piece. Three steps lead from a point of the view to the point of the
sheet that it shows. In this example, the view has 384 x 384 pixels, and the zoom is 2. The point
(500, 300) of the sheet lies in the middle of the view, and is called the center:

                                                                 point of the view (212, 192)
    1. Subtract the middle of the view, here (192, 192).             (20, 0)
    2. Apply the homography C of the camera: turn, zoom, tilt.       (10, 0)
    3. Add the center.                                               (510, 300)

As a product of matrices, where T(p) adds p:

    sheet point = T(center) C(turn, zoom, tilt) T(-middle) view point

Light is linear, float32, 1 at full scale.

What must stay: every bit of the light and the order of the draws, for the same photograph and seed,
because made data sets are published, and an interrupted data set is continued later. No test
notices a change of the last bits, so compare the lights of a few seeds before and after you change
the arithmetic. If the light must change, raise VERSION in data/making/recipe.py.

Tests: tests/parts/data/test_seeds.py, tests/parts/scripts/test_prepare_gopro_spike.py
"""

from collections.abc import Iterator

import cv2
import numpy as np

from data.making.frame_light import LIGHT_OF_DISPLAY_VALUE, scale_down
from data.making.photo_layers import (
    FINE,
    NEAR_LAYERS,
    Layer,
    camera_homography,
    draw_camera,
    draw_piece,
    opacity_at,
    translation,
    whole_photograph,
)


class PhotoScene:
    """A photograph in motion: the light of each plane, and where each pixel moves.

    picture: the photograph, (H, W, 3) uint8.
    side: shorter side to which the photograph is scaled down, in pixels of the made frame. E.g.
    with side 288, the scaled photograph has a shorter side of 2 * 288 = 576 pixels, because the
    photograph is scaled to pixels of the view. A smaller photograph is not scaled.
    intervals: number of frame intervals. An interval is the time from one made frame to the next.
    planes: number of planes in an interval.
    crop: side of a made frame in pixels.
    rng: generator of the scene. First it draws the camera (`draw_camera`), then the farther piece,
    then the nearer piece (`draw_piece`).
    """

    def __init__(
        self,
        picture: np.ndarray,
        side: int,
        intervals: int,
        planes: int,
        crop: int,
        rng: np.random.Generator,
    ) -> None:
        # The photograph is scaled to pixels of the view, and turned into light: (H, W, 3).
        light = cv2.LUT(scale_down(picture, FINE * side), LIGHT_OF_DISPLAY_VALUE)
        self.crop = crop
        self.number_of_planes = intervals * planes  # P, of the whole clip
        view_side = FINE * crop

        # All random numbers are drawn here, so `lights` and `shifts` may be called in any order.
        # The order of the draws must stay, because it decides which scene a seed gives
        # (test_a_seed_gives_its_scene): first the camera, then the pieces from the farthest to the
        # nearest.
        self._camera = draw_camera(self.number_of_planes, planes, crop, rng)
        # The time of each plane in frame intervals: (P, 1). The middle of the clip is the time 0.
        # E.g. 8 intervals last from -4 to 4.
        share_of_clip = np.arange(self.number_of_planes) / self.number_of_planes  # (P,)
        time = (share_of_clip - 0.5)[:, None] * intervals
        shake = self._camera.shake
        self._layers = [whole_photograph(light, shake)]  # the farthest one first
        for depth in range(1, 1 + NEAR_LAYERS):
            piece = draw_piece(light, depth, shake=shake, time=time, view_side=view_side, rng=rng)
            self._layers.append(piece)

    def lights(self) -> Iterator[np.ndarray]:
        """Yield the light (crop, crop, 3) float32 of each plane, in the order of time."""
        size = (self.crop, self.crop)
        for plane in range(self.number_of_planes):
            canvas = self._paint(plane)
            yield cv2.resize(canvas, size, interpolation=cv2.INTER_AREA)

    def shifts(self, plane: int, other: int) -> np.ndarray:
        """Return the true motion of each pixel from one plane to a second plane.

        The point of the scene that pixel p of the made frame shows in `plane` is at p + shifts[p]
        in `other`. The pixel shows the nearest layer whose opacity is above 1/2 at p. The result is
        the shift of this layer. It stays the same if a nearer layer hides this layer in `other`.

        plane, other: numbers of two planes, from 0.
        Returns (crop, crop, 2) float32: x and y in pixels of the made frame.

        Benchmarks and tests compare with these true motions. With a wrong scale,
        test_the_true_motion_of_a_photograph_leads_from_a_plane_to_the_same_scene_in_another fails.
        The test does not notice an error of a few pixels in `points`, because the shifts of
        neighbouring points hardly differ.
        """
        in_crop = np.arange(self.crop)
        y, x = np.meshgrid(in_crop, in_crop, indexing="ij")  # (crop, crop) each
        pixels = np.stack((x, y), axis=-1)  # (crop, crop, 2)
        # The middle of each pixel of the made frame, in pixels of the view. E.g. pixel 0 of the
        # made frame covers the pixels 0 and 1 of the view. The middle of 0 and 1 is 0.5.
        points = pixels * FINE + (FINE - 1) / 2

        shifts = np.zeros((self.crop, self.crop, 2), np.float32)
        for layer in self._layers:  # a nearer layer replaces the shifts of the layers behind it
            # Points of the view in `plane` -> points of the sheet -> points of the view in `other`,
            # (crop, crop, 2) each. A sheet is the image of a layer, which moves under the view.
            plane_to_sheet = self._view_to_sheet(layer, plane)
            sheet_to_other = np.linalg.inv(self._view_to_sheet(layer, other))
            on_sheet = cv2.perspectiveTransform(points, plane_to_sheet)
            in_other = cv2.perspectiveTransform(on_sheet, sheet_to_other)
            shifts_of_layer = (in_other - points) / FINE  # in pixels of the made frame
            is_shown = opacity_at(layer, on_sheet) > 0.5  # (crop, crop)
            shifts = np.where(is_shown[..., None], shifts_of_layer, shifts)
        return shifts.astype(np.float32)

    def _paint(self, plane: int) -> np.ndarray:
        """Return the view of a plane: the light that the camera sees, (view_side, view_side, 3).

        The layers are painted from the farthest to the nearest:

            light = (1 - opacity) light_behind + light_of_layer
        """
        view_side = FINE * self.crop
        # WARP_INVERSE_MAP: the matrix leads from the result (view) to the source image (sheet).
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        canvas = np.zeros((view_side, view_side, 3), np.float32)
        for layer in self._layers:
            seen = cv2.warpPerspective(
                layer.sheet,
                self._view_to_sheet(layer, plane),
                (view_side, view_side),
                flags=flags,
                borderMode=layer.border,
            )  # (view_side, view_side, 4)
            light_of_layer = seen[..., :3]  # already multiplied by the opacity
            opacity = seen[..., 3:]  # (view_side, view_side, 1)
            canvas = canvas * (1 - opacity) + light_of_layer
        return canvas

    def _view_to_sheet(self, layer: Layer, plane: int) -> np.ndarray:
        """Return the homography (3, 3) from a point of the view to a point of a layer's sheet.

            sheet point = T(center) C(turn, zoom, tilt) T(-middle) view point

        T(p) adds p. C turns, zooms and tilts around the point (0, 0), so T(-middle) first moves the
        middle of the view to (0, 0). `center` is the point of the sheet in the middle of the view.
        """
        camera = self._camera
        view_side = FINE * self.crop
        x, y = layer.centers[plane]
        to_middle = translation(-view_side / 2, -view_side / 2)
        turn_zoom_tilt = camera_homography(
            camera.angles[plane], camera.zooms[plane], camera.tilts[plane]
        )
        to_center = translation(x, y)
        return to_center @ turn_zoom_tilt @ to_middle
