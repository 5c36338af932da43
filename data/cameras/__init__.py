"""Handle the geometry and the timing of two cameras: the RGB camera and the spike camera.

Geometry and timing say which spike pixels and which planes show the same light as a pixel of a
frame. A plane is one read-out of the spike camera.

Modules that read the spikes of a sample:

    spike_source.py            the options `spike`
    channels_of_frame.py       from spike files to the channels of a frame
    representation_section.py  the options `spike.representation`
    dataset_info.py            reads dataset.json
    agreed_values.py           the values that an option or dataset.json may give
    user_spikes.py             how a user's own spikes are read
    measured_rate.py           measures the firing rate at full light from a frame
    spike_errors.py            turns the errors of data/spike into errors of the project

Modules that find the planes of a frame:

    frame_planes.py            the planes of each frame of a clip, and their check
    timing.py                  which planes are read for a frame
    exposures.py               the option `spike.exposure`
    frame_times.py             the times of frames
    name_times.py              reads the times of frames from their names
    unknown_planes.py          refuses clips whose times are doubtful
    context_planes.py          planes before and after the exposure
    sharp_plane.py             the plane of the sharp frame

Modules that put spike channels onto the pixels of a frame:

    spike_grid.py              what a grid and a window are
    scaled_grid.py             the grid if both cameras have the same view
    calibrated_grid.py         the grid if the spike camera has a view of its own
    calibrated_window.py       interpolates a crop for calibrated_grid.py
    covered_region.py          the part of a frame that both cameras see
    sharp_image.py             a picture of the channels, for people

Modules that calibrate two cameras:

    calibration.py             reads and writes a calibration
    self_calibration.py        calibrates the cameras from a clip itself
    registration/              fits the view and the time to clips

Modules that simulate two cameras:

    rig.py                     a pair of cameras
    rig_values.py              the values of named and of random pairs
    rgb_camera.py              from light to a blurry frame
    spike_view.py              where and when the spike camera looks
"""
