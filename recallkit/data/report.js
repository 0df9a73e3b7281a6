// Contents, tables, the token view, prompts and generations. It fetches nothing, and data is inserted only as text (textContent).
"use strict";

const HIDDEN = /[\p{Cc}\p{Cf}\u2028\u2029]/u;  // characters that are invisible, or change how others are displayed
const MOST_ROWS = 10;
const number = (value) => value.toLocaleString("en");
const nats = (hundredths, digits = 2) => (hundredths / 100).toFixed(digits);
const signed = (hundredths, digits = 1) => (hundredths > 0 ? "+" : hundredths < 0 ? "\u2212" : "") + nats(Math.abs(hundredths), digits);
const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const mark = (words, kind = "mark") => make("span", { class: kind }, words);

// Choices of which one holds: each is its value, its words, its class, and a number beside it (or null).
function chips(legend, name, entries, current, act) {
  const group = make("fieldset", {}, make("legend", {}, legend));
  for (const [value, words, kind, amount] of entries) {
    const input = make("input", { type: "radio", name: `filter-${name}`, value });
    input.checked = current === value;
    input.addEventListener("change", () => act(value));
    const amounts = amount === null ? [] : [make("span", { class: "amount" }, number(amount))];
    group.append(make("label", { class: "chip" }, input, make("span", { class: kind && `sample ${kind}` }, words), ...amounts));
  }
  return group;
}

const isPlain = (event) => !(event.ctrlKey || event.metaKey || event.altKey);

// ------------------------------------------------------------------------------------------------------------- contents

// Marks the section that is being read: the last one that begins in the upper third of the window.
function contents(nav) {
  const links = [...nav.querySelectorAll("a")], targets = links.map((link) => document.getElementById(link.hash.slice(1)));
  let current = null;
  const update = () => {
    const limit = window.innerHeight / 3;
    const at = window.scrollY && targets.findLastIndex((target) => target.getBoundingClientRect().top < limit);
    const isEnd = window.scrollY && window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2;
    const link = links[isEnd ? links.length - 1 : Math.max(0, at)];
    if (link === current) return;
    if (current) current.removeAttribute("aria-current");
    current = link;
    link.setAttribute("aria-current", "true");
    if (nav.scrollWidth > nav.clientWidth) nav.scrollLeft = link.offsetLeft - nav.clientWidth / 3;
  };
  addEventListener("scroll", update, { passive: true });
  addEventListener("resize", update);
  update();
}

// --------------------------------------------------------------------------------------------------------------- tables

const MOST_UNFILTERED = 12;
const SIZES = { k: 1e3, M: 1e6, B: 1e9, T: 1e12 };

// The number that a cell begins with, such as those of "1,203", "-0.5 to 2.1 %", "12.4k" or "(+1.2)"; null if it has none.
function valueOf(cell) {
  if (cell.querySelector("s")) return null;
  const found = /^\(?([-+\u2212]?[\d,]*\.?\d+(?:e[-+]?\d+)?)([kMBT]?)(?=$|[\s)%])/.exec(cell.textContent.trim());
  return found && Number(found[1].replaceAll(",", "").replace("\u2212", "-")) * (SIZES[found[2]] ?? 1);
}

// Rows are sorted by a button in each header, largest first where a column has numbers; other cells stay last, and a row of the rest.
function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const rows = [...body.rows];
      const values = new Map(rows.map((row) => [row, at ? valueOf(row.cells[at]) : null]));
      const hasNumbers = rows.some((row) => values.get(row) !== null);
      const before = head.getAttribute("aria-sort");
      const isDown = before ? before === "ascending" : hasNumbers;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      const words = (row) => row.cells[at].textContent;
      const isRest = (row) => Number(row.querySelector(".rest") !== null);
      const compare = (a, b) => {
        if (isRest(a) !== isRest(b)) return isRest(a) - isRest(b);
        const [x, y] = [values.get(a), values.get(b)];
        if (!hasNumbers) return words(a).localeCompare(words(b), "en", { numeric: true }) * (isDown ? -1 : 1);
        if (x === null || y === null) return (x === null) - (y === null);
        return isDown ? y - x : x - y;
      };
      body.append(...rows.sort(compare));
    });
  });
}

