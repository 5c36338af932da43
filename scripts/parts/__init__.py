"""Parts of the programs in scripts/. A part imports no program of scripts/.

Of all programs.

    exit_codes.py         how a program ends, and shows its progress
    default_output.py     where a file without a given name is written

Of spike_tool.py. calibrate.py and app.py use some of them, too.

    spike_geometry.py     height, width and storage of the planes of a file
    spike_sizes.py        sizes that the length of a file allows
    spike_ranking.py      which geometry a file most likely has
    spike_info.py         prints what a file is
    spike_rendering.py    grey images of planes
    spike_views.py        pictures and videos of these images
    spike_simulation.py   spikes of a clip

Of calibrate.py.

    camera_pairs.py       reads the spikes and the frame of the same moment
    camera_position.py    how two cameras lie to one another
    camera_features.py    a rough position, from features of both images
    camera_time.py        when frames were exposed
    camera_overlay.py     an image that shows whether a calibration is right

Of show_sample.py.

    sample_read.py        reads the sample
    sample_page.py        the records that the page is made from
    sample_facts.py       how the sample was drawn, in words
    sample_sections.py    frames and spike channels
    sample_edges.py       edges of the spikes over a frame
    sample_motion.py      motion within an exposure

Of convert_options.py.

    option_yaml.py           reads a YAML file
    dotted_keys.py           sections, and dotted keys
    svrt_conversion.py       the options while their keys change, and what is reported
    svrt_dropped.py          keys that are left out
    svrt_splits.py           data sets, all but their spikes
    svrt_spikes.py           spikes; svrt_representation.py says how they become channels
    svrt_network.py          network and training
    option_problems.py       all problems in one error

Of prepare_gopro_spike.py. data/making/ makes the clips.

    clip_splits.py        which clips become test clips
    clip_checks.py        checks all clips before the first is made
    made_info.py          dataset.json
    parallel_calls.py     calls a function in parallel processes

Of doctor.py.

    doctor_checks.py      checks of host, ranks and training
    doctor_failures.py    what the failures in a log mean

Of torchrun_quiet.py.

    one_host.py           lets the ranks of one host meet without a port
    restarts.py           whether ranks are started again after a failure

Of app.py.

    uploaded_clip.py      checks the files of a visitor, and restores them
"""
