"""What papers claim, as data, and whether it shows: entries, runs, verdicts, the table.

``fedshift claims`` is its command. Nothing here trains: runs are made by ``experiment``.
"""
