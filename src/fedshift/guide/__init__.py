"""From data to a method: what people ask before the first run.

``advise`` says which method to take after a short comparison. People call it through ``fedshift``
and the command line. Nothing here may look at test data before a choice is made.
"""
