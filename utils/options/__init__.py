"""Option files and the command line, from text to typed options.

key         a name in an option file, e.g. "epochs"; its dotted key is "train.epochs"
section     an object of the file with keys of its own, e.g. "train"
part        a class or function that the file chooses by its name, e.g. the network "vrt"
override    a value that the command line gives: section.key=value

load.py            reads the options of a run, with the modules below
option_file.py     reads a file and its base; key_lines.py finds the line of a key
command_line.py    flags of a training; foreign_flags.py knows flags of other programs
override.py        section.key=value
typed.py           takes one section after the other, adds defaults

models.py          `Options`, the whole file
loader_options.py, train_options.py, val_options.py, log_options.py, watchdog_options.py
                   the keys of its sections, without the keys of parts (networks, datasets, losses)
conflicts.py       refuses values that contradict one another
kair_keys.py       keys of KAIR that have no effect here
section.py         `Section`, the keys of a section; the errors for an unknown key and a wrong value
registry.py        parts whose parameters are options

sources.py         where each option came from
type_words.py      types and ranges in words
"""
