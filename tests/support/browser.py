"""A headless Chromium (Debian's packages ``chromium`` and ``chromium-driver``) that shows report pages."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

AXE = Path(__file__).parent / "axe" / "axe.min.js"
NEEDED = "NEEDS_CHROMIUM"
"""If set, as in continuous integration, a test without Chromium fails instead of being skipped."""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """A browser tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path) -> None:
        self.driver.get(page.as_uri())

    def look(self, *, width: int = 1440, height: int = 1000, dark: bool = False) -> None:
        """Show pages in this width and colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run(self, script: str, *arguments: object) -> Any:
        """The value that JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, *arguments: object) -> None:
        """Wait until the script returns true; the test fails after ten seconds."""
        WebDriverWait(self.driver, 10).until(lambda driver: driver.execute_script(script, *arguments))

    def console(self) -> list[str]:
        """The console messages since the last call."""
        return [line["message"] for line in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def violations(self) -> list[str]:
        """The violations that axe-core finds on the page."""
        # Through the debugger, because the page's content security policy allows no further scripts.
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
        call = {
            "expression": "axe.run().then((found) => JSON.stringify(found.violations))",
            "awaitPromise": True,
            "returnByValue": True,
        }
        answer = self.driver.execute_cdp_cmd("Runtime.evaluate", call)
        found = json.loads(answer["result"]["value"])
        return [f"{item['id']}: {node['html'][:200]}" for item in found for node in item["nodes"]]

    def screenshot(self, path: Path, height: int | None = None, scale: float = 1) -> None:
        """Write the whole page, or its first ``height`` pixels, as PNG."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": scale}
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with this new, empty folder as its profile; without Chromium the test is skipped."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        if os.environ.get(NEEDED):
            pytest.fail("chromium and chromedriver are not installed: apt-get install chromium chromium-driver")
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
