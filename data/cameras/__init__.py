"""Which spike pixel and which plane (read-out) show the same as a pixel of a frame.

Read the spikes of a sample.

    spike_source.py           the options `spike`
    channels_of_frame.py      from spike files to the channels of a frame
    representation_section.py the options `spike.representation`
    dataset_info.py           reads dataset.json
    agreed_values.py          one value from option and dataset.json
    user_spikes.py            how a user's own spikes are read
    measured_rate.py          firing rate at full light, from a frame
    spike_errors.py           errors of data/spike as errors of the project

Find the planes of a frame.

    frame_planes.py           the planes of each frame of a clip, and their check
    timing.py                 which planes are read for a frame
    exposures.py              the option `spike.exposure`
    frame_times.py            times of frames; name_times.py reads them from names
    unknown_planes.py         refuses clips whose times are doubtful
    context_planes.py         planes before and after the exposure
    sharp_plane.py            the plane of the sharp frame

Put spike channels onto the pixels of a frame.

    spike_grid.py             what a grid and a window are
    scaled_grid.py            both cameras have the same view
    calibrated_grid.py        two views; calibrated_window.py interpolates a crop
    covered_region.py         the part of a frame that both see
    sharp_image.py            a picture of the channels, for people

Calibrate two cameras.

    calibration.py            reads and writes a calibration
    self_calibration.py       calibrates from a clip itself
    registration/             fits view and time to clips

Simulate two cameras.

    rig.py                    a pair of cameras; rig_values.py names their values
    rgb_camera.py             from light to a blurry frame
    spike_view.py             where and when the spike camera looks
"""
