"""Make clips of RGB frames and spikes from videos or photographs.

Modules with the steps of scripts/prepare_gopro_spike.py:

    recipe.py         has the settings of made clips
    sources.py        finds the videos and photographs from which clips are made
    clip_plan.py      checks a clip before anything is written
    prepare.py        makes one clip
    fast_video.py     makes a clip from a fast video, without a rig (a pair of simulated cameras)

Modules that compute the light that the cameras see:

    video_parts.py    finds the parts of a video that can be interpolated
    video_scene.py    computes the light of such a part
    light_path.py     interpolates the light between the frames of a video
    photo_scene.py    computes the light of a photograph in motion
    photo_layers.py   draws this motion
    smooth_walk.py    draws a smooth random motion
    frame_light.py    turns the values of a picture into linear light
"""
