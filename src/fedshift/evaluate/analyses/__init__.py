"""What can be measured of a round besides scores, one file each; ``core.analysis`` finds them."""
