"""Which method restores best: the parts of lab/quality.py, which compares methods.

What is compared, and how it is made.

    sources.py    the videos and photographs, and how they were divided
    sets.py       the sets of clips that are made from them, for training and for testing
    methods.py    an option file, as it is trained here
    programs.py   runs a program of the project, with a log

What comes out.

    runs.py       trains and tests a method, and finds the results of finished runs
    moving.py     the score of moving pixels
    outcomes.py   means of scores, and how far they may be off
    tables.py     the tables of the report
"""
