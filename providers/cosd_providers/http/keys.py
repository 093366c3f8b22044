"""Keys and other headers: checks that they can be sent, and a filter that removes them from messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SCHEMES = {"basic", "bearer", "token"}
_KEYS = {"api-key", "authorization", "x-api-key"}


def checked_url(url: str) -> str:
    """Check that a URL is safe to show, and return it.

    Raises:
        ValueError: the URL may contain a secret.
    """
    if "@" in url:
        raise ValueError("the URL holds credentials; give the key as api_key")
    if "?" in url or "#" in url:
        raise ValueError("the URL of a server has no '?' and no '#'; give keys as api_key or headers")
    return url


def checked_headers(api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Check the headers and the key, and return the headers to send.

    White space around the key is removed, because keys are often read from files.

    Raises:
        ValueError: a header cannot be sent, or there are two keys. The message contains no value.
    """
    found = dict(headers or {})
    for name, value in found.items():
        if not _NAME.fullmatch(name):
            raise ValueError("the name of a header is empty or has characters that cannot be sent")
        if not _printable(value):
            raise ValueError(f"the value of the header {name!r} has characters that cannot be sent")
        if value != value.strip():
            raise ValueError(f"the value of the header {name!r} begins or ends with white space")
    key = (api_key or "").strip()
    if not _printable(key):
        raise ValueError("the api_key has characters that cannot be sent")
    if key:
        if sets_authorization(found):
            raise ValueError("there are both an api_key and an Authorization header; give one of them")
        found["Authorization"] = f"Bearer {key}"
    return found


def with_key(
    name: str, api_key: str | None, headers: Mapping[str, str] | None
) -> tuple[str | None, Mapping[str, str] | None]:
    """Return the key and the headers for a server that expects its key in the header `name`.

    Raises:
        ValueError: there are two keys.
    """
    if name == "Authorization" or not (api_key or "").strip():
        return api_key, headers
    if any(given.lower() in _KEYS for given in headers or {}):
        raise ValueError(f"there are both an api_key and a header that holds one; this server's is {name!r}")
    return None, {**(headers or {}), name: (api_key or "").strip()}


def sets_authorization(headers: Mapping[str, str] | None) -> bool:
    """Test whether the headers include an `Authorization` header."""
    return any(name.lower() == "authorization" for name in headers or {})


def only_keys(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that contain keys."""
    return {name: value for name, value in headers.items() if name.lower() in _KEYS}


class Strike:
    """A filter that replaces header values, and the individual words in them, with `***`. It ignores case.

    Args:
        values: possible secrets. Values and words of at most three characters are not replaced.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        parts = {part for value in values for part in (value, *value.split())}
        found = [part for part in parts if len(part) > 3 and part.lower() not in _SCHEMES]
        longest_first = sorted(found, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if found else None

    def __call__(self, words: str) -> str:
        """Return the text with `***` in place of each secret."""
        return self._pattern.sub("***", words) if self._pattern else words


def _printable(value: str) -> bool:
    return value.isascii() and value.isprintable()
