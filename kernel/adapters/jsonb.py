"""What PostgreSQL's `jsonb` refuses of JSON, and a reversible way around it (K-LOG-5, K-RUN-6).

`jsonb` keeps texts as UTF-8 without NUL, so it refuses the escapes `\\u0000` and those of lone surrogates, which
canonical JSON may hold.  Here each of them becomes the character ESC (U+001B) and four hexadecimal digits; ESC itself
is written that way as well, so that the way back is unambiguous.  Everything else is left readable for SQL.

Nothing is done about the rest of what `jsonb` changes, because `kernel.jsonform.decode` does not see it: the order of
keys, spaces, and how a number is printed.  A `numeric` holds the exact decimal value of a token and prints it in full
(`1e+21` as a one and 21 zeros), which is the nearest text to the same double; and the type follows from the value.
"""

from __future__ import annotations

import re

# One escape sequence of a JSON string, so that a backslash that is escaped itself begins none.
_TO_KEEP = re.compile(
    r"""\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}  # a pair, which is a character
        |u(?P<code>0000|001[bB]|[dD][89a-fA-F][0-9a-fA-F]{2})
        |.)""",
    re.VERBOSE,
)
_KEPT = re.compile(r"\\(?:u001b(?P<code>[0-9a-fA-F]{4})|.)")  # `jsonb` prints ESC like this


def to_jsonb(text: str) -> str:
    """Return JSON that `jsonb` takes, for JSON as `kernel.jsonform.encode` returns it."""
    if "\\u" not in text:
        return text
    return _TO_KEEP.sub(lambda match: f"\\u001b{match['code']}" if match["code"] else match[0], text)


def from_jsonb(text: str) -> str:
    """Return JSON that decodes to the same value as what `to_jsonb` was given, from what `jsonb` prints."""
    if "\\u001b" not in text:
        return text
    return _KEPT.sub(lambda match: f"\\u{match['code']}" if match["code"] else match[0], text)
