"""From data to a method: what is in the data, and which method to begin with."""
