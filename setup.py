"""The description on a package index: the README, where it has no files beside it."""

import re
from pathlib import Path

from setuptools import setup

text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
text = re.sub(r"<img [^>]*>\n\n", "", text)
text = re.sub(r"\[([^\]]+)\]\(\1\)", r"`\1`", text)
text = re.sub(r"\[([^\]]+)\]\((?!\w+:)([^)]+)\)", r"\1 (`\2`)", text)
setup(long_description=text, long_description_content_type="text/markdown")
