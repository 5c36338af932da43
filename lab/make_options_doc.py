"""Write the documents of all options: docs/options.md, docs/zh/options.md, options/schema.json.

    python lab/make_options_doc.py

These documents are made from the option models (`Options` in utils/options/models.py and its
sections) and from the registered parts. A part is a class that an option file names, e.g. a network
or a dataset. The section that names a part has the parameters of the part as keys
(utils/options/registry.py).

docs/zh/options.json has the translations. Its keys are the English texts: each paragraph of a
docstring, and each description of an option. Its values are the Chinese texts.

options/schema.json is a JSON Schema. An option file names it with "$schema", so that editors
complete and check the keys, and show their meaning.

lab/options_doc/ has a module for the pages, page.py, and a module for the schema, schema.py.

What must stay: the schema accepts every option file of this project. The pages keep their headings,
because other pages link to the headings. Free to change: the form of the pages.

Tests: tests/parts/utils/test_option_files.py fails if one of the three files is not what this
program writes now. So run this program after a change, and look at `git diff`. Tests of the schema,
e.g. test_the_schema_finds_a_wrong_key_or_type, read the written file.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.options_doc.page import CHINESE, make_page
from lab.options_doc.schema import make_schema
from lab.tools import ROOT
from utils.files import write_whole


def main() -> None:
    """Write the two pages and the schema."""
    pages = {
        "docs/options.md": make_page(),
        "docs/zh/options.md": make_page(CHINESE),
        "options/schema.json": make_schema(),
    }
    for name, text in pages.items():
        write_whole(ROOT / name, text.encode())


if __name__ == "__main__":
    main()
