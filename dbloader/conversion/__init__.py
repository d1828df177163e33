"""Make stores from files or samples.

``file_to_record`` (with ``transcode``) and ``sample_to_record`` make records. ``convert`` stores the
records of files, in this process (``convert_files``) or on many machines (``parts``). ``write_store``
stores the records of samples.
"""
