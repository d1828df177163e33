"""Whether a store is right: verify, compare and repair it, and find images that are in it twice."""
