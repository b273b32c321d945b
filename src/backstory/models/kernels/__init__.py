"""Hand-written passes over a segment: the fast paths of the layers, each tested against a naive reference."""