function filterable(table, place) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length <= MOST_UNFILTERED) return;
  const input = make("input", { type: "search" }), found = make("span", { role: "status" });
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const isShown = row.textContent.toLowerCase().includes(wanted);
      row.classList.toggle("off", !isShown);
      shown += isShown;
    }
    found.textContent = wanted ? `${number(shown)} of ${counted(rows.length, "row")}` : "";
  });
  place.before(make("label", { class: "filter" }, "Filter", input, found));
}

// ------------------------------------------------------------------------------------------------- where models lose most

// One model's AR hits and documents at a time; links lead to the token in the text, of that model.
function losses(section, shown) {
  const blocks = [...section.querySelectorAll(".of-model")], choice = make("select", { id: "losses-model" });
  blocks.forEach((block, index) => choice.append(make("option", { value: index + 1 }, block.dataset.name)));
  const show = (model) => { choice.value = model; blocks.forEach((block, index) => { block.hidden = index + 1 !== model; }); };
  const choose = (model) => { show(model); if (shown) shown.choose(model); };
  blocks[0].before(make("div", { class: "controls" }, make("label", {}, make("span", {}, "Model"), choice)));
  choice.addEventListener("change", () => choose(Number(choice.value)));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    const part = link && /^#losses-(\d+)$/.exec(link.hash);
    if (part) choose(Number(part[1]));  // before the browser goes to it
    else if (shown && link && link.dataset.sequence) { event.preventDefault(); shown.go(Number(link.dataset.sequence), Number(link.dataset.position)); }
    else if (shown && link && link.dataset.document) { event.preventDefault(); shown.goToDocument(Number(link.dataset.document)); }
  });
  const named = /^#losses-(\d+)$/.exec(location.hash);
  choose(named && blocks[named[1] - 1] ? Number(named[1]) : shown ? shown.model() : 1);
  if (named) document.getElementById(location.hash.slice(1)).scrollIntoView();
  return show;
}

// ----------------------------------------------------------------------------------------------------------- token view

const VERDICTS = {
  both: "both right",
  reference: "only the reference right",
  model: "only the model right",
  neither: "both wrong",
  unknown: "unknown",
};
// By how much the model's NLL is above the reference's, in nats: up to these limits, and beyond the last.
const LIMITS = [-400, -200, -100, -25, 25, 100, 200, 400];
const SHADES = {
  "shade-4": "model better by 4 nats or more",
  "shade-3": "2 to 4",
  "shade-2": "1 to 2",
  "shade-1": "\u00bc to 1",
  shade0: "equal within \u00bc",
  shade1: "\u00bc to 1",
  shade2: "1 to 2",
  shade3: "2 to 4",
  shade4: "reference better by 4 nats or more",
};
const MODES = { verdict: ["who is right", VERDICTS], shade: ["difference in NLL", SHADES] };
const SLICES = { hit: "AR hits", repeated: "repeated, not AR hits", other: "not repeated" };
const WITHOUT_COUNTS = { hit: "repeated bigrams", other: "not repeated" };

