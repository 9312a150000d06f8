"""Takes pictures of a report's first screen, light and dark, for the README.

python docs/figures/report.py unmdpo-demo/report.html        needs a Chromium (`make browser`)

Run it where the demo ran: paths are shown from there, and those of the package from its folder.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

import unmdpo

HERE, SIZE = Path(__file__).parent, {"width": 1240, "height": 860}


def main(report: Path) -> None:
    text = report.read_text("utf-8")
    for folder in (Path.cwd(), Path(unmdpo.__file__).parents[1]):
        text = text.replace(f"{folder}/", "")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.set_content(text)
            page.screenshot(path=HERE / name)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
