"""Parts of scripts/compare_runs.py.

table.py              a table to print
tables_of_runs.py     scores of training runs, and their options that differ
table_of_tests.py     scores of tests on the same frames
"""
