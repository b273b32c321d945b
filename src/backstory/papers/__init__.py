"""Papers under test: their published figures, their claims, and the suites of runs that test them."""
