"""Parts of the programs in scripts/. A part imports no program of scripts/.

A folder has the parts of the program with its name. Other programs may use them, too: `calibrate`,
`show_sample` and app.py read spike files with the parts of `spike_tool`.

    exit_codes.py         how a program ends, and shows its progress
    default_output.py     where a file without a given name is written

    spike_tool/           spike files: their size, their pictures, simulated spikes
    calibrate/            position and time of two cameras that see the same scene
    compare_runs/         tables of training runs, and of tests
    show_sample/          the page of a sample
    convert_options/      option files of S-VRT
    prepare_gopro_spike/  clips from videos, with data/making/
    doctor/               checks of host, ranks and training, and failures in a log
    make_sample_data/     the scene of a made clip
    torchrun_quiet/       ranks of one host

    uploaded_clip.py      for app.py: checks the files of a visitor, and restores them
"""
