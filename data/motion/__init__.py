"""The motion within an exposure, found in the spikes, and the sharp frame computed along it.

The modules in the order in which a frame meets them:

    what was recorded     recording.py reads a clip (RecordedClip), by exposure.py (Recording: the
                          blurry frame and all spikes of an exposure), view.py (where spike pixels
                          lie on the frame), gain.py (spikes per plane at full light) and light.py
    is there a motion     stillness/
    the motion            shifts.py (Motion), found by finder.py: optical flow (flow.py,
                          spike_pictures.py, curves.py), or a network (learned.py,
                          network_inputs.py, spike_windows.py)
    the sharp frame       joint/ has the equations of both cameras, bands.py divides large frames
    all together          restorer.py, for two methods of main_test_vrt.py: joint_method.py
                          (its options: joint_options.py) and learned_method.py, which
                          learned_fusion.py makes from weights
    pictures of a motion  drawing.py
"""
