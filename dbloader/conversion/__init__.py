"""Write stores, from files or samples: in one process, or in parts on many machines."""
