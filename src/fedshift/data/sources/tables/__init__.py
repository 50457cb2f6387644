"""Tables as people have them: read, understood, prepared and replayed.

``reading`` opens files, ``schema`` holds what the user says about them, ``roles`` finds what each
column is, ``targets`` turns labels into classes or numbers, ``statistics`` and ``preparation`` turn
cells into vectors, and ``federated`` puts it together for all sites of a dataset.
"""