function tokenView(view, data) {
  let changed = () => {};
  const state = { model: farthest(data), excerpt: null, mode: "verdict", slice: "", verdict: "", shade: "", current: 0, tokens: [] };
  let elements = [];  // of the context's token, and of every token after it
  const stage = make("div", { class: "stage" });
  const text = make("div", { class: "text", role: "listbox", "aria-label": "Tokens of the excerpt", "aria-orientation": "horizontal" });
  const tip = make("div", { class: "tip idle", id: "tip", role: "status" });
  const summary = make("p", { class: "summary", role: "status" });
  const controls = make("div", { class: "controls" });
  const filters = make("div", { class: "filters" });
  const models = make("select", { id: "model" });
  const excerpts = make("select", { id: "excerpt" });
  stage.append(text, tip);
  view.append(controls, summary, filters, stage);

  const button = (label, title, act) => {
    const element = make("button", { type: "button", title }, label);
    element.addEventListener("click", act);
    return element;
  };
  data.models.forEach((name, index) => index && models.append(make("option", { value: index }, name)));
  models.value = state.model;
  const labelled = (words, element) => make("label", {}, make("span", {}, words), element);
  controls.append(labelled("Model", models), labelled("Excerpt", excerpts));
  controls.append(
    make("span", { class: "buttons" },
      button("‹ previous", "The excerpt before this one", () => stepExcerpt(-1)),
      button("next ›", "The excerpt after this one", () => stepExcerpt(1)),
      button(`next ${data.hit}`, "Key n in the text", () => stepHit(1))));
  function choose(model) {
    models.value = state.model = model;
    listExcerpts();
    show();
  }
  models.addEventListener("change", () => { choose(Number(models.value)); changed(state.model); });
  excerpts.addEventListener("change", () => { state.excerpt = data.excerpts[Number(excerpts.value)]; state.current = 0; show(); });

  // The list of excerpts, by the gap of this model on AR hits; the selected excerpt stays selected.
  function listExcerpts() {
    const gap = (excerpt) => excerpt.gap[state.model - 1];
    const order = data.excerpts.map((_, index) => index).sort((a, b) => gap(data.excerpts[b]) - gap(data.excerpts[a]) || a - b);
    excerpts.replaceChildren(...order.map((index) => {
      const excerpt = data.excerpts[index];
      const asked = excerpt.asked ? "requested · " : "";
      const where = `sequence ${number(excerpt.sequence)}${excerpt.first > 1 ? ` from ${number(excerpt.first)}` : ""}`;
      const source = data.sources[excerpt.spans[0][2]];
      return make("option", { value: index }, `${asked}${signed(gap(excerpt))} nats on ${counted(excerpt.hits, data.hit)} · ${where} · ${source}`);
    }));
    if (state.excerpt === null) state.excerpt = data.excerpts[order[0]];
    excerpts.value = data.excerpts.indexOf(state.excerpt);
  }

  function stepExcerpt(step) {
    const options = [...excerpts.options];
    const at = options.findIndex((option) => option.value === excerpts.value) + step;
    if (!options[at]) return;
    excerpts.value = options[at].value;
    excerpts.dispatchEvent(new Event("change"));
  }

  function show() {
    const excerpt = state.excerpt;
    hideTip();
    state.tokens = excerpt.tokens.map((_, index) => ({
      slice: sliceOf(data, excerpt, index), verdict: verdictOf(excerpt, state.model, index), shade: shadeOf(excerpt, state.model, index),
    }));
    drawSummary();
    drawFilters();
    drawText();
    dim();
  }

  function drawSummary() {
    const excerpt = state.excerpt, gap = excerpt.gap[state.model - 1];
    const name = data.models[state.model], reference = data.models[0];
    const each = excerpt.hits ? `, ${nats(Math.abs(gap) / excerpt.hits)} each` : "";
    summary.replaceChildren(
      `On the ${counted(excerpt.hits, data.hit)} among these ${counted(excerpt.tokens.length, "token")} `, make("b", {}, name),
      ` needs ${nats(Math.abs(gap), 1)} nats ${gap < 0 ? "less" : "more"} than `, make("b", {}, reference), `${each}.`);
  }

  function drawFilters() {
    const count = (key, value) => state.tokens.filter((token) => token[key] === value).length;
    const filter = (legend, key, names) => {
      const shown = Object.entries(names).filter(([value]) => value !== "unknown" || count(key, value));
      const entries = [["", "all", "", null], ...shown.map(([value, words]) => [value, words, value, count(key, value)])];
      return chips(legend, key, entries, state[key], (value) => { state[key] = value; dim(); });
    };
    const change = (mode) => { state.mode = mode; show(); filters.querySelector("input[name=filter-mode]:checked").focus(); };
    const modes = Object.entries(MODES).map(([mode, [words]]) => [mode, words, "", null]);
    if (state.verdict === "unknown" && !count("verdict", "unknown")) state.verdict = "";
    const colours = filter("Colours", state.mode, MODES[state.mode][1]);
    filters.replaceChildren(chips("Show", "mode", modes, state.mode, change), colours, filter("Lines", "slice", data.hit === "AR hit" ? SLICES : WITHOUT_COUNTS));
  }

  function drawText() {
    const excerpt = state.excerpt;
    const otherwise = new Map(excerpt.shown);
    const pieceAt = (at, id) => otherwise.get(at) ?? data.pieces[id];
    const begins = new Map(excerpt.spans.map((span) => [span[0], span]));
    const parts = [make("span", { class: "t before", "data-at": "-1", title: "context: not predicted" })];
    appendPiece(parts[0], data, excerpt.before, pieceAt(0, excerpt.before), false);
    excerpt.tokens.forEach((id, index) => {
      if (begins.has(index)) {
        const border = borderOf(begins.get(index));
        index ? parts.push(border) : parts.unshift(border);
      }
      const { slice, [state.mode]: colour } = state.tokens[index];
      const element = make("span", { class: `t ${colour} ${slice}`, "data-at": index, role: "option", tabindex: "-1", "aria-selected": "false" });
      appendPiece(element, data, id, pieceAt(index + 1, id), false);
      parts.push(element);
    });
    elements = parts.filter((part) => part.classList.contains("t"));
    text.classList.toggle("spaced", Boolean(data.spaced));
    text.classList.toggle("heat", state.mode === "shade");
    text.replaceChildren(...parts);
    if (elementAt(state.current)) elementAt(state.current).setAttribute("tabindex", "0");
  }

  function borderOf([, document_, source]) {
    return make("span", { class: "border", role: "presentation" }, `document ${number(document_)} · ${data.sources[source]}`);
  }

  function dim() {
    state.tokens.forEach((token, index) => {
      const isShown = ["slice", state.mode].every((key) => !state[key] || token[key] === state[key]);
      elementAt(index).classList.toggle("dim", !isShown);
    });
  }

  const elementAt = (at) => elements[at + 1];
  const atOf = (target) => {
    const element = target.closest && target.closest(".t[role]");
    return element && text.contains(element) ? Number(element.dataset.at) : null;
  };

  // The tip of a token, its bigram, and the latest earlier occurrence of it.
  function showTip(at) {
    const excerpt = state.excerpt, element = elementAt(at);
    unmark();
    element.classList.add("now");
    const marks = [[at - 1, "with"]];
    const back = excerpt.distance[at];
    if (back) marks.push([at - back - 1, "earlier"], [at - back, "earlier"]);
    for (const [where, name] of marks) elementAt(where)?.classList.add(name);
    tip.replaceChildren(...tipParts(data, excerpt, state, at));
    tip.classList.remove("idle");
    element.setAttribute("aria-describedby", "tip");
  }

  function unmark() {
    for (const name of ["now", "with", "earlier"]) for (const element of text.querySelectorAll(`.${name}`)) element.classList.remove(name);
    for (const element of text.querySelectorAll("[aria-describedby]")) element.removeAttribute("aria-describedby");
  }

  function hideTip() {
    unmark();
    tip.classList.add("idle");
    tip.replaceChildren(make("p", { class: "facts" }, "Point at a token, tap it, or move to it with the keyboard."));
  }

  function focus(at) {
    const element = elementAt(at);
    if (element) element.focus();
  }

  const focused = () => (text.contains(document.activeElement) ? atOf(document.activeElement) : null);

  function stepHit(step) {
    const from = focused() ?? (step > 0 ? state.current - 1 : state.current);
    for (let at = from + step; at >= 0 && at < state.tokens.length; at += step) if (state.tokens[at].slice === "hit") return focus(at);
  }

  // The token nearest to this one in the line above or below.
  function stepLine(step) {
    const boxes = [...text.querySelectorAll(".t[role]")].map((element) => element.getClientRects()[0]);
    const here = boxes[state.current];
    if (!here) return;
    let line = null, best = null;
    for (let at = state.current + step; boxes[at]; at += step) {
      if (Math.abs(boxes[at].top - here.top) < here.height / 2) continue;
      line ??= boxes[at].top;
      if (Math.abs(boxes[at].top - line) > here.height / 2) break;
      const apart = Math.abs(boxes[at].left - here.left);
      if (best === null || apart < best[0]) best = [apart, at];
    }
    if (best) focus(best[1]);
  }

  const KEYS = {
    ArrowRight: () => focus(state.current + 1),
    ArrowLeft: () => focus(state.current - 1),
    ArrowDown: () => stepLine(1),
    ArrowUp: () => stepLine(-1),
    Home: () => focus(0),
    End: () => focus(state.tokens.length - 1),
    n: () => stepHit(1),
    p: () => stepHit(-1),
    e: () => { const back = state.excerpt.distance[state.current]; if (back) focus(state.current - back); },
    Escape: hideTip,
  };

  text.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || !isPlain(event)) return;
    event.preventDefault();
    act();
  });
  text.addEventListener("focusin", (event) => {
    const at = atOf(event.target);
    if (at === null) return;
    const before = elementAt(state.current);
    before.setAttribute("tabindex", "-1");
    before.setAttribute("aria-selected", "false");
    state.current = at;
    event.target.setAttribute("tabindex", "0");
    event.target.setAttribute("aria-selected", "true");
    showTip(at);
  });
  text.addEventListener("focusout", hideTip);
  text.addEventListener("pointerover", (event) => {
    const at = event.pointerType === "touch" ? null : atOf(event.target);
    if (at !== null) showTip(at);
  });
  text.addEventListener("pointerleave", () => { const at = focused(); at === null ? hideTip() : showTip(at); });

  // The token at a position of a sequence, or the first one of a document; the excerpt that has it is shown.
  function open(isIt, atOf_) {
    const excerpt = data.excerpts.find(isIt);
    if (!excerpt) return;
    state.excerpt = excerpt;
    state.current = atOf_(excerpt);
    Object.assign(state, { slice: "", verdict: "", shade: "" });
    listExcerpts();
    show();
    elementAt(state.current).scrollIntoView({ block: "center" });
    elementAt(state.current).focus({ preventScroll: true });
  }

  listExcerpts();
  show();
  view.hidden = false;
  return {
    choose,
    model: () => state.model,
    go: (sequence, position) => open(
      (one) => one.sequence === sequence && one.first <= position && position < one.first + one.tokens.length, (one) => position - one.first),
    goToDocument: (wanted) => open(
      (one) => one.spans.some(([, document_]) => document_ === wanted), (one) => one.spans.find(([, document_]) => document_ === wanted)[0]),
    onChange: (act) => { changed = act; },
  };
}

