"""Find the motion within an exposure in the spikes, and compute the sharp frame along it.

The modules in the order in which a frame meets them:

    what was recorded
        recording.py          reads a clip (RecordedClip)
        exposure.py           the blurry frame and all spikes of an exposure (Recording)
        view.py               where the spike pixels lie on the frame
        gain.py               spikes per plane of each spike pixel at full light
        light.py              how much light an exposure has
    whether anything moves
        stillness/            pixels that stand still keep their first estimate
    the motion
        shifts.py             the shifts of all pixels (Motion)
        finder.py             chooses what finds them: optical flow, a network, or both
        flow.py               optical flow between the pictures of spike_pictures.py; curves.py
                              smooths its shifts
        learned.py            the network. Its inputs come from network_inputs.py and
                              spike_windows.py
    the sharp frame
        joint/                the equations of both cameras
        bands.py              divides large frames
    all together
        restorer.py           restores the frames of a clip, for the two methods below
        joint_method.py       `--method joint` of main_test_vrt.py; options: joint_options.py
        learned_method.py     weights with the fusion "motion"
    pictures of a motion
        drawing.py
"""
