"""How samples are dealt out: train/val/test splits, partitions over clients, label skew."""
