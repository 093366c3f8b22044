"""The version of the library, read from the metadata of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cosd-api")
except PackageNotFoundError:  # the code runs from a source folder without installation
    __version__ = "0+unknown"
