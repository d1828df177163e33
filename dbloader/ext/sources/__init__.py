"""Sources other than folders of images: listings, annotations, archives, tables, stores, object storage."""
