"""Find the files that become records: in a folder, or as a listing names them."""
