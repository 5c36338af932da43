"""The times at which a scene is drawn, and its size.

A plane is one binary picture of the spike camera. A scene has an exposure of 88 planes, and 40
planes on each side of it. tau is the time after the sharp instant, in halves of an exposure:

                                  exposure
                        |----------------------------|
    plane    -40 ... -1   0 ...      44     ...   87   88 ... 127
    tau      -1.9         -1         0            1           1.9     (about)
                                sharp instant

What must stay: an exposure has 88 planes, because `MotionNet` divides it into eleven windows of
USUAL_PLANES planes each. With another value of any number below, the same seed gives other scenes.
"""

import numpy as np

from data.motion.network_inputs import USUAL_PLANES
from models.fusion.motion_windows import EDGES

PLANES = 88  # planes of an exposure
HALF = 44  # planes of half an exposure
SHARP = 44.5  # the sharp instant, in planes from the start of the exposure: the middle of plane 44
BEFORE = 40  # planes of a scene before the exposure. The same number comes after the exposure
STEP = 2  # two planes in a row see the same light, which halves the time for drawing a scene
# The instants at which a scene is drawn, (84,), in planes after the sharp instant: the middles of
# pairs of planes. E.g. the middle of the planes -40 and -39 is 39 planes before the start of the
# exposure. So the first instant is -39 - 44.5 = -83.5.
_FIRST_PLANES = np.arange(-BEFORE, PLANES + BEFORE, STEP)  # -40, -38, ..., 126
INSTANTS = _FIRST_PLANES + STEP / 2 - SHARP
# The middles of the 15 windows of `MotionNet`, (15,), in planes after the sharp instant. The unit
# of EDGES is an eleventh of the exposure, counted from the middle of the exposure. E.g. the middle
# of the window from -0.5 to 0.5:
#
#     from the middle of the exposure      0 elevenths
#     from the start of the exposure       44 planes
#     from the sharp instant               44 - 44.5 = -0.5 planes
_EDGES = np.array(EDGES)
_MIDDLES_IN_ELEVENTHS = (_EDGES[:-1] + _EDGES[1:]) / 2
_MIDDLES_FROM_START = _MIDDLES_IN_ELEVENTHS * USUAL_PLANES + HALF  # in planes
MIDDLES = _MIDDLES_FROM_START - SHARP
SIDE = 64  # height and width of a scene, in spike pixels
# The picture of a layer is larger than the scene by this number of pixels on each side. So a part
# of the picture is outside of the scene, and can move into the scene.
MARGIN = 32
