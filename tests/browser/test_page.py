"""The page by itself, over predictors that need no model."""

import pytest

from bert_tf.serving.app import Limits

Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
pytestmark = pytest.mark.browser

# As many code points as letters would be fewer than UTF-16 units, and fewer still than bytes.
ODD = "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 e\u0301 한국 שלום \U00020bb7"
HTML = "<b>bold</b><img src=x onerror=\"document.title='broken'\"> &amp; <script>1</script>"


def test_an_answer_after_odd_characters(fake_page):
    _, page = fake_page("question_answering")
    context = f"{ODD} red {ODD} blue {ODD}"
    page.type("#question", "blue שלום red \U00020bb7")
    page.type("#context", context)
    page.submit()
    page.result()
    for number, answer in enumerate(["blue", "שלום", "red", "\U00020bb7"]):
        page.all(".bars button")[number].click()
        assert page.raw("mark") == answer
        assert page.raw(".passage") == context
        before = page.browser.execute_script(
            "return document.querySelector('mark').previousSibling.textContent"
        )
        assert before == context[: context.index(answer)]
    assert page.all(".bars button")[4].text == "(no answer)"
    page.all(".bars button")[4].click()
    assert page.all("mark") == []
    assert page.raw(".passage") == context
    assert "-3.50" in page.one("#result .hint").text


def test_the_mark_is_scrolled_to(fake_page):
    _, page = fake_page("question_answering")
    page.type("#question", "needle")
    context = "hay \U0001f33e " * 1900 + "needle" + " hay" * 1900
    page.type("#context", context)
    page.submit()

    page.result()

    def is_in_view():
        passage, mark = page.one(".passage").rect, page.one("mark").rect
        return passage["y"] < mark["y"] < passage["y"] + passage["height"] - mark["height"]

    page.wait(is_in_view)
    assert page.raw("mark") == "needle"


def test_no_answer(fake_page):
    _, page = fake_page("question_answering")
    page.type("#question", "absent")
    page.type("#context", "Nothing here.")
    page.submit()
    assert page.texts(".answer") == ["(no answer in the text)"]
    assert page.all("mark") == []
    assert page.raw(".passage") == "Nothing here."


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("classification", {"#text": f"echo {HTML}"}),
        ("question_answering", {"#question": "bold", "#context": HTML}),
        ("masked_lm", {"#text": f"{HTML} [MASK]"}),
        ("tagging", {"#text": f"Kim {HTML}"}),
    ],
)
def test_text_is_never_html(fake_page, kind, fields):
    _, page = fake_page(kind)
    for field, text in fields.items():
        page.type(field, text)
    page.submit()
    shown = page.result()
    assert shown.find_elements("css selector", "b, img, script, i") == []
    assert "<b>" in shown.text
    assert page.browser.title == "tiny"


def test_entities_are_coloured_by_type(fake_page):
    _, page = fake_page("tagging")
    page.type("#text", f"Ann Lee saw Rome and {ODD} Paris .")
    page.submit()
    page.result()
    assert page.texts(".entity") == ["Ann Lee PER", "Rome LOC", "Paris LOC"]
    colours = [each.value_of_css_property("background-color") for each in page.all(".entity")]
    plain = page.one(".words").value_of_css_property("background-color")
    assert colours[1] == colours[2]
    assert len({plain, *colours}) == 3
    assert "שלום" in page.one(".words").text


def test_choices(fake_page):
    fake, page = fake_page("choice")
    page.type("#context", "She opens the door.")
    assert len(page.all("#choices input")) == 4
    page.one("#fewer").click()
    page.one("#fewer").click()
    assert not page.one("#fewer").is_displayed()
    page.one("#more").click()
    inputs = page.all("#choices input")
    assert len(inputs) == 3
    assert page.browser.switch_to.active_element == inputs[2]
    for place, text in zip(inputs, ["a", "a long one", "bb"], strict=True):
        place.send_keys(text)
    page.submit()
    page.result()
    assert page.texts(".answer") == ["a long one"]
    assert [name for name, _, _ in page.bars()] == ["a", "a long one", "bb"]
    assert [row.text for row in page.all(".best .name")] == ["a long one"]
    asked = {"context": "She opens the door.", "choices": ["a", "a long one", "bb"]}
    assert fake.batches == [[asked]]
    page.browser.execute_script("arguments[0].value = 'c'.repeat(20000)", inputs[0])
    page.submit()
    assert page.texts("#error") == ["Choices: 20012 characters; at most 20000 can be sent."]