// The model with the largest gap on AR hits in these excerpts.
function farthest(data) {
  const sums = data.models.slice(1).map((_, model) => data.excerpts.reduce((sum, excerpt) => sum + excerpt.gap[model], 0));
  return sums.indexOf(Math.max(...sums)) + 1;
}

function sliceOf(data, excerpt, index) {
  if (!excerpt.distance[index]) return "other";
  return excerpt.count[index] <= data.most ? "hit" : "repeated";
}

function verdictOf(excerpt, model, index) {
  const [reference, other] = [excerpt.predicted[0][index], excerpt.predicted[model][index]];
  if (reference === -2 || other === -2) return "unknown";
  return reference === 0 ? (other === 0 ? "both" : "reference") : other === 0 ? "model" : "neither";
}

function shadeOf(excerpt, model, at) {
  const difference = excerpt.nll[model][at] - excerpt.nll[0][at];
  const steps = LIMITS.filter((limit) => (limit < 0 ? difference > limit : difference >= limit)).length;
  return `shade${steps - 4}`;
}

function tipParts(data, excerpt, state, at) {
  const { slice, verdict } = state.tokens[at];
  const otherwise = new Map(excerpt.shown);
  const code = (place_, kind) => {
    const id = place_ < 0 ? excerpt.before : excerpt.tokens[place_];
    const element = make("code", { class: kind });
    appendPiece(element, data, id, otherwise.get(place_ + 1) ?? data.pieces[id], true);
    return element;
  };
  const rows = [0, state.model, ...data.models.keys()].filter((model, place_, every) => every.indexOf(model) === place_);
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...["", "NLL", "rank", "predicted"].map((head) => make("th", { scope: "col" }, head)))));
  const body = make("tbody");
  for (const model of rows.slice(0, MOST_ROWS)) body.append(scoreRow(data, excerpt, model, at, model === 0 || model === state.model));
  table.append(body);
  const more = rows.length > MOST_ROWS ? [make("p", { class: "facts" }, `and ${counted(rows.length - MOST_ROWS, "more model")}`)] : [];
  const back = excerpt.distance[at];
  const where = back && at - back < 0 ? " (before what is shown)" : "";
  const span = excerpt.spans.filter(([place_]) => place_ <= at).pop();
  const words = { hit: data.hit === "AR hit" ? "AR hit" : "Repeated", repeated: "Repeated, too frequent in training for an AR hit", other: "Not repeated" }[slice];
  const facts = [
    back ? `bigram last occurred ${counted(back, "token")} earlier${where}` : "first occurrence of this bigram here",
    ...(back ? [counted(excerpt.occurrences[at], "earlier occurrence")] : []),
    excerpt.count[at] === null ? "its training count is not known" : excerpt.count[at] ? `${counted(excerpt.count[at], "time")} in training` : "never in training",
  ];
  return [
    make("p", { class: "head" }, make("span", {}, code(at - 1, "first"), code(at, "last")), make("span", { class: `sample ${verdict}` }, VERDICTS[verdict])),
    table,
    ...more,
    make("p", { class: "facts" }, `${data.models[state.model]}: ${signed(excerpt.nll[state.model][at] - excerpt.nll[0][at], 2)} nats beside the reference`),
    make("p", { class: "facts" }, make("b", {}, words), `: ${facts.join(", ")}.`),
    make("p", { class: "facts" }, `Position ${number(excerpt.first + at)} of sequence ${number(excerpt.sequence)}, document ${number(span[1])}, ${data.sources[span[2]]}`),
  ];
}

