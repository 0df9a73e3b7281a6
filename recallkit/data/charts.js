// Draws the figures of a page from their Vega-Lite specifications, with Vega, whose bundle this is a part of. Vega interprets its expressions
// (ast), so that the page's policy needs no eval. Hovering or the arrow keys show what a mark is, on line charts all models' values there.

// Pixels: a panel beside others with its axis is at least as wide, a line chart at most as high, a pointer on what is as near.
const NARROWEST = 300, HIGHEST = 320, NEAR = 16;

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const tip = document.body.appendChild(make("div", { class: "tip small", hidden: "" }));
const rule = document.body.appendChild(make("div", { class: "crosshair", hidden: "" }));
const hide = () => { tip.hidden = rule.hidden = true; };
const rowOf = (mark) => mark.__data__.datum;
const isLine = (mark) => Boolean(mark) && "at" in rowOf(mark);

async function draw(figure) {
  const chart = figure.querySelector(".chart"), specification = JSON.parse(figure.querySelector("script").textContent);
  const { facet } = specification, panels = facet ? facet.sort.length : 1;
  let view, drawn = {};
  const fit = async () => {
    const room = chart.clientWidth, columns = Math.max(1, Math.min(panels, Math.floor(room / NARROWEST)));
    if (!room || room === drawn.room) return;
    if (columns !== drawn.columns) {
      view?.finalize();
      const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, tooltip: false, defaultStyle: false };
      ({ view } = await vegaEmbed(chart, facet ? { ...specification, columns } : specification, options));
      explore(chart, view);
    }
    drawn = { room, columns };
    await resize(chart, view, room, columns);
  };
  let fitted = fit();
  await fitted;
  new ResizeObserver(() => { fitted = fitted.then(fit); }).observe(chart);
}

// Makes a drawing as wide as its place. How much axes and legend take beside the plots is measured, first at a guess.
async function resize(chart, view, room, columns) {
  const [width, height] = "child_width" in view.getState().signals ? ["child_width", "child_height"] : ["width", "height"];
  view.signal("room", room);
  for (const beside of [() => 60 * columns, () => chart.querySelector("svg").width.baseVal.value - columns * view.signal(width)]) {
    view.signal(width, Math.max(60, Math.floor((room - beside()) / columns)));
    if (isLine(marksOf(chart)[0])) view.signal(height, Math.max(view.signal(height), Math.min(HIGHEST, view.signal(width) / 2)));
    await view.resize().runAsync();
  }
}

const marksOf = (part) => [...part.querySelectorAll(".role-mark [aria-label]")];

function explore(chart, view) {
  const marks = marksOf(chart), entries = [...chart.querySelectorAll(".role-legend-label text")];
  chart.addEventListener("pointermove", (event) => {
    const mark = at(event);
    mark ? show(mark) : hide();
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("focusout", hide);
  chart.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  rove(marks, show);
  if (!("chosen" in view.getState().signals)) return;
  rove(entries, hide);
  const press = () => {
    const { model = [] } = view.signal("chosen");
    for (const entry of entries) entry.setAttribute("aria-pressed", model.includes(nameOf(entry)));
  };
  for (const entry of entries) {
    entry.setAttribute("role", "button");
    entry.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      entry.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    });
  }
  view.addSignalListener("chosen", press);
  press();
  const legend = { view, entries };
  legends.set(chart, legend);
  followed = followed.then(() => follow(legend));
}

const legends = new Map();  // of each chart that has one
const picked = new Map();  // models that were in a legend with a click -> whether they are chosen
let isFollowing = false, followed = Promise.resolve();
const chosenIn = ({ view }) => view.signal("chosen").model ?? [];
const nameOf = (entry) => entry.__data__.datum.value;

document.addEventListener("click", ({ target }) => {
  const leader = isFollowing ? null : legends.get(target.closest(".chart"));
  if (leader) followed = followed.then(() => lead(leader));
});

// What is chosen in one legend is chosen in all that have the model, also in those that are drawn later.
async function lead(leader) {
  await leader.view.runAsync();
  const chosen = chosenIn(leader);
  for (const name of leader.entries.map(nameOf)) picked.set(name, chosen.includes(name));
  for (const follower of legends.values()) await follow(follower);
}

async function follow(legend) {
  for (const entry of legend.entries) {
    const name = nameOf(entry);
    if (!picked.has(name) || picked.get(name) === chosenIn(legend).includes(name)) continue;
    isFollowing = true;
    entry.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    isFollowing = false;
    await legend.view.runAsync();
  }
}

// One stop for the tab key; the arrow keys go on from there.
function rove(elements, arrive) {
  elements.forEach((element, index) => {
    element.setAttribute("tabindex", index ? "-1" : "0");
    element.addEventListener("focus", () => {
      for (const other of elements) other.setAttribute("tabindex", other === element ? "0" : "-1");
      arrive(element);
    });
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = elements[{ Home: 0, End: elements.length - 1 }[event.key] ?? index + step];
      if (!next || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      next.focus();
    });
  });
}

// The plot that an element is in: the cell of a facet, or the whole.
const plotOf = (element) => element.closest(".cell > g, .role-frame > g");

// The mark at the pointer, or near it; of a line chart the nearest in its plot, by x.
function at({ target, clientX, clientY }) {
  const mark = target.closest(".role-mark [aria-label]"), plot = plotOf(target);
  if (mark || !plot) return mark;
  const [nearest] = marksOf(plot).map((each) => {
    const [x, y] = middle(each);
    return { each, away: isLine(each) ? Math.abs(x - clientX) : Math.hypot(x - clientX, y - clientY) };
  }).sort((a, b) => a.away - b.away);
  return nearest && (isLine(nearest.each) || nearest.away < NEAR) ? nearest.each : null;
}

function middle(mark) {
  const { left, top, width, height } = mark.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}

function show(mark) {
  tip.hidden = false;
  rule.hidden = !isLine(mark);
  if (!isLine(mark)) {
    tip.replaceChildren(mark.getAttribute("aria-label"));
    return place(mark.getBoundingClientRect());
  }
  const plot = plotOf(mark), here = marksOf(plot).filter((other) => rowOf(other).x === rowOf(mark).x);
  const rows = here.map((other) => {
    const swatch = make("span", { class: "swatch" }), { model, shown } = rowOf(other);
    swatch.style.background = getComputedStyle(other).stroke;
    return make("tr", {}, make("th", {}, swatch, model), make("td", {}, shown));
  });
  tip.replaceChildren(make("p", { class: "head" }, rowOf(mark).at), make("table", {}, make("tbody", {}, ...rows)));
  const [x] = middle(mark), { top, height } = plot.querySelector(":scope > .background").getBoundingClientRect();
  put(rule, x, top);
  rule.style.height = `${height}px`;
  place({ left: x + 8, top, bottom: top - 6 });
}

// Puts the tip below a box of the window, or above it or left of it where the window ends.
function place({ left, top, bottom }) {
  const { offsetWidth: width, offsetHeight: height } = tip;
  const isLow = bottom + height + 12 > window.innerHeight && top > height + 12;
  const x = left + width + 8 > window.innerWidth ? Math.max(8, Math.min(left - 16 - width, window.innerWidth - width - 8)) : left;
  put(tip, x, isLow ? top - height - 6 : bottom + 6);
}

function put(element, x, y) {
  const origin = document.documentElement.getBoundingClientRect();
  element.style.left = `${x - origin.left}px`;
  element.style.top = `${y - origin.top}px`;
}

for (const figure of document.querySelectorAll("figure:has(.chart)")) draw(figure);
