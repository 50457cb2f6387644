"""The machinery that executes a method: client visits, server rounds, and the checks around them.

Transports, ``experiment`` and ``deploy`` call it; the author of a method never needs it. It must
never contain anything that belongs to one method: that is what parts are for.
"""
