"""Texts that act on a terminal, or hide from people what models read."""

from __future__ import annotations

ATTACKS = {
    "clears the screen": ("\x1b[2J", r"\u{1b}[2J"),
    "writes the clipboard": ("\x1b]52;c;YQ==\x07", r"\u{1b}]52;c;YQ==\u{7}"),
    "sequence of one byte": ("\x9b31m", r"\u{9b}31m"),
    "overwrites the line": ("safe\revil", r"safe\u{d}evil"),
    "deletes what stood": ("rm\x08\x08ls", r"rm\u{8}\u{8}ls"),
    "delete": ("\x7f", r"\u{7f}"),
    "NUL": ("a\0b", r"a\u{0}b"),
    "reorders": ("\u202egpj.exe", r"\u{202e}gpj.exe"),
    "isolates": ("\u2066x\u2069", r"\u{2066}x\u{2069}"),
    "Arabic mark": ("\u061c", r"\u{61c}"),
    "zero width space": ("ad\u200bmin", r"ad\u{200b}min"),
    "zero width joiner": ("a\u200db", r"a\u{200d}b"),
    "word joiner": ("a\u2060b", r"a\u{2060}b"),
    "byte order mark": ("\ufeffa", r"\u{feff}a"),
    "soft hyphen": ("a\u00adb", r"a\u{ad}b"),
    "line separator": ("a\u2028b", r"a\u{2028}b"),
    "paragraph separator": ("a\u2029b", r"a\u{2029}b"),
    "next line": ("a\x85b", r"a\u{85}b"),
    "tags that spell for models": ("\U000e0041\U000e007f", r"\u{e0041}\u{e007f}"),
    "variation selectors": ("a\ufe00b\U000e0100", r"a\u{fe00}b\u{e0100}"),
    "Mongolian selector": ("\u180b\u180f", r"\u{180b}\u{180f}"),
    "Hangul fillers": ("\u3164\u115f\u1160\uffa0", r"\u{3164}\u{115f}\u{1160}\u{ffa0}"),
    "Khmer vowels": ("\u17b4\u17b5", r"\u{17b4}\u{17b5}"),
    "grapheme joiner": ("a\u034fb", r"a\u{34f}b"),
    "private use": ("\ue000\U000f0000", r"\u{e000}\u{f0000}"),
    "unassigned": ("\u0378\ufff0", r"\u{378}\u{fff0}"),
    "half of a pair": ("a\ud800", r"a\u{d800}"),
    "byte of a file name": ("\udc9b", r"\u{dc9b}"),
}
"""Each attack as it comes, and as it is to be shown."""
