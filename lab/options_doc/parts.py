"""List the parts that an option file can name, and the first line of the three documents.

A part is a class or a function. An option file chooses a part by its name, e.g. a network or a
loss. A registry has all parts of one kind, e.g. all networks.

Free to add: a registry in PARTS. Its key is the key of an option file that names such a part.
"""

import pydantic

from data.augment import CAMERAS
from data.cameras.representation_section import REPRESENTATIONS
from data.cameras.spike_source import SPIKE_SOURCES
from data.clips.io_backend import IO_BACKENDS
from data.select_dataset import DATASETS
from models.fusion.operators import FUSIONS
from models.losses import LOSSES
from models.select_network import NETWORKS

# The first line of the three documents. The line says what to edit in place of the documents.
MARK = "Written by lab/make_options_doc.py; edit the models and docstrings instead."
MADE_WITH = f"pydantic {pydantic.VERSION.rpartition('.')[0]}"  # e.g. "pydantic 2.11", not 2.11.7
# Where an option file names a part -> the registry of such parts. The section "train" names a loss.
PARTS = {
    "netG": NETWORKS,
    "netG.fusion": FUSIONS,
    "datasets.train, datasets.test": DATASETS,
    "datasets.*.spike": SPIKE_SOURCES,
    "datasets.*.spike.representation": REPRESENTATIONS,
    "datasets.*.camera": CAMERAS,
    "datasets.*.io_backend": IO_BACKENDS,
    "train": LOSSES,
}