def test_labels_and_a_long_list(fake_page):
    _, page = fake_page("multilabel")
    page.type("#text", "x")
    page.submit()
    assert page.texts(".answer") == ["label 0, label 1"]
    assert [each.text for each in page.all(".best .name")] == ["label 0", "label 1"]
    assert len([name for name, _, _ in page.bars() if name]) == 10
    page.one("#result summary").click()
    assert [name for name, _, _ in page.bars()] == [f"label {number}" for number in range(14)]


def test_a_number(fake_page):
    _, page = fake_page("regression")
    page.type("#text", "x")
    page.submit()
    assert page.texts(".answer") == ["0.14286"]


def test_by_the_keyboard_alone(fake_page):
    _, page = fake_page("classification")
    focus = page.browser.switch_to
    assert focus.active_element == page.one("#text")
    focus.active_element.send_keys("a good day", Keys.TAB)
    assert focus.active_element == page.one("#text_pair")
    focus.active_element.send_keys(Keys.TAB)
    assert focus.active_element == page.one("#submit")
    focus.active_element.send_keys(Keys.ENTER)
    page.finished()
    assert page.texts(".answer") == ["good"]
    assert focus.active_element == page.one("#submit")  # It has not lost the focus.
    page.type("#text", "a bad day")
    page.one("#text").send_keys(Keys.CONTROL, Keys.ENTER)
    page.wait(lambda: page.texts(".answer") == ["<b>bad</b>"])


def test_busy_then_done_and_once_only(fake_page):
    fake, page = fake_page("classification")
    fake.hold.clear()
    page.type("#text", "good")
    page.one("#submit").click()
    assert fake.entered.acquire(timeout=60)
    assert page.texts("#busy") == ["Working …"]
    assert page.one("#submit").get_attribute("aria-disabled") == "true"
    page.one("#submit").click()
    page.one("#text").send_keys(Keys.CONTROL, Keys.ENTER)
    fake.hold.set()
    page.finished()
    assert "".join(page.texts("#busy")) == ""
    assert len(fake.batches) == 1


def test_errors(fake_page):
    limits = Limits(characters=20, body_bytes=2000, timeout=2)
    fake, page = fake_page("classification", limits, errors=True)
    page.one("#submit").click()  # The field is empty: the browser says so.
    assert page.browser.switch_to.active_element == page.one("#text")
    assert page.texts("#error") == []

    page.type("#text", "\U0001f600" * 20)
    page.submit()
    page.result()
    page.type("#text", "\U0001f600" * 21)
    page.submit()
    assert page.texts("#error") == ["Text: 21 characters; at most 20 can be sent."]
    assert page.one("#error").get_attribute("role") == "alert"
    assert not page.one("#result").is_displayed()

    page.type("#text", "boom")
    page.submit()
    assert "server's log" in page.one("#error").text

    fake.hold.clear()
    page.type("#text", "slow")
    page.submit()
    assert page.texts("#error") == ["No answer within 2 seconds."]
    fake.hold.set()

    page.type("#text", "good")
    page.submit()
    page.result()
    assert page.texts(".answer") == ["good"]


def test_a_server_that_has_gone(open_page):
    from serving_fake import Fake, running

    from bert_tf.serving.app import make_app

    with running(make_app(Fake(), "tiny")) as port:
        page = open_page(port, errors=True)
    page.type("#text", "good")
    page.submit()
    assert page.texts("#error") == ["The server does not answer. Is it still running?"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("classification", {"#text": "echo " + "verylongword" * 40}),
        ("question_answering", {"#question": "longword", "#context": "x" * 300 + " longword"}),
        ("tagging", {"#text": "Kim " + "Y" * 300}),
    ],
)
def test_a_narrow_screen(fake_page, browser, kind, fields):
    size = {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        _, page = fake_page(kind)
        for field, text in fields.items():
            page.type(field, text)
        page.submit()
        page.result()
        page.one("#api summary").click()
        root = "document.documentElement"
        widths = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
        assert widths == [320, 320]
        size = browser.execute_script("return getComputedStyle(document.body).fontSize")
        assert float(size.removesuffix("px")) >= 16
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
