"""Write the records of a store as files for other programs."""
