"""Make clips of RGB frames and spikes from video or photographs.

The steps of scripts/prepare_gopro_spike.py.

    recipe.py         the settings of made clips
    sources.py        what clips are made from
    clip_plan.py      checks a clip before anything is written
    prepare.py        makes one clip
    fast_video.py     pictures (the mean of raw frames) and spikes of a clip without a rig

The light that the cameras see.

    video_parts.py    which parts of a video can be interpolated
    video_scene.py    the light of such a part; light_path.py interpolates between its frames
    photo_scene.py    the light of a photograph in motion; photo_layers.py draws the motion
    smooth_walk.py    a smooth random motion
    frame_light.py    linear light of the values of a picture
"""
