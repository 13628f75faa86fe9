// The attention page: choose a head, hover over tokens or cells, follow a token through heads.

const data = JSON.parse(document.getElementById("weights").textContent), tip = document.getElementById("tip");
const all = selector => [...document.querySelectorAll(selector)], byId = id => document.getElementById(id);
const phrases = JSON.parse(byId("phrases").textContent);
const phrase = (name, values = {}) => phrases[name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
const queries = all("#queries span"), keys = data.cross ? all("#keys span") : queries;
const names = [queries, keys].map(spans => spans.map(span => span.textContent));
const canvas = byId("matrix"), plot = byId("plot"), read = byId("read"), buttons = all("button[data-head]");
const rows = queries.length, columns = keys.length, known = new Map(), most = Math.max(rows, columns);
const cell = most > 600 ? 1 : most > 300 ? 2 : Math.max(3, Math.min(26, Math.floor(1000 / most)));
let head = 0, stored = data.weights[0], values = null, token = -1, kept = false, direction = "from";

const weight = value => stored[0] * (value / 255) ** stored[1];
const digits = value => value < 0.00995 ? Number(value.toPrecision(2)) : value.toFixed(3);
const shown = value => {
  const least = Math.max(stored[2], 1e-4);
  return value && weight(value) >= least ? digits(weight(value)) : `< ${digits(least)}`;
};
async function matrix(number) {
  if (!known.has(number)) {
    const bytes = Uint8Array.from(atob(data.weights[number][4]), character => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    known.set(number, new Uint8Array(await new Response(stream).arrayBuffer()));
  }
  return known.get(number);
}
function colour() {
  const text = getComputedStyle(document.documentElement).getPropertyValue("--mark").trim();
  return [1, 3, 5].map(start => parseInt(text.slice(start, start + 2), 16));
}
function drawMatrix() {
  const [red, green, blue] = colour(), shades = new Uint8Array(256);
  for (let value = 0; value < 256; value++) shades[value] = 255 * Math.sqrt(Math.min(1, weight(value) / stored[0]));
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let place = 0; place < values.length; place++)
    image.data.set([red, green, blue, shades[values[place]]], 4 * place);
  context.putImageData(image, 0, 0);
}
function layOut() {
  const font = Math.min(13, cell - 1), labelled = cell >= 12;
  const labels = labelled ? names.map((each, side) => each.map((name, number) => {
    const label = document.createElement("span");
    label.textContent = name;
    label.style.fontSize = font + "px";
    if (side) label.className = "column";
    plot.append(label);
    return label;
  })) : [[], []];
  const [left, top] = labels.map(each => each.reduce((width, label) => Math.max(width, label.offsetWidth), 0) + 8);
  labels[0].forEach((label, row) => {
    label.style.left = left - 6 - label.offsetWidth + "px";
    label.style.top = top + row * cell + (cell - font) / 2 + "px";
  });
  labels[1].forEach((label, column) => {
    label.style.left = left + column * cell + (cell - font) / 2 + "px";
    label.style.top = top - 6 + "px";
  });
  canvas.style.left = left + "px";
  canvas.style.top = top + "px";
  canvas.style.width = columns * cell + "px";
  canvas.style.height = rows * cell + "px";
  plot.style.width = left + columns * cell + 2 + "px";
  plot.style.height = top + rows * cell + 2 + "px";
}
function line(index) {
  return direction === "from" ? values.subarray(index * columns, (index + 1) * columns)
    : Uint8Array.from({ length: rows }, (_, row) => values[row * columns + index]);
}
function showToken() {
  const [own, others] = direction === "from" ? [queries, keys] : [keys, queries];
  for (const span of new Set([...queries, ...keys])) {
    span.className = "";
    span.style.backgroundColor = "";
  }
  if (token < 0 || token >= own.length) {
    read.textContent = "";
    return;
  }
  const found = line(token), top = found.reduce((one, other) => Math.max(one, other), 1), [red, green, blue] = colour();
  own[token].className = "chosen";
  others.forEach((span, index) => {
    const share = 0.55 * Math.sqrt(weight(found[index]) / weight(top));
    if (found[index]) span.style.backgroundColor = `rgba(${red}, ${green}, ${blue}, ${share.toFixed(3)})`;
  });
  const order = [...found.keys()].sort((one, other) => found[other] - found[one]).slice(0, 8);
  const list = order.map(index => `${others[index].textContent} ${shown(found[index])}`).join(", ");
  read.textContent = phrase(direction === "from" ? "attends" : "attended", { token: own[token].textContent, list });
}
async function choose(number) {
  head = number;
  const layer = data.layers[Math.floor(number / data.heads.length)], own = data.heads[number % data.heads.length];
  buttons.forEach((button, index) => button.setAttribute("aria-pressed", index === number));
  byId("chosen").textContent = phrase("head", { layer, head: own });
  const [largest, , threshold, error] = data.weights[number];
  const numbers = { largest: digits(largest), error: digits(error), threshold: digits(threshold) };
  byId("precision").textContent = phrase(threshold > error ? "cut" : "precision", numbers);
  const loaded = await matrix(number);
  if (number !== head) return;
  [values, stored] = [loaded, data.weights[number]];
  drawMatrix();
  showToken();
  save();
}
function save() {
  const layer = Math.floor(head / data.heads.length), own = head % data.heads.length;
  const state = { layer: data.layers[layer], head: data.heads[own], direction, ...(kept ? { token: token + 1 } : {}) };
  history.replaceState(null, "", "#" + new URLSearchParams(state));
  document.body.dataset.shown = head;
}
function say(event, text) {
  tip.hidden = !text;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = event.clientY + 18 + "px";
}
function place(event) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / box.width * columns);
  const row = Math.floor((event.clientY - box.top) / box.height * rows);
  return [Math.max(0, Math.min(rows - 1, row)), Math.max(0, Math.min(columns - 1, column))];
}
function pair(row, column) {
  return `${names[0][row]} → ${names[1][column]}  ${shown(values[row * columns + column])}`;
}
function keep(index) {
  kept = !(kept && token === index);
  token = index;
  showToken();
  save();
}
for (const button of buttons) button.onclick = () => choose(Number(button.dataset.head));
for (const button of all("button[data-direction]")) button.onclick = () => setDirection(button.dataset.direction);
function setDirection(name) {
  direction = name;
  if (data.cross) [token, kept] = [-1, false];
  for (const each of all("button[data-direction]")) each.setAttribute("aria-pressed", each.dataset.direction === name);
  if (values) { showToken(); save(); }
}
for (const [spans, side] of data.cross ? [[queries, "from"], [keys, "to"]] : [[queries, ""]]) {
  spans.forEach((span, index) => {
    const own = () => !side || side === direction;
    span.onpointerenter = event => {
      if (!values) return;
      if (kept) {
        const [row, column] = direction === "from" ? [token, index] : [index, token];
        say(event, !data.cross || !own() ? pair(row, column) : "");
      } else if (own()) {
        token = index;
        showToken();
      }
    };
    span.onpointerleave = event => say(event, "");
    span.onclick = () => {
      if (String(getSelection())) return;  // text is being selected
      if (own()) keep(index);
      else { setDirection(side); keep(index); }
    };
  });
}
canvas.onpointermove = event => {
  if (!values) return;
  const [row, column] = place(event);
  say(event, pair(row, column));
  if (!kept) { token = direction === "from" ? row : column; showToken(); }
};
canvas.onpointerleave = event => say(event, "");
canvas.onclick = event => keep(place(event)[direction === "from" ? 0 : 1]);
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const across = data.heads.length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
  const focus = document.activeElement;
  if (event.key === "Escape") { kept = false; token = -1; showToken(); save(); }
  else if (step && focus?.closest(".heads")) {
    const next = head + step;
    if (next < 0 || next >= buttons.length) return;
    event.preventDefault();
    buttons[next].focus();
    choose(next);
  } else if (Math.abs(step) === 1 && focus?.classList.contains("tokens") && values) {
    event.preventDefault();
    const count = (direction === "from" ? queries : keys).length;
    token = (token + step + count) % count;
    kept = true;
    showToken();
    save();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (values) { drawMatrix(); showToken(); }
});
layOut();
const state = new URLSearchParams(location.hash.slice(1)), layer = data.layers.indexOf(Number(state.get("layer")));
const own = data.heads.indexOf(Number(state.get("head")));
setDirection(state.get("direction") === "to" ? "to" : "from");
if (state.get("token")) [token, kept] = [Number(state.get("token")) - 1, true];
if (typeof DecompressionStream === "undefined") read.textContent = phrase("old");
else choose(layer >= 0 && own >= 0 ? layer * data.heads.length + own : 0);
