"""Papers put to the test: their published figures, their claims, and the grids of runs that decide on them."""
