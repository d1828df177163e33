"""Every error that dbloader raises on purpose.

DBLoaderError
├── PlaceError              (ValueError)         a place is neither a path nor a usable URI
├── StoreError
│   ├── StoreNotFoundError  (FileNotFoundError)  nothing is at the place
│   ├── StoreExistsError    (FileExistsError)    something is there already
│   ├── StoreLockedError    (BlockingIOError)    another process is writing there
│   ├── StoreAccessError    (PermissionError)    the place may not be read or written
│   ├── StoreFullError      (OSError)            the disk is full
│   ├── StoreUnreachableError (ConnectionError)  no server answers at the place
│   ├── NotAStoreError      (ValueError)         the place holds no finished dbloader store
│   ├── StoreVersionError   (ValueError)         a newer format than this version knows
│   └── DamagedStoreError   (ValueError)         cut short or corrupted
├── RecordError
│   ├── FieldError          (TypeError)          a value that a record cannot hold
│   ├── RecordNotFoundError (KeyError)           no record has this name
│   ├── RecordIndexError    (IndexError)         no record has this index
│   └── DamagedRecordError  (ValueError)         the stored bytes are not those that were written
├── ImageError
│   ├── NotAnImageError     (ValueError)         no known image format
│   ├── NotTiledError       (ValueError)         a JPEG without tiles
│   ├── PixelRangeError     (ValueError)         values of unknown range, such as floats
│   └── DamagedImageError   (ValueError)         data of the image is missing or corrupted
├── SourceError             (ValueError)         a folder or listing that cannot be converted
│   └── SourceNotFoundError (FileNotFoundError)  there is no such folder or listing
├── ConversionError         (RuntimeError)       a bad file ended the conversion, as its options ask
├── ExportError             (OSError)            files cannot be written, or cannot hold a record
├── LoaderError             (RuntimeError)       the loader would hang or silently lose batches
└── OptionError             (ValueError)         an option is out of its range, or two exclude each other

Each can be made from one string, so that it survives the way out of a DataLoader worker.
"""


class DBLoaderError(Exception):
    """The base of all errors that dbloader raises on purpose."""


class PlaceError(DBLoaderError, ValueError):
    """The place is neither a path nor a usable URI."""


class StoreError(DBLoaderError):
    """An error about a store."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """Nothing is at the place."""


class StoreExistsError(StoreError, FileExistsError):
    """Something is at the place already and may not be replaced."""


class StoreLockedError(StoreError, BlockingIOError):
    """Another process is writing to the place."""


class StoreAccessError(StoreError, PermissionError):
    """The place may not be read or written."""


class StoreFullError(StoreError, OSError):
    """The disk is full."""


class StoreUnreachableError(StoreError, ConnectionError):
    """No server at the place answers, or none that can do what was asked."""


class NotAStoreError(StoreError, ValueError):
    """The place holds something else than a finished dbloader store."""


class StoreVersionError(StoreError, ValueError):
    """The store has a newer format than this version knows."""


class DamagedStoreError(StoreError, ValueError):
    """The store is cut short or corrupted."""


class RecordError(DBLoaderError):
    """An error about one record."""


class FieldError(RecordError, TypeError):
    """A record cannot hold the value."""


class RecordNotFoundError(RecordError, KeyError):
    """No record has this name."""

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return Exception.__str__(self)


class RecordIndexError(RecordError, IndexError):
    """No record has this index."""


class DamagedRecordError(RecordError, ValueError):
    """The stored bytes of a record are not those that were written."""


class ImageError(DBLoaderError):
    """An error about one image."""


class NotAnImageError(ImageError, ValueError):
    """The bytes are in no known image format."""


class NotTiledError(ImageError, ValueError):
    """The JPEG has no tiles, so no part of it can be decoded by itself."""


class PixelRangeError(ImageError, ValueError):
    """The values of the image have no known range, so they cannot become 8-bit pixels."""


class DamagedImageError(ImageError, ValueError):
    """Data of the image is missing or corrupted."""


class SourceError(DBLoaderError, ValueError):
    """The folder or listing cannot be converted."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """There is no such folder or listing."""


class ConversionError(DBLoaderError, RuntimeError):
    """A bad file ended the conversion, as its options ask."""


class ExportError(DBLoaderError, OSError):
    """Files cannot be written, or their format cannot hold a record."""


class LoaderError(DBLoaderError, RuntimeError):
    """The loader would hang or silently lose batches."""


class OptionError(DBLoaderError, ValueError):
    """An option is out of its range, or two exclude each other."""
