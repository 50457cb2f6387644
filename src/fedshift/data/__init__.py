"""Everything between files on disk and batches of tensors; knows nothing of methods or transports.

``sources`` reads what others published, ``library`` prepares it once in a local store, ``dealing``
splits and partitions it over clients, and ``samples`` turns stored rows into batches. The engine
and the command line call it. Nothing here trains, sends a message or changes a source.
"""
