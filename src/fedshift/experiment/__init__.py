"""From words to results: one run, many runs side by side, and who listens to them."""
