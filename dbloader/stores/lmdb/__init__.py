"""Keep a store in one LMDB file."""
