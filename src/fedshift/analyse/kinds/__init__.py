"""The kinds of analyses of finished runs, one file each; ``analyse.registry`` finds them."""
