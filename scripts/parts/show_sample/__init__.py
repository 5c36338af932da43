"""Parts of scripts/show_sample.py.

sample_read.py        reads the sample
sample_page.py        the records that the page is made from
sample_facts.py       how the sample was drawn, in words
sample_sections.py    frames and spike channels
sample_edges.py       edges of the spikes over a frame
sample_motion.py      motion within an exposure
"""
