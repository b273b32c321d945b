"""Papers put to the test: their published figures, their claims, and the suites of runs that decide on them."""
