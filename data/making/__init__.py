"""Make clips of RGB frames and spikes from video or photographs.

prepare.py        the steps of scripts/prepare_gopro_spike.py, e.g. the mean of raw frames
video_parts.py    which parts of a video can be interpolated
video_scene.py    the light of such a part; light_path.py interpolates between its frames
photo_scene.py    the light of a photograph in motion; photo_layers.py draws the motion
smooth_walk.py    a smooth random motion
frame_light.py    linear light of the values of a picture
"""
