"""The page over trained models: what a person types, and what they then see."""

import contextlib

import pytest
from predictor_folders import INSTANCES, write_folder
from serving_fake import running

pytestmark = pytest.mark.browser


@contextlib.contextmanager
def served(folder):
    """Yields the predictor of a folder, and the port that it is served at."""
    from bert_tf import predictor
    from bert_tf.serving.app import make_app

    model = predictor.load(folder)
    with running(make_app(model, "tiny")) as port:
        yield model, port


def percent(value):
    return f"{100 * value:.1f}%"


def check_bars(found, expected):
    """Checks bars against [(name, probability)]."""
    assert [(name, number) for name, number, _ in found] == [
        (name, percent(value)) for name, value in expected
    ]
    for (_, _, width), (_, value) in zip(found, expected, strict=True):
        assert width == pytest.approx(value, abs=0.02)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, browser):
    """A classifier that run_classifier.py trained: "good" is pos, "bad" is neg."""
    from classifier_runs import main, model_flags, write_model, write_sentiment

    folder = tmp_path_factory.mktemp("classifier")
    (folder / "model").mkdir()
    model = write_model(folder / "model")
    data = write_sentiment(folder / "data")
    main(
        "--task_name=TSV",
        f"--data_dir={data}",
        f"--output_dir={folder / 'run'}",
        *model_flags(model / "vocab.txt", model / "bert_model.ckpt"),
        "--do_train",
        "--train_batch_size=8",
        "--num_train_epochs=20",
        "--learning_rate=1e-2",
        "--adam_bias_correction",
        "--seed=1",
    )
    return folder / "run"


def test_classification(classifier, open_page):
    with served(classifier) as (model, port):
        page = open_page(port)
        assert page.browser.title == "tiny"
        assert page.texts("#about") == ["Classifies a text or a pair of texts."]
        for text, label in (("good a b c", "pos"), ("bad d e f", "neg")):
            page.type("#text", text)
            page.submit()
            page.result()
            [expected] = model.predict_instances([{"text": text}])
            assert expected["label"] == label
            assert page.texts(".answer") == [label]
            ranked = sorted(expected["probabilities"].items(), key=lambda item: -item[1])
            check_bars(page.bars(), ranked)
        page.type("#text_pair", "good good")
        page.submit()
        pair = {"text": "bad d e f", "text_pair": "good good"}
        [expected] = model.predict_instances([pair])
        assert {name: number for name, number, _ in page.bars()} == {
            name: percent(value) for name, value in expected["probabilities"].items()
        }
        # What the page asked, for programs.
        page.one("#api summary").click()
        assert page.texts("#address") == [f"POST {page.address}v1/models/tiny:predict"]
        assert '"text_pair": "good good"' in page.raw("#request")
        assert '"probabilities"' in page.raw("#response")


def test_question_answering(tmp_path, open_page):
    folder = write_folder(tmp_path / "run", "question_answering")
    context = "Kim is in. \U0001f600 Max (\U0001f4a1) was\tgood,\n and Zoë\u0301 is not. " * 3
    asked = {"question": "who was good ?", "context": context}
    with served(folder) as (model, port):
        [expected] = model.predict_instances([asked])
        assert expected["start"] is not None
        page = open_page(port)
        page.type("#question", asked["question"])
        page.type("#context", context)
        page.submit()
        page.result()
        assert page.raw(".answer") == expected["answer"]
        assert page.raw(".passage") == context
        assert page.raw("mark") == context[expected["start"] : expected["end"]]
        shown = page.bars()
        best = expected["nbest"][: len(shown)]
        assert len(shown) > 3
        for (name, number, _), entry in zip(shown, best, strict=True):
            if name:  # Those that are folded have no text that is shown.
                assert name.split() == entry["text"].split()
                assert number == percent(entry["probability"])
        # A runner-up is marked when it is chosen.
        buttons = page.all(".bars button")
        for number in (1, 2):
            buttons[number].click()
            entry = expected["nbest"][number]
            assert page.raw("mark") == context[entry["start"] : entry["end"]]
            pressed = [button.get_attribute("aria-pressed") for button in buttons]
            assert [place for place, value in enumerate(pressed) if value == "true"] == [number]


def test_masked_lm(tmp_path, open_page):
    folder = write_folder(tmp_path / "run", "masked_lm")
    with served(folder) as (model, port):
        page = open_page(port)
        page.one("#text").send_keys("it was ")
        page.one("#mask").click()
        page.browser.switch_to.active_element.send_keys(" and [MASK] .")
        assert page.one("#text").get_attribute("value") == "it was [MASK] and [MASK] ."
        page.submit()
        page.result()
        [expected] = model.predict_instances([{"text": "it was [MASK] and [MASK] ."}])
        best = [mask["candidates"][0]["token"] for mask in expected["masks"]]
        assert page.raw(".answer") == f"it was {best[0]} and {best[1]} ."
        assert page.texts("#result h2") == ["[MASK] 1", "[MASK] 2"]
        check_bars(
            page.bars(),
            [
                (candidate["token"], candidate["probability"])
                for mask in expected["masks"]
                for candidate in mask["candidates"]
            ],
        )
        page.type("#text", "it was good")
        page.submit()
        assert "[MASK]" in page.one("#error").text
        page.browser.get_log("browser")  # It notes the 400.


def test_tagging(tmp_path, open_page):
    with served(write_folder(tmp_path / "run", "tagging")) as (model, port):
        page = open_page(port)
        words = INSTANCES["tagging"]["tokens"] * 3
        page.type("#text", " ".join(words))
        page.submit()
        page.result()
        [expected] = model.predict_instances([{"tokens": words}])
        entities = [f"{each['text']} {each['type']}" for each in expected["entities"]]
        assert page.texts(".entity") == entities
        alone = page.browser.execute_script(
            "return [...document.querySelectorAll('.words > bdi')].map((each) => each.textContent)"
        )
        inside = {
            number
            for each in expected["entities"]
            for number in range(each["first"], each["last"] + 1)
        }
        assert alone == [word for number, word in enumerate(words) if number not in inside]
        page.one("#result details summary").click()
        rows = [row.text.split() for row in page.all("#result tbody tr")]
        assert rows == [
            [token, tag, percent(value)]
            for token, tag, value in zip(words, expected["tags"], expected["probabilities"])
        ]
