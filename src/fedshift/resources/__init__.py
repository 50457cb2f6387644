"""Extra data and knowledge that scenarios may allow; ``core.resource`` finds the files here."""
