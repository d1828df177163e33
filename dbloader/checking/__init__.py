"""Whether a store is right: verify and compare it, and find images that are in it twice."""
