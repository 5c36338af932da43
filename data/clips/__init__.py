"""The files of clips: where they are, whether they are complete, and how they are read.

A data root is a folder with a folder for each clip. Modules that list the files of a data root:

    source.py           names the folders of a root (`Source`); `Problem` is a fault of the data
    meta_file.py        reads the list of its clips, the meta file
    data_root.py        lists all clips of a root; clip_folder.py lists one folder
    lmdb_root.py        lists all clips of an LMDB; lmdb_database.py opens the LMDB, and
                        lmdb_sizes.py finds the sizes of its values
    listed_files.py     the result: names, sizes and times of change of files
    joined_errors.py    makes one error of several errors
    threads.py          looks up, reads or makes many files at once

Modules that check the data before a run:

    preflight.py        checks all roots
    root_check.py       checks one root, file by file; manifest.py checks it by names and sizes
    look.py             opens each file once
    clip_check.py       checks one clip, with frame_files.py, frame_names.py, spike_planes.py and
                        clip_problems.py
    spike_check.py      compares spikes with frames
    kept.py             stores the result for later starts
    stored_arrays.py    reads the stored file; column_check.py checks its values
    unchanged_data.py   says whether the data are still the same as when the result was stored

Modules that keep the clips of large data sets in little memory:

    columns.py          the arrays; table_builder.py fills them, table.py reads clips from them
    clip_lists.py       gives properties of all clips; ranges.py finds numbers in ranges

Modules that read frames and spikes:

    io_backend.py       the choice: disk_files.py with shared_images.py, or clip_cache.py
    cache_builder.py    builds a clip cache; cache_format.py has the form of its files
    file_content.py     reads the bytes of a file; a failed read is not tried again
    pictures.py         decodes pictures; picture_losses.py says what is lost

Modules for the clips of a user, and for the clips of a test:

    clip_reader.py      finds the clips of a user; user_clip.py matches the files of one clip
    user_folders.py     finds pictures and films in a folder; user_frames.py reads them
    user_spike_files.py finds the spike files of a user
    film_times.py       finds when the frames of a film were taken
    readers.py          the clips of a test set, frame by frame; content.py makes a digest of them
    sample_check.py     refuses what a user's data set returns if it is not a sample or frame
"""
