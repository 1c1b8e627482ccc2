"""Markdown, which Streamlit makes of nearly every text: labels, tooltips and cells of tables, too."""

from __future__ import annotations

import re

_JOINER = "\N{WORD JOINER}"


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-.!|$<>~:])", r"\\\1", text)
    # Addresses become links whatever is escaped in them (Streamlit 1.67), unless something stands in between.
    return re.sub(r"https?(?=\\:)|www(?=\\\.)|@", rf"\g<0>{_JOINER}", escaped, flags=re.IGNORECASE)
