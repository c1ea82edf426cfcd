"""Text of a stranger's answer, in the charset that the stranger names."""

from __future__ import annotations

_CHARSETS = frozenset(
    "utf-8 utf8 us-ascii ascii utf-16 utf-16le utf-16be utf-32 iso-8859-1 latin1 "
    "latin-1 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7 "
    "iso-8859-8 iso-8859-9 iso-8859-10 iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16 "
    "windows-1250 windows-1251 windows-1252 windows-1253 windows-1254 windows-1255 "
    "windows-1256 windows-1257 windows-1258 windows-874 cp1252 koi8-r koi8-u macintosh "
    "big5 euc-jp euc-kr gb2312 gbk gb18030 shift-jis iso-2022-jp".split()
)
"""The charsets of the WHATWG's standard, some by other usual names. Python has codecs
beside them that take quadratic time, or make no text."""


def decoded(data: bytes, charset: str) -> str:
    """Return a text; what cannot be decoded is replaced by U+FFFD.

    Args:
        data: The bytes.
        charset: The name that a stranger gives; UTF-8 is read in place of one that is
            not known.
    """
    known = charset.lower().replace("_", "-") in _CHARSETS
    return data.decode(charset if known else "utf-8", "replace")
