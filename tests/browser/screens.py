"""Every page of the console as a picture, at one cluster and at 1,000, light and dark.

Run: python -m tests.browser.screens [--clusters 1] [--only team].

They lie in docs/screens and are shown in docs/console.md, so that people see what they would get, and we what we made.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page

from tests.browser.browsing import chromium, missing
from tests.browser.test_looks import LONG_MS, SCHEMES, a_console_of

FOLDER = Path("docs/screens")
SIZE = {"width": 1280, "height": 800}
COLORS = 64
LOOKS = 6
FAILED = ("The page failed.", "Not possible.", "Nobody answers.", "It took too long.")
KINDS = {1: "one", 1000: "thousand"}


async def drawn(clusters: int, browser: Browser, folder: Path, only: str) -> None:
    with tempfile.TemporaryDirectory() as where:
        async with a_console_of(clusters, Path(where), browser) as (console, pages):
            for scheme in SCHEMES:
                async with console.window(color_scheme=scheme, viewport=SIZE) as window:
                    window.context.set_default_timeout(LONG_MS)
                    for name, path in pages.items():
                        if only in name:
                            for _ in range(LOOKS):  # the first look of a worker may take longer than a page waits
                                await window.to(path)
                                if "no answer within" not in await window.text():
                                    break
                            assert await window.page.locator("h1").inner_text() not in FAILED, path
                            await window.page.locator("h1").wait_for()
                            picture = await shot(window.page)
                            (folder / f"{name}-{KINDS.get(clusters, clusters)}-{scheme}.png").write_bytes(picture)


async def shot(page: Page) -> bytes:
    """Return a picture of the page without scrolling, in few colours."""
    await page.wait_for_timeout(150)
    image = Image.open(io.BytesIO(await page.screenshot(animations="disabled")))
    few = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    found = io.BytesIO()
    few.save(found, "PNG", optimize=True)
    return found.getvalue()


async def all_drawn(folder: Path, clusters: list[int], only: str) -> None:
    async with chromium() as browser:
        for count in clusters:
            await drawn(count, browser, folder, only)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--clusters", type=int, nargs="+", default=list(KINDS))
    parser.add_argument("--only", default="", help="pages with this in their name")
    given = parser.parse_args()
    if lacking := missing():
        raise SystemExit(f"not installed: {', '.join(lacking)} (make packages)")
    given.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(all_drawn(given.folder, given.clusters, given.only))


if __name__ == "__main__":
    main()