function scoreRow(data, excerpt, model, at, isChosen) {
  const rank = excerpt.rank[model][at], predicted = excerpt.predicted[model][at];
  const choice = make("td", {});
  if (predicted === 0) choice.append("right");
  else if (predicted > 0) appendPiece(choice.appendChild(make("code", {})), data, predicted - 1, data.pieces[predicted - 1], true);
  else choice.append(predicted === -1 ? "another" : data.own[model] ? "its tokens end elsewhere" : "unknown");
  return make("tr", isChosen ? { class: "chosen" } : {}, make("th", { scope: "row" }, data.models[model]),
    make("td", {}, nats(excerpt.nll[model][at])), make("td", {}, rank < 0 ? "–" : number(rank)), choice);
}

// The display of a piece: text, or a list of text and single bytes, or an id without a piece. `isTip`: white space is shown, too.
function appendPiece(element, data, id, shown, isTip) {
  if (id === data.end) return void element.append(mark("end", "end"));
  if (typeof shown === "number") return void element.append(mark(`id ${shown}`));
  for (const part of Array.isArray(shown) ? shown : [shown]) {
    if (typeof part === "number") element.append(mark(part.toString(16).toUpperCase().padStart(2, "0"), "byte"));
    else appendText(element, part, isTip);
  }
}

