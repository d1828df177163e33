"""Object storage: S3, Google Cloud Storage, Azure and files on web servers."""
