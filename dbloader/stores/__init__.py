"""Read and write databases of records."""
