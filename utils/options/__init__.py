"""Option files and the command line, from text to typed options.

load.py            the way: file, base, command line, typed options
option_file.py     reads a file and its base; key_lines.py finds the line of a key
command_line.py    flags of a training; foreign_flags.py knows flags of other programs
override.py        section.key=value
typed.py           checks all sections, adds defaults

models.py          all option keys but those of parts
section.py         `Section`, the keys of a section
registry.py        parts whose parameters are options

sources.py         where each option came from
type_words.py      types and ranges in words
secrets.py         hides secrets
"""
