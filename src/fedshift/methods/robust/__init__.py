"""Rules that bound what a minority of arbitrary updates can do to the model (Byzantine sites).

Each replaces the mean at the server and changes nothing at the sites. They read single updates, so
secure aggregation refuses them by name. Every site counts the same: a weight by examples is a claim
of the site's own, and a rule that believed it would have no breakdown point. BatchNorm statistics
are merged robustly too, or they would be the open door beside the guarded one; integer counters
take their median.
"""
