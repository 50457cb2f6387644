"""Who is scored on what, and the numbers that come of it."""
