"""Every error that dbloader raises on purpose.

DBLoaderError
├── PlaceError              (ValueError)         a place is neither a path nor a usable URI
├── StoreError
│   ├── StoreNotFoundError  (FileNotFoundError)  nothing is at the place
│   ├── StoreExistsError    (FileExistsError)    something is there already
│   ├── StoreLockedError    (BlockingIOError)    another process is writing there
│   ├── StoreAccessError    (PermissionError)    the place may not be read or written
│   ├── StoreFullError      (OSError)            no room is left
│   ├── StoreUnreachableError (ConnectionError)  no server answers at the place
│   ├── NotAStoreError      (ValueError)         what is there is not a finished dbloader store
│   ├── StoreVersionError   (ValueError)         a newer format than this version knows
│   └── DamagedStoreError   (ValueError)         cut short or corrupted
├── RecordError
│   ├── FieldError          (TypeError)          a value that a record cannot hold
│   ├── RecordNotFoundError (KeyError)           no record has this name
│   ├── RecordIndexError    (IndexError)         no record has this index
│   └── DamagedRecordError  (ValueError)         stored bytes are not those that were written
├── ImageError
│   ├── NotAnImageError     (ValueError)         no known image format
│   ├── NotTiledError       (ValueError)         a JPEG that must be decoded whole
│   ├── PixelRangeError     (ValueError)         values whose range is not known, such as floats
│   └── DamagedImageError   (ValueError)         an image of which data is missing or corrupted
├── SourceError             (ValueError)         a folder or listing that cannot be converted
│   └── SourceNotFoundError (FileNotFoundError)  there is none
├── ConversionError         (RuntimeError)       a conversion ended, as its options ask, at a bad file
├── LoaderError             (RuntimeError)       going on would hang, or lose batches unnoticed
└── OptionError             (ValueError)         an option out of its range, or two that exclude each other

Each can be made from one string, so that it survives the way out of a DataLoader worker.
"""


class DBLoaderError(Exception):
    """The base of all errors below."""


class PlaceError(DBLoaderError, ValueError):
    """A place is neither a path nor a usable URI."""


class StoreError(DBLoaderError):
    """Something about a store as a whole."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """Nothing is at the place."""


class StoreExistsError(StoreError, FileExistsError):
    """Something is at the place already and may not be replaced."""


class StoreLockedError(StoreError, BlockingIOError):
    """Another process is writing to the place."""


class StoreAccessError(StoreError, PermissionError):
    """The place may not be read or written."""


class StoreFullError(StoreError, OSError):
    """No room is left for the store."""


class StoreUnreachableError(StoreError, ConnectionError):
    """No server answers at the place, or none that could do what was asked."""


class NotAStoreError(StoreError, ValueError):
    """What is at the place is not a finished dbloader store."""


class StoreVersionError(StoreError, ValueError):
    """The store has a newer format than this version knows."""


class DamagedStoreError(StoreError, ValueError):
    """The store is cut short or corrupted."""


class RecordError(DBLoaderError):
    """Something about one record."""


class FieldError(RecordError, TypeError):
    """A value that a record cannot hold."""


class RecordNotFoundError(RecordError, KeyError):
    """No record has this name."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which is unreadable for a sentence.
        return Exception.__str__(self)


class RecordIndexError(RecordError, IndexError):
    """No record has this index."""


class DamagedRecordError(RecordError, ValueError):
    """The stored bytes of a record are not those that were written."""


class ImageError(DBLoaderError):
    """Something about one image."""


class NotAnImageError(ImageError, ValueError):
    """The bytes are in no known image format."""


class NotTiledError(ImageError, ValueError):
    """A JPEG of which no part can be decoded by itself."""


class PixelRangeError(ImageError, ValueError):
    """The values of the image have no known range, so that they cannot be made pixels of 8 bits."""


class DamagedImageError(ImageError, ValueError):
    """Data of the image is missing or corrupted."""


class SourceError(DBLoaderError, ValueError):
    """A folder or listing that cannot be converted."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """There is no such folder or listing."""


class ConversionError(DBLoaderError, RuntimeError):
    """A conversion ended, as its options ask, at a bad file."""


class LoaderError(DBLoaderError, RuntimeError):
    """Going on with a loader would hang, or lose batches unnoticed."""


class OptionError(DBLoaderError, ValueError):
    """An option is out of its range, or two exclude each other."""
