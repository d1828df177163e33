"""Find the files that become records: in folders, archives, tables, databases, stores and listings."""
