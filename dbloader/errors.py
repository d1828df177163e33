"""The errors that dbloader raises on purpose. A place is the path or URI of a store.

DBLoaderError
├── PlaceError              (ValueError)         a place is neither a path nor a usable URI
├── StoreError
│   ├── StoreNotFoundError  (FileNotFoundError)  nothing is at the place
│   ├── StoreExistsError    (FileExistsError)    something is at the place already
│   ├── StoreLockedError    (BlockingIOError)    another process is writing to the place
│   ├── StoreAccessError    (PermissionError)    the place cannot be read or written
│   ├── StoreFullError      (OSError)            the disk is full
│   ├── StoreUnreachableError (ConnectionError)  no server answers at the place
│   ├── NotAStoreError      (ValueError)         the place holds no finished dbloader store
│   ├── StoreVersionError   (ValueError)         the format is newer than this version of dbloader
│   └── DamagedStoreError   (ValueError)         the store is cut short or corrupted
├── RecordError
│   ├── FieldError          (TypeError)          a value cannot be stored in a record
│   ├── RecordNotFoundError (KeyError)           no record has this name
│   ├── RecordIndexError    (IndexError)         no record has this index
│   └── DamagedRecordError  (ValueError)         the stored bytes have changed
├── ImageError
│   ├── NotAnImageError     (ValueError)         the image format is unknown
│   ├── NotTiledError       (ValueError)         a JPEG has no tiles
│   ├── PixelRangeError     (ValueError)         the range of pixel values is unknown, for example of floats
│   └── DamagedImageError   (ValueError)         data of the image are missing or corrupted
├── SourceError             (ValueError)         a folder or listing cannot be converted
│   └── SourceNotFoundError (FileNotFoundError)  the folder or listing does not exist
├── ConversionError         (RuntimeError)       the conversion stopped, for example at a bad file
├── ExportError             (OSError)            a file cannot be written, or its format cannot contain a record
├── LoaderError             (RuntimeError)       a loader cannot go on without losing batches
└── OptionError             (ValueError)         an option is out of its range, or two options exclude each other

Each class can be made from one str: PyTorch rebuilds the error of a DataLoader worker from the class and the message.
"""


class DBLoaderError(Exception):
    """Base class of all errors that dbloader raises on purpose."""


class PlaceError(DBLoaderError, ValueError):
    """The place of a store is neither a path nor a usable URI."""


class StoreError(DBLoaderError):
    """An error about a store."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is nothing at the path or URI of a store."""


class StoreExistsError(StoreError, FileExistsError):
    """Something is at the new store's path or URI already, and dbloader does not replace it."""


class StoreLockedError(StoreError, BlockingIOError):
    """Another process is writing a store to the same path or URI."""


class StoreAccessError(StoreError, PermissionError):
    """A path or URI cannot be read or written, for example because a permission is missing."""


class StoreFullError(StoreError, OSError):
    """The disk is full."""


class StoreUnreachableError(StoreError, ConnectionError):
    """No server answers at the URI of the store, the connection fails, or the server is overloaded."""


class NotAStoreError(StoreError, ValueError):
    """There is something at the path or URI, but not a finished dbloader store."""


class StoreVersionError(StoreError, ValueError):
    """The format of the store is newer than this version of dbloader."""


class DamagedStoreError(StoreError, ValueError):
    """The store is cut short or corrupted."""


class RecordError(DBLoaderError):
    """An error about one record."""


class FieldError(RecordError, TypeError):
    """The value cannot be stored in a record."""


class RecordNotFoundError(RecordError, KeyError):
    """No record has this name."""

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return Exception.__str__(self)


class RecordIndexError(RecordError, IndexError):
    """No record has this index."""


class DamagedRecordError(RecordError, ValueError):
    """The stored bytes of a record have changed since they were written."""


class ImageError(DBLoaderError):
    """An error about one image."""


class NotAnImageError(ImageError, ValueError):
    """The image format is unknown."""


class NotTiledError(ImageError, ValueError):
    """The JPEG has no tiles that could be decoded alone."""


class PixelRangeError(ImageError, ValueError):
    """The range of the pixel values is unknown, so the values cannot be converted to 8 bits."""


class DamagedImageError(ImageError, ValueError):
    """Data of the image are missing or corrupted."""


class SourceError(DBLoaderError, ValueError):
    """The folder or listing cannot be converted."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """The folder or listing does not exist."""


class ConversionError(DBLoaderError, RuntimeError):
    """The conversion stopped, for example at a bad file."""


class ExportError(DBLoaderError, OSError):
    """A file cannot be written, or its format cannot contain a record."""


class LoaderError(DBLoaderError, RuntimeError):
    """A loader cannot go on without losing batches, for example because a worker has died."""


class OptionError(DBLoaderError, ValueError):
    """An option is out of its range, or two options exclude each other."""
