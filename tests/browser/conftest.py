"""A browser without a window, and a page in it. Skipped where chromium or selenium is missing."""

import os
import pathlib
import shutil
import sys
import types

import pytest
from serving_fake import Fake, running

sys.path.append(str(pathlib.Path(__file__).parents[1] / "e2e"))

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="session")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver: sh tools/install_chromium.sh")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--window-size=800,900"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


class Page:
    """A page in the browser, used as a person does: by keys and clicks, read as it is shown."""

    def __init__(self, browser, port):
        self.browser = browser
        self.address = f"http://127.0.0.1:{port}/"
        browser.get_log("browser")
        browser.get(self.address)

    def all(self, css):
        return self.browser.find_elements("css selector", css)

    def one(self, css):
        [found] = self.all(css)
        return found

    def texts(self, css):
        """The texts of the elements that are shown, all read at one moment."""
        return self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter((each) => each.checkVisibility()).map((each) => each.innerText.trim())",
            css,
        )

    def raw(self, css):
        """The text of an element as it is, blanks and all."""
        return self.browser.execute_script("return arguments[0].textContent", self.one(css))

    def type(self, css, text):
        """Types a text; chromedriver has no keys for what is beyond U+FFFF: that is pasted."""
        field = self.one(css)
        field.clear()
        if all(ord(character) <= 0xFFFF for character in text):
            field.send_keys(text)
        else:
            self.browser.execute_script("arguments[0].value = arguments[1]", field, text)

    def wait(self, true):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, 60, 0.02).until(lambda _: true())

    def submit(self):
        """Presses the button and waits for the answer, be it an error."""
        self.one("#submit").click()
        self.finished()

    def finished(self):
        self.wait(
            lambda: (
                self.one("#submit").get_attribute("aria-disabled") == "false"
                and len(self.all("#result:not([hidden]), #error:not([hidden])")) == 1
            )
        )

    def result(self):
        assert self.texts("#error") == []
        return self.one("#result")

    def bars(self, inside="#result"):
        """[(name, shown number, width of the bar in parts of its track)]."""
        rows = []
        for row in self.all(f"{inside} .bars > li"):
            name, track, bar, number = (
                row.find_element("css selector", f".{part}")
                for part in ("name", "track", "bar", "number")
            )
            width = bar.rect["width"] / max(track.rect["width"], 1)
            rows.append((name.text, number.text, width))
        return rows


@pytest.fixture
def open_page(browser):
    """Opens the page at a port; at the end, checks that the browser had nothing to complain of."""
    expected = types.SimpleNamespace(errors=False)

    def open_it(port, errors=False):
        expected.errors = errors
        return Page(browser, port)

    yield open_it
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    assert expected.errors or complaints == []


@pytest.fixture
def fake_page(open_page):
    """Opens the page of a fake: (kind, limits) -> (the fake, the page)."""
    import contextlib

    from bert_tf.serving.app import make_app

    with contextlib.ExitStack() as stack:

        def serve(kind, limits=None, errors=False):
            fake = Fake(kind)
            stack.callback(fake.hold.set)
            port = stack.enter_context(running(make_app(fake, "tiny", limits)))
            stack.callback(fake.hold.set)
            return fake, open_page(port, errors)

        yield serve