// Text with everything that cannot be seen written out. `isTip`: white space, too.
function appendText(element, text, isTip) {
  let plain = "";
  const flush = () => { if (plain) element.append(plain); plain = ""; };
  for (const character of text) {
    if (character === "\n") { flush(); element.append(mark("↵"), isTip ? "" : "\n"); }
    else if (character === "\t") { flush(); element.append(isTip ? mark("⇥") : "\t"); }
    else if (character === " " && isTip) { flush(); element.append(mark("␣")); }
    else if (HIDDEN.test(character)) { flush(); element.append(mark(`U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`, "byte")); }
    else plain += character;
  }
  flush();
}

// ------------------------------------------------------------------------------------------------ prompts and generations

const ANSWERS = { right: "right", wrong: "wrong", cut: "cut" };
const MOST_PROMPTS = 8;

function promptsView(view, data) {
  const state = { model: 0, task: 0, verdict: "", words: "", shown: MOST_PROMPTS };
  // Whether a prompt, its key, its value or a generation contains the words that are searched.
  const texts = new Map(data.prompts.map((prompt) => [prompt, [
    prompt.key, prompt.value, prompt.document, ...prompt.text.map(([, parts]) => parts.join("")), ...prompt.answers.map(([, parts]) => parts.join("")),
  ].join("\n").toLowerCase()]));
  const controls = make("div", { class: "controls" }), filters = make("div", { class: "filters" });
  const summary = make("p", { class: "summary", role: "status" }), list = make("div", { class: "prompts" });
  const more = make("button", { type: "button" }, "more");
  for (const [key, words] of [["model", "Model"], ["task", "Task"]]) {
    const choice = make("select", { id: `prompts-${key}` });
    data[`${key}s`].forEach((name, index) => choice.append(make("option", { value: index }, name)));
    choice.addEventListener("change", () => { state[key] = Number(choice.value); state.shown = MOST_PROMPTS; show(); });
    controls.append(make("label", {}, make("span", {}, words), choice));
  }
  const search = make("input", { type: "search", id: "prompts-search" });
  search.addEventListener("input", () => { state.words = search.value.trim().toLowerCase(); state.shown = MOST_PROMPTS; show(); });
  controls.append(make("label", {}, make("span", {}, "Search prompts, keys, values and generations"), search));
  more.addEventListener("click", () => { state.shown += MOST_PROMPTS; show(); });
  view.append(controls, filters, summary, list, more);

  function show() {
    const totals = data.totals[state.task][state.model];
    const every = totals.reduce((sum, one) => sum + one, 0);
    const entries = Object.keys(ANSWERS).map((name, index) => [name, name, name, totals[index]]);
    const choose = (value) => { state.verdict = value; state.shown = MOST_PROMPTS; show(); filters.querySelector("input:checked").focus(); };
    filters.replaceChildren(chips("Verdict", "answer", [["", "all", "", every], ...entries], state.verdict, choose));
    const verdict = (prompt) => prompt.answers[state.model][0];
    const found = data.prompts.filter((prompt) => prompt.task === state.task && (!state.verdict || verdict(prompt) === state.verdict) && texts.get(prompt).includes(state.words));
    const all = state.verdict ? totals[Object.keys(ANSWERS).indexOf(state.verdict)] : every;
    summary.textContent = `${counted(found.length, "prompt")} here of ${number(all)}.`;
    list.replaceChildren(...found.slice(0, state.shown).map((prompt) => promptCard(data, prompt, state.model)));
    more.hidden = found.length <= state.shown;
  }
  show();
  view.hidden = false;
}

