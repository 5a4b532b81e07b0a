"""Extended attributes in archives: ACLs, file capabilities, and what users and systems keep beside a file.

They stand in PAX headers, ``SCHILY.xattr.NAME``, as GNU tar, star and bsdtar write and read them. Values are bytes:
what is no UTF-8 becomes surrogates and back, and the header says so (``hdrcharset=BINARY``, by `tarfile`).
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from _typeshed import StrOrBytesPath

_PREFIX: Final = "SCHILY.xattr."
_NONE: Final = frozenset({errno.ENOTSUP, errno.ENOSYS})
"""Of a file system that knows none."""


def attributes_of(target: int | Path) -> dict[str, str]:
    """Return the PAX headers for the attributes of an open file, or of a path, which is not followed.

    One that cannot be read is an error, not a gap; one that goes away meanwhile is left out.
    """
    follow = isinstance(target, int)
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NONE:
            return {}
        raise
    found = {}
    for name in names:
        try:
            value = os.getxattr(target, name, follow_symlinks=follow)
        except OSError as error:
            if error.errno == errno.ENODATA:
                continue
            raise
        found[_PREFIX + _encoded(name)] = value.decode("utf-8", "surrogateescape")
    return found


def set_attributes(path: StrOrBytesPath, headers: Mapping[str, str]) -> list[str]:
    """Set what the headers say on a path, which is not followed; return what this system did not let us set."""
    refused = []
    for header, text in headers.items():
        if not header.startswith(_PREFIX):
            continue
        name = _decoded(header.removeprefix(_PREFIX))
        try:
            os.setxattr(path, name, text.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        except OSError as error:
            refused.append(f"{name} ({error.strerror})")
    return refused


def _encoded(name: str) -> str:
    return name.replace("%", "%25").replace("=", "%3D")  # as GNU tar: an equals sign would end the name


def _decoded(name: str) -> str:
    return name.replace("%3D", "=").replace("%25", "%")
