"use strict";

// The page of one model: a form by the model's kind, and what the API answers to it. All text is put
// into the page as text, never as HTML.

const { name, kind, characters } = document.body.dataset;
const address = `v1/models/${encodeURIComponent(name)}:predict`;
const get = (id) => document.getElementById(id);

// By kind: what it is in words, what the button says, how a result is shown.
const KINDS = {
  classification: ["Classifies a text or a pair of texts.", "Classify", showClasses],
  multilabel: ["Finds which labels fit a text or a pair of texts.", "Find labels", showLabels],
  regression: ["Rates a text or a pair of texts.", "Rate", showValue],
  tagging: ["Tags words.", "Tag", showTags],
  choice: ["Chooses what fits a context best.", "Choose", showChoice],
  question_answering: ["Finds the answer to a question in a text.", "Answer", showAnswer],
  masked_lm: ["Fills in what [MASK] hides.", "Fill in", showMasks],
};
const [about, action, show] = KINDS[kind];

// Longer lists are folded.
const SHOWN = 10;
const SHOWN_ANSWERS = 5;

// Elements.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// A text whose direction is its own, whatever stands around it.
const isolated = (text) => element("bdi", {}, text);

function percent(value) {
  return `${(100 * value).toFixed(1)}%`;
}

// Rows: [{label: string or element, value: 0 to 1, best: boolean}].
function bars(rows) {
  const list = element("ol", { class: "bars" });
  for (const { label, value, best } of rows) {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${100 * value}%`;
    list.append(
      element(
        "li",
        best ? { class: "best" } : {},
        element("span", { class: "name" }, typeof label === "string" ? isolated(label) : label),
        element("span", { class: "track", "aria-hidden": "true" }, bar),
        element("span", { class: "number" }, percent(value)),
      ),
    );
  }
  return list;
}

function folded(rows, limit = SHOWN) {
  const shown = [bars(rows.slice(0, limit))];
  if (rows.length > limit) {
    const more = element("summary", {}, `${rows.length - limit} more`);
    shown.push(element("details", {}, more, bars(rows.slice(limit))));
  }
  return shown;
}

function sorted(probabilities) {
  return Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
}

function heading(text) {
  return element("h2", {}, text);
}

function answerLine(...children) {
  return element("p", { class: "answer", dir: "auto" }, ...children);
}

// Results: (what was asked, what was answered) to elements.

function showClasses(asked, { label, probabilities }) {
  const rows = sorted(probabilities).map(([key, value]) => ({
    label: key,
    value,
    best: key === label,
  }));
  return [answerLine(label), ...folded(rows)];
}

function showLabels(asked, { labels, probabilities }) {
  const rows = sorted(probabilities).map(([key, value]) => ({
    label: key,
    value,
    best: labels.includes(key),
  }));
  return [answerLine(labels.length ? labels.join(", ") : "(no label)"), ...folded(rows)];
}

function showValue(asked, { value }) {
  return [answerLine(String(Number(value.toPrecision(5))))];
}

function showTags(asked, { tokens, tags, probabilities, entities }) {
  const colours = new Map();
  const colour = (type) => {
    if (!colours.has(type)) {
      colours.set(type, colours.size % 8);
    }
    return `colour-${colours.get(type)}`;
  };
  const words = element("p", { class: "words", dir: "auto" });
  const first = new Map(entities.map((entity) => [entity.first, entity]));
  for (let at = 0; at < tokens.length; at += 1) {
    const entity = first.get(at);
    if (entity) {
      words.append(
        element(
          "span",
          { class: `entity ${colour(entity.type)}` },
          isolated(tokens.slice(entity.first, entity.last + 1).join(" ")),
          " ",
          element("small", {}, entity.type),
        ),
        " ",
      );
      at = entity.last;
    } else if (entities.length === 0 && tags[at] !== "O") {
      // Tags that are no entities, such as parts of speech.
      const tag = element("small", {}, tags[at]);
      words.append(
        element("span", { class: `tagged ${colour(tags[at])}` }, isolated(tokens[at]), " ", tag),
        " ",
      );
    } else {
      words.append(isolated(tokens[at]), " ");
    }
  }
  const head = ["Word", "Tag", "Probability"].map((text) => element("th", { scope: "col" }, text));
  const body = element("tbody");
  tokens.forEach((token, at) => {
    const cells = [isolated(token), tags[at], percent(probabilities[at])];
    body.append(element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  });
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), body);
  return [
    words,
    element("details", {}, element("summary", {}, "Every word's tag"), table),
  ];
}

function showChoice(asked, { choice, probabilities }) {
  const rows = probabilities.map((value, number) => ({
    label: asked.choices[number],
    value,
    best: number === choice,
  }));
  return [answerLine(asked.choices[choice]), bars(rows)];
}

function showAnswer(asked, { answer, start, end, nbest, null_odds: nullOdds }) {
  // Offsets count code points; a string's own count is of UTF-16 units.
  const points = Array.from(asked.context);
  const passage = element("div", {
    class: "passage",
    dir: "auto",
    tabindex: "0",
    role: "region",
    "aria-label": "The text with the answer marked",
  });
  const mark = (first, last) => {
    if (first === null || first === undefined) {
      passage.replaceChildren(asked.context);
      return;
    }
    const marked = element("mark", {}, points.slice(first, last).join(""));
    passage.replaceChildren(
      points.slice(0, first).join(""),
      marked,
      points.slice(last).join(""),
    );
    // The passage scrolls; the page stays where it is.
    requestAnimationFrame(() => {
      passage.scrollTop = marked.offsetTop - passage.clientHeight / 2;
    });
  };
  const buttons = [];
  const select = (button, entry) => {
    buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    mark(entry.start, entry.end);
  };
  const rows = nbest.map((entry) => {
    const button = element(
      "button",
      { type: "button", class: "quiet", "aria-pressed": "false", title: "Mark it in the text" },
      isolated(entry.text || "(no answer)"),
    );
    button.addEventListener("click", () => select(button, entry));
    buttons.push(button);
    return { label: button, value: entry.probability, best: entry.text === answer };
  });
  mark(start, end);
  const chosen = nbest.findIndex((entry) => entry.text === answer);
  if (chosen >= 0) {
    buttons[chosen].setAttribute("aria-pressed", "true");
  }
  const shown = [answerLine(answer || "(no answer in the text)"), passage];
  shown.push(heading("Best answers"), ...folded(rows, SHOWN_ANSWERS));
  if (nullOdds !== undefined) {
    const odds = `The score of no answer, less that of the best one: ${nullOdds.toFixed(2)}`;
    shown.push(element("p", { class: "hint" }, odds));
  }
  return shown;
}

function showMasks(asked, { masks }) {
  const shown = [];
  const parts = asked.text.split("[MASK]");
  if (parts.length === masks.length + 1) {
    const line = answerLine(parts[0]);
    masks.forEach(({ candidates }, number) => {
      line.append(element("mark", {}, candidates[0].token), parts[number + 1]);
    });
    shown.push(line);
  }
  masks.forEach(({ candidates }, number) => {
    if (masks.length > 1) {
      shown.push(heading(`[MASK] ${number + 1}`));
    }
    const rows = candidates.map(({ token, probability }, rank) => ({
      label: token,
      value: probability,
      best: rank === 0,
    }));
    shown.push(bars(rows));
  });
  return shown;
}

// The form.

function setChoices(count) {
  const list = get("choices");
  while (list.children.length > count) {
    list.lastElementChild.remove();
  }
  while (list.children.length < count) {
    const label = `Choice ${list.children.length + 1}`;
    const input = element("input", { name: "choices", dir: "auto", required: "", "aria-label": label });
    list.append(element("li", {}, input));
  }
  get("fewer").hidden = count <= 2;
}

function prepareForm() {
  const template = [...document.querySelectorAll("template")].find((each) =>
    each.dataset.kinds.split(" ").includes(kind),
  );
  get("fields").append(template.content.cloneNode(true));
  get("about").textContent = about;
  get("submit").textContent = action;
  if (kind === "choice") {
    setChoices(4);
    const count = () => get("choices").children.length;
    get("more").addEventListener("click", () => {
      setChoices(count() + 1);
      get("choices").lastElementChild.firstElementChild.focus();
    });
    get("fewer").addEventListener("click", () => setChoices(count() - 1));
  }
  if (kind === "masked_lm") {
    get("mask").addEventListener("click", () => {
      const text = get("text");
      text.setRangeText("[MASK]", text.selectionStart, text.selectionEnd, "end");
      text.focus();
    });
  }
  get("form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  get("form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      get("form").requestSubmit();
    }
  });
  get("fields").querySelector("textarea, input").focus();
}

function readForm() {
  const instance = {};
  for (const field of get("form").querySelectorAll("textarea, input")) {
    if (field.name === "choices") {
      (instance.choices ??= []).push(field.value);
    } else if (field.value || field.required) {
      instance[field.name] = field.value;
    }
  }
  return instance;
}

// What is too long is said here: the server would only say so after the upload.
function tooLong(instance) {
  for (const [field, value] of Object.entries(instance)) {
    const count = Array.from([value].flat().join("")).length;
    if (count > Number(characters)) {
      const place = document.querySelector(`label[for="${field}"], #${field}`);
      const title = (place.closest("fieldset")?.querySelector("legend") ?? place).firstChild;
      return `${title.textContent.trim()}: ${count} characters; at most ${characters} can be sent.`;
    }
  }
  return null;
}