function promptCard(data, prompt, model) {
  const text = make("div", { class: "text" });
  if (prompt.cut && !prompt.text.some(([isCut]) => isCut)) text.append(make("span", { class: "mark soft" }, `[${counted(prompt.cut, "character")} cut off] `));
  prompt.text.forEach(([isCut, parts], index) => {
    if (index) text.append("\n");
    const passage = make("span", isCut ? { class: "off" } : {});
    appendParts(passage, parts);
    text.append(passage);
    if (isCut) text.append(make("span", { class: "soft" }, ` [cut off: the first ${counted(prompt.cut, "character")}]`));
  });
  const value = make("code");
  appendText(value, prompt.value, false);
  const head = make("p", { class: "head" }, ...(prompt.key ? [make("b", {}, prompt.key), " "] : []), "value ", value, make("span", { class: "soft" }, ` \u00b7 document ${prompt.document}`));
  const body = make("tbody");
  for (const at of [model, ...data.models.keys()].filter((at, place_, every) => every.indexOf(at) === place_)) {
    const [verdict, parts, nll] = prompt.answers[at];
    const generation = make("code");
    parts.some((part) => part.trim()) ? appendParts(generation, parts) : generation.append(make("span", { class: "soft" }, "(nothing)"));
    body.append(make("tr", at === model ? { class: "chosen" } : {}, make("th", { scope: "row", title: data.models[at] }, data.models[at]),
      make("td", {}, make("span", { class: `sample ${verdict}` }, ANSWERS[verdict])), make("td", {}, generation),
      make("td", { class: "amount" }, nll === null ? "\u2013" : nll.toFixed(2))));
  }
  const heads = ["", "", "generation", "NLL"].map((words) => make("th", { scope: "col" }, words));
  return make("article", { class: "prompt" }, head, text, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
}

// Parts of a text, of which the odd ones are the value.
function appendParts(element, parts) {
  parts.forEach((part, index) => {
    const place_ = index % 2 ? element.appendChild(make("mark")) : element;
    appendText(place_, part, false);
  });
}

const view = document.getElementById("view"), packed = document.getElementById("excerpts");
const tokens = view && packed ? tokenView(view, JSON.parse(packed.textContent)) : null;
const section = document.getElementById("losses"), nav = document.querySelector("nav");
if (section) { const follow = losses(section, tokens); if (tokens) tokens.onChange(follow); }
for (const table of document.querySelectorAll(".wide table")) { sortable(table); filterable(table, table.parentElement); }
if (nav) contents(nav);
const prompts = document.getElementById("prompts"), samples = document.getElementById("samples");
if (prompts && samples) promptsView(prompts, JSON.parse(samples.textContent));
