"""What a package index shows of us: the README, without the links that lead nowhere outside the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")


def without_dead_links(text: str) -> str:
    """A page of docs is named as its command, other files by their words alone."""

    def plain(link: re.Match[str]) -> str:
        page = re.fullmatch(r"docs/([\w./-]+)\.md(?:#.*)?", link[2])
        return f"{link[1]} (`backstop docs {page[1]}`)" if page else link[1]

    return _LINK.sub(plain, text)


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_dead_links(text)}
