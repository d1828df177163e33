"""Make stores from files or samples.

Records are made by ``file_to_record`` (with ``transcode`` and ``resize``) and ``sample_to_record``. ``convert`` writes
those of files, in this process (``convert_files``, ``parallel``) or in ``parts`` on many machines. ``write_store``
writes those of samples.
"""
