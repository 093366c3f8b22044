"""The version, kept in one place: the project's metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cosd-api")
except PackageNotFoundError:  # run from a source folder that was never installed
    __version__ = "0+unknown"
