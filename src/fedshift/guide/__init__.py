"""From data to a method: what people ask before their first run.

``doctor`` says what is in the data and how sites differ, ``first_run`` writes a run file by a rule
of thumb, ``advise`` measures which method to take. People call them through ``fedshift`` and the
command line. Nothing here may look at test data before a choice is made.
"""
