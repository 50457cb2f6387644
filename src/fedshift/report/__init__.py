"""Tables, figures and pages from run directories."""
