"""The documents of all options: the parts of lab/make_options_doc.py.

page.py               docs/options.md in both languages. options.md.jinja is its template
schema.py             options/schema.json, for editors
docstrings.py         where the docstring of a part explains its keys
parts.py              the registries of parts, and the first line of the documents
"""
