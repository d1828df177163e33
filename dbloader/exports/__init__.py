"""Write the records of a store as files that other programs read."""
