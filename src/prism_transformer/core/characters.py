"""Names as they may be shown: a terminal, an SVG file or a page must not obey what is in them."""

from __future__ import annotations

import unicodedata

# Control characters, marks that turn the direction of text, halves of a pair, and what is no
# character: a name that holds one was made to deceive, or is damaged.
HIDDEN = {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}
KEPT = "\n\t"  # in text of several lines


def visible(text: str, keep: str = "") -> str:
    r"""The same text with an escape, as in ``\x1b``, for every character that is not seen.

    ``keep`` are characters that stay: a message may have lines, a name has none.
    """
    if text.isprintable():  # nearly always; blanks count as printable
        return text
    return "".join(
        each.encode("unicode_escape").decode()
        if each not in keep and unicodedata.category(each) in HIDDEN
        else each
        for each in text
    )
