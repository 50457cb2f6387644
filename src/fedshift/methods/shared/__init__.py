"""Ideas that more than one method uses."""
