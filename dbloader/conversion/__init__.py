"""Make stores from files: ``file_to_record`` makes records, and ``convert_files`` stores them."""
