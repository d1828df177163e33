"""Make stores from files.

``file_to_record`` (with ``transcode``) makes records. ``convert`` stores them, in this process (``convert_files``) or
on many machines (``parts``).
"""
