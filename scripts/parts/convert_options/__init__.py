"""Parts of scripts/convert_options.py, which converts an option file of S-VRT.

option_yaml.py            reads a YAML file
dotted_keys.py            sections, and dotted keys
svrt_conversion.py        the options while their keys change, and what is reported
svrt_dropped.py           keys that are left out
svrt_splits.py            data sets, except their spikes
svrt_spikes.py            spikes
svrt_representation.py    how spikes become channels
svrt_network.py           network and training
option_problems.py        all problems in one error
"""
