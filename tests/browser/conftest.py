"""A browser for the tests of pages."""

import shutil

import pytest

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = CHROMIUM if shutil.which(CHROMIUM) else shutil.which("chromium")
    assert path, "There is no Chromium on this machine: make browser"
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()
