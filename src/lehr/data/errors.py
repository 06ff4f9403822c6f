"""What goes wrong with data: a file on disk (`DataError`), or its way here (`DownloadError`)."""


class DataError(Exception):
    """A file of a data set is missing, damaged or not what its name says."""


class DownloadError(DataError):
    """A file could not be fetched."""
