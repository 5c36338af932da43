"""Parts of scripts/calibrate.py.

camera_pairs.py       reads the spikes and the frame of the same moment
camera_position.py    how two cameras lie to one another
camera_features.py    a rough position, from features of both images
camera_time.py        when frames were exposed
camera_overlay.py     an image that shows whether a calibration is right
"""
