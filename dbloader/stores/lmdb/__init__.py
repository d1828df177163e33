"""A store in one LMDB file."""
