"""What the author of a method reads: nets, messages, parts, methods, scenarios, both sides' data.

Nothing here starts a process, opens a file of a run or knows how messages travel; ``engine`` plays
what is described here.
"""
