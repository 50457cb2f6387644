"""Results, tables, figures and pages, all from the contents of run directories.

Nothing here trains, scores or changes a run.
"""
