"""Restore clips with main_test_vrt.py, or in a validation, and write the results.

Read the command line.

    request.py           the command line as a `TestRequest`
    flags.py             all flags
    refused_flags.py     refuses flags that exclude each other
    find_weights.py      finds the weights
    own_spikes.py        how a user's own spikes are read
    network_method.py    the network, and the tiles it gets

Restore.

    job.py               what is restored, how, and where to
    run_job.py           restores and scores all clips
    work_plan.py         divides frames among the ranks
    tiles/               cuts a clip into tiles and blends them

Score, and write results.

    output_folder.py     takes the folder
    earlier_results.py   compares the settings with an earlier test in the folder
    outputs.py           names of all files of a test
    finished_clip.py     writes strips, videos and scores of a clip
    clip_scores.py       scores frames
    lpips.py             LPIPS, one of the scores
    clip_videos.py       videos of a clip
    scores.py            averages, and the table
    report.py            results of all clips
    psnr_plot.py         draws the PSNR of each frame

Validate during a training.

    validation.py        restores the test split on all ranks
    validated_clip.py    restores and scores one clip

    tiling.py            the former place of tiles/, for programs of users
"""