function showError(message) {
  get("error").textContent = message;
  get("error").hidden = false;
  get("result").hidden = true;
  get("api").hidden = true;
}

function setBusy(busy) {
  // A button that is disabled would lose the focus.
  get("submit").setAttribute("aria-disabled", String(busy));
  get("busy").textContent = busy ? "Working …" : "";
  get("result").setAttribute("aria-busy", String(busy));
}

async function ask(body) {
  let response;
  try {
    response = await fetch(address, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body,
    });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const text = await response.text();
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Error(`The server answered with status ${response.status} and no JSON.`);
  }
  if (!response.ok) {
    // There is one instance: its number says nothing here.
    throw new Error(String(content.error).replace(/^instances\[0\][.:] ?/, ""));
  }
  return content;
}

async function submit() {
  if (get("submit").getAttribute("aria-disabled") === "true") {
    return;
  }
  const instance = readForm();
  const long = tooLong(instance);
  if (long) {
    showError(long);
    return;
  }
  get("error").hidden = true;
  setBusy(true);
  try {
    const content = await ask(JSON.stringify({ instances: [instance] }));
    get("result").replaceChildren(...show(instance, content.predictions[0]));
    get("result").hidden = false;
    get("address").textContent = `POST ${new URL(address, document.baseURI)}`;
    get("request").textContent = JSON.stringify({ instances: [instance] }, null, 1);
    get("response").textContent = JSON.stringify(content, null, 1);
    get("api").hidden = false;
  } catch (error) {
    showError(error.message);
  } finally {
    setBusy(false);
  }
}

prepareForm();
