"""Tables and figures of papers as data: entries, runs, and paper and ours side by side.

``fedshift reproduce`` is its command. A recipe shares its runs, and the file that keeps them, with
the claims (``fedshift.claims``): what one of them has made, the other finds. Nothing here trains;
runs are made by ``experiment``.
"""
