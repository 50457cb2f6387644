"""What the author of a method reads: nets, messages, parts, methods, scenarios, client and server.

The modules here define these nouns and the one training loop; ``engine`` executes what they
describe, and authors import them from ``fedshift`` itself. Nothing here starts a process or knows
how messages travel.
"""
