"""Find the records of a store by a query."""
