"""The command line: one file per verb, heavy imports inside the verb."""
