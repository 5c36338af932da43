"""Choose from where a dataset reads the frames and spikes of its clips (option `io_backend`).

    "disk"    PNG or JPEG files and spike files           data/clips/disk_files.py
    "lmdb"    databases of frames and spikes              data/clips/disk_files.py
    "cache"   every clip as raw arrays, nothing decoded   data/clips/clip_cache.py

Each class has three methods, which data/clip_reading.py calls:

    clips(source)   lists the clips of a data root
    images(...)     reads crops of frames
    stream(...)     reads planes of a spike file

What must stay:

* the names, because option files have them,
* the numbers: all classes return the same numbers for the same data, because a run may be resumed
  with another io_backend (test_a_cache_gives_the_samples_of_the_files,
  test_an_lmdb_of_frames_gives_the_samples_of_the_files).

Free to add: a class with these three methods. Register it at the end of this file.

Tests: tests/parts/data/test_io_backend.py, tests/parts/data/test_clip_cache.py
"""

from data.clips.clip_cache import CacheReader
from data.clips.disk_files import DiskFiles, LmdbFiles
from utils.options.registry import Registry

IO_BACKENDS = Registry("io backend", "type")
# given: names of arguments that the data set passes to the constructor. `cache_data` is such an
# argument, because it is a key of the data set and not of io_backend.
IO_BACKENDS.register("disk", given=("cache_data",))(DiskFiles)
IO_BACKENDS.register("lmdb", given=("cache_data",))(LmdbFiles)
IO_BACKENDS.register("cache")(CacheReader)
