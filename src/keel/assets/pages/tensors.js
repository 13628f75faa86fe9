// The page of a tensor trace: choose a tensor and a step, draw its heat map, show the value of a cell.

const byId = id => document.getElementById(id), all = selector => [...document.querySelectorAll(selector)];
const data = JSON.parse(byId("trace").textContent), tip = byId("tip"), slider = byId("step");
const phrases = JSON.parse(byId("phrases").textContent);
const phrase = (name, values = {}) => phrases[name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
// Names of the network in the language of the page; texts and labels of users are not among them.
const names = new Map(Object.entries(JSON.parse(byId("names").textContent)));
const named = text => names.get(text) ?? text;
let step = 0, index = 0, panel = 0, drawn = null;

const make = (name, text = "", attributes = {}) => {
  const element = document.createElement(name);
  if (text !== "") element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
const kindOf = tensor => data.kinds[tensor.kind];
const nameOf = tensor => tensor.layer
  ? phrase("within", { name: named(kindOf(tensor).name), layer: tensor.layer }) : named(kindOf(tensor).name);
const sizes = tensor => `[${tensor.shape.join(", ")}]`;
const seen = text => text.trim() || "␣";
const digits = value => value === 0 ? "0" : Math.abs(value) < 0.00095 || Math.abs(value) >= 1e5
  ? value.toExponential(1) : Number(value.toPrecision(3)).toString();
const stepOf = number => data.steps.findIndex(each => number < each.first + each.count);

// Decoded bytes of the pictures that were shown.
const known = new Map();
function cells(number) {
  if (!known.has(number))
    known.set(number, Uint8Array.from(atob(data.tensors[number].picture.data), character => character.charCodeAt(0)));
  return known.get(number);
}
function share(byte, signed) { return signed ? byte / 127 - 1 : byte / 254; }
function value(picture, byte) {
  if (byte === 255) return -Infinity;
  const root = share(byte, picture.signed);
  return picture.limit * root * Math.abs(root);
}
function colours() {
  const style = getComputedStyle(document.documentElement);
  return ["--mark", "--colour1", "--plain"].map(name => {
    const text = style.getPropertyValue(name).trim();
    return [1, 3, 5].map(start => parseInt(text.slice(start, start + 2), 16));
  });
}
function paint(canvas, number, which) {
  const picture = data.tensors[number].picture, { rows, columns, signed } = picture;
  const [positive, negative, masked] = colours(), bytes = cells(number), start = which * rows * columns;
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let place = 0; place < rows * columns; place++) {
    const byte = bytes[start + place], root = share(byte, signed);
    const [colour, alpha] = byte === 255 ? [masked, 110] : [root < 0 ? negative : positive, 255 * Math.abs(root)];
    image.data.set([...colour, alpha], 4 * place);
  }
  context.putImageData(image, 0, 0);
}
// Names of the leading axes of a panel, and the names along an axis.
function panelName(tensor, which) {
  const axes = kindOf(tensor).axes.slice(0, -2), shape = tensor.shape.slice(0, -2), parts = [];
  for (let axis = axes.length - 1; axis >= 0; axis--) {
    const place = which % shape[axis];
    which = Math.floor(which / shape[axis]);
    const name = { heads: "head", batch: "text", sequences: "text" }[axes[axis]] || axes[axis];
    if (shape[axis] > 1 || name === "head") parts.unshift(`${named(name)} ${place + 1}`);
  }
  return parts.join(", ");
}
function labels(tensor, axis, which) {
  const { axes } = kindOf(tensor), name = axes[axis], size = tensor.shape[axis];
  const listed = data.steps[stepOf(data.tensors.indexOf(tensor))].labels[name];
  if (!listed) return null;
  let text = 0;
  if (["batch", "sequences"].includes(axes[0]) && axis > 0) {
    const below = tensor.shape.slice(1, -2).reduce((one, other) => one * other, 1);
    text = axes.length > 2 ? Math.floor(which / below) : 0;
  }
  const row = listed[Math.min(text, listed.length - 1)];
  return row.length >= size ? row.slice(row.length - size) : null;
}
// Blocks of a reduced axis: cell n holds the values from n * size / cells on.
const begin = (cell, count, size) => Math.floor(cell * size / count);
function along(names, axis, cell, count, size) {
  const first = begin(cell, count, size), last = begin(cell + 1, count, size) - 1;
  if (names && first === last) return seen(names[first]);
  const values = { axis: named(axis), first: first + 1, last: last + 1 };
  return first === last ? `${values.axis} ${values.first}` : phrase("block", values);
}
function drawTensor() {
  const tensor = data.tensors[index], box = byId("picture"), others = byId("panels");
  box.replaceChildren();
  others.replaceChildren();
  box.removeAttribute("style");
  drawn = null;
  if (tensor.values) { drawIds(tensor, box); return; }
  const picture = tensor.picture, { rows, columns, panels } = picture, { axes } = kindOf(tensor);
  panel = Math.min(panel, panels - 1);
  const rowAxis = axes.length > 1 ? axes.length - 2 : -1, columnAxis = axes.length - 1;
  const height = rowAxis < 0 ? 1 : tensor.shape[rowAxis], width = tensor.shape[columnAxis];
  const rowNames = rowAxis < 0 ? null : labels(tensor, rowAxis, panel), columnNames = labels(tensor, columnAxis, panel);
  const side = (room, count) => Math.max(3, Math.min(26, Math.floor(room / count)));
  let across = side(Math.max(280, byId("tensor").clientWidth - 150), columns), down = side(480, rows);
  if (rowNames && columnNames) across = down = Math.min(across, down);
  const canvas = make("canvas", "", { tabindex: 0, role: "img", "aria-label": phrase("map", { name: nameOf(tensor) }) });
  paint(canvas, index, panel);
  box.append(canvas);
  const fresh = freshRows(tensor);
  const spans = [[], []];
  if (rowNames && height === rows && down >= 10) rowNames.forEach(name => spans[0].push(make("span", seen(name))));
  if (columnNames && width === columns && across >= 12)
    columnNames.forEach(name => spans[1].push(make("span", seen(name), { class: "column" })));
  box.append(...spans.flat());
  const [left, top] = spans.map(each => Math.max(0, ...each.map(span => span.offsetWidth)) + (each.length ? 8 : 1));
  spans[0].forEach((span, row) => {
    span.style.left = left - 6 - span.offsetWidth + "px";
    span.style.top = top + row * down + (down - 12) / 2 + "px";
    if (fresh.axis === "row" && row >= fresh.from) span.classList.add("fresh");
  });
  spans[1].forEach((span, column) => {
    span.style.left = left + column * across + (across - 12) / 2 + "px";
    span.style.top = top - 6 + "px";
    if (fresh.axis === "column" && column >= fresh.from) span.classList.add("fresh");
  });
  canvas.style.left = left + "px";
  canvas.style.top = top + "px";
  canvas.style.width = columns * across + "px";
  canvas.style.height = rows * down + "px";
  box.style.height = top + rows * down + 4 + "px";
  const names = { rowNames, columnNames, rowAxis: axes[rowAxis] || "", columnAxis: axes[columnAxis] };
  drawn = { tensor, picture, height, width, ...names };
  if (panels > 1) for (let which = 0; which < panels; which++) {
    const button = make("button", "", { type: "button", "aria-pressed": which === panel }), small = make("canvas");
    paint(small, index, which);
    small.style.width = Math.min(96, Math.max(36, columns * 3)) + "px";
    small.style.height = Math.min(64, Math.max(12, rows * 3)) + "px";
    button.append(small, panelName(tensor, which));
    button.onclick = () => { panel = which; drawTensor(); save(); };
    others.append(button);
  }
}
// Positions that a decoding step adds to the keys and values of the cache.
function freshRows(tensor) {
  const cached = data.steps[step].cached, { axes } = kindOf(tensor), axis = axes.indexOf("keys");
  if (!cached || axis < 0) return { axis: "" };
  return { axis: axis === axes.length - 2 ? "row" : "column", from: cached };
}
function drawIds(tensor, box) {
  const rows = tensor.shape.length > 1 ? tensor.values : [tensor.values];
  const table = make("table");
  rows.forEach((row, text) => {
    const names = labels(tensor, tensor.shape.length - 1, text) || [];
    const listed = data.steps[step].labels.tokens, own = listed && listed[Math.min(text, listed.length - 1)];
    const line = make("tr"), above = make("tr");
    row.forEach((id, place) => {
      const tokens = own || names;
      above.append(make("th", seen(tokens[tokens.length - row.length + place] || "")));
      line.append(make("td", Array.isArray(id) ? id.filter(each => each < 260).join(" ") : String(id)));
    });
    table.append(above, line);
  });
  box.append(table);
}
function showTensor() {
  const tensor = data.tensors[index], kind = kindOf(tensor), { first, count } = data.steps[step];
  const place = { number: index - first + 1, count, title: named(data.steps[step].title) };
  byId("place").textContent = phrase(data.steps.length > 1 ? "placed" : "place", place);
  byId("name").textContent = nameOf(tensor);
  byId("shape").replaceChildren(make("b", sizes(tensor)), `  [${kind.axes.map(named).join(", ")}]`);
  byId("meaning").textContent = named(kind.meaning);
  byId("formula").textContent = kind.formula;
  byId("formula").parentElement.hidden = !kind.formula;
  const links = tensor.sources.map(number => {
    const source = data.tensors[number], other = stepOf(number);
    const where = other === step ? "" : ` (${named(data.steps[other].title)})`;
    const button = make("button", `${nameOf(source)} ${sizes(source)}${where}`, { type: "button" });
    button.onclick = () => go(number);
    return button;
  });
  byId("sources").replaceChildren(...(links.length ? [`${phrase("sources")} `, ...links] : []));
  byId("change").textContent = change(tensor);
  const [low, high, mean, std] = [tensor.min, tensor.max, tensor.mean, tensor.std].map(digits);
  const sentences = [phrase("numbers", { low, high, mean, std })];
  if (tensor.masked) sentences.push(phrase("masked", { count: tensor.masked.toLocaleString("en") }));
  if (tensor.picture) sentences.push(phrase("exact", { error: digits(tensor.picture.error) }));
  if (tensor.picture?.signed) sentences.push(phrase("signs"));
  if (tensor.picture && drawnSmaller(tensor)) sentences.push(phrase("reduced"));
  byId("numbers").textContent = tensor.values ? "" : sentences.join(" ");
  for (const part of all(".part")) {
    const network = part.closest("svg").dataset.network;
    part.classList.toggle("current", part.dataset.part === kind.part && network === data.steps[step].network);
  }
  for (const each of all(".network")) each.hidden = each.firstElementChild.dataset.network !== data.steps[step].network;
  const layers = data.tensors.slice(first, first + count).reduce((most, each) => Math.max(most, each.layer), 0);
  byId("layer").textContent = tensor.layer ? phrase("depth", { layer: tensor.layer, layers }) : "";
  for (const button of all("#list button")) {
    const current = Number(button.dataset.tensor) === index;
    button.setAttribute("aria-current", current);
    if (current) reveal(button);
  }
  drawTensor();
  save();
}
function drawnSmaller(tensor) {
  const shape = tensor.shape;
  return shape.at(-1) > tensor.picture.columns || (shape.length > 1 && shape.at(-2) > tensor.picture.rows);
}
function reveal(button) {
  const list = byId("list"), above = button.offsetTop - list.offsetTop;
  if (above < list.scrollTop + 24) list.scrollTop = above - 24;
  else if (above + button.offsetHeight > list.scrollTop + list.clientHeight)
    list.scrollTop = above + button.offsetHeight - list.clientHeight;
}
// What changes from the step before.
function sameIn(other, tensor) {
  if (other < 0 || other >= data.steps.length) return -1;
  const { first, count } = data.steps[other], name = kindOf(tensor).name;
  for (let number = first; number < first + count; number++)
    if (data.tensors[number].layer === tensor.layer && kindOf(data.tensors[number]).name === name) return number;
  return -1;
}
function change(tensor) {
  const before = sameIn(step - 1, tensor);
  if (before < 0 || data.steps[step].network !== data.steps[step - 1].network) return "";
  const other = data.tensors[before];
  if (sizes(other) === sizes(tensor)) return "";
  const cached = data.steps[step].cached;
  const grows = cached && kindOf(tensor).axes.includes("keys");
  return phrase(grows ? "grown" : "before", { sizes: sizes(other), cached });
}
function showStep() {
  const found = data.steps[step], list = byId("list"), parts = [];
  let group = "";
  for (let number = found.first; number < found.first + found.count; number++) {
    const tensor = data.tensors[number], kind = kindOf(tensor);
    const name = tensor.layer ? phrase("layer", { layer: tensor.layer }) : named(kind.part);
    if (name !== group) parts.push(make("p", name));
    group = name;
    const button = make("button", named(kind.name), { type: "button", "data-tensor": number });
    button.onclick = () => go(number);
    parts.push(button);
  }
  list.replaceChildren(...parts);
  if (slider) {
    slider.value = step + 1;
    const read = found.read.length ? ` · ${phrase("reads", { tokens: found.read.map(seen).join(" ") })}` : "";
    byId("step-name").textContent = `${step + 1} / ${data.steps.length} · ${named(found.title)}${read}`;
  }
  showCache(found);
  showCandidates(found);
}
function showCache(found) {
  const box = byId("cache");
  box.replaceChildren();
  if (!found.cache_bytes) return;
  const keys = (found.labels.keys || [found.read])[0];
  box.append(`${phrase("cache", { bytes: found.cache_bytes.toLocaleString("en") })} `);
  const kind = place => place < found.cached ? "cached" : "new";
  keys.forEach((name, place) => box.append(make("span", seen(name), { class: kind(place) })));
}
function showCandidates(found) {
  const box = byId("candidates"), listed = Object.entries(found.predictions).slice(0, 12);
  box.replaceChildren();
  for (const [name, top] of listed) {
    const table = make("table"), most = top.length ? top[0].probability || 1 : 1;
    const shown = top.slice(0, listed.length > 2 ? 1 : 8);
    const chosen = found.chosen ? shown.findIndex(each => each.token === found.chosen) : -1;
    shown.forEach((each, place) => {
      const row = make("tr", "", place === chosen ? { class: "chosen" } : {}), bar = make("td"), line = make("i");
      line.style.width = `${(100 * each.probability / most).toFixed(1)}%`;
      bar.append(line);
      row.append(make("td", seen(each.token)), make("td", digits(each.probability)), bar);
      table.append(row);
    });
    box.append(make("h3", named(name)), table);
    if (found.chosen) box.append(make("p", phrase("chosen", { token: seen(found.chosen) })));
  }
}
function go(number, keep = false) {
  if (number < 0 || number >= data.tensors.length) return;
  const other = stepOf(number);
  index = number;
  if (other !== step || !byId("list").children.length) { step = other; showStep(); }
  if (!keep) panel = 0;
  showTensor();
}
function goStep(other) {
  if (other < 0 || other >= data.steps.length) return;
  const same = sameIn(other, data.tensors[index]);
  go(same < 0 ? data.steps[other].first : same, same >= 0);
}
function goLayer(change) {
  const tensor = data.tensors[index], { first, count } = data.steps[step];
  for (let number = first; number < first + count; number++) {
    const each = data.tensors[number];
    if (each.kind === tensor.kind && each.layer === tensor.layer + change && tensor.layer) { go(number, true); return; }
  }
}
function save() {
  const state = { tensor: index + 1, ...(panel ? { panel: panel + 1 } : {}) };
  history.replaceState(null, "", "#" + new URLSearchParams(state));
  document.body.dataset.shown = index;
}
function say(event, text) {
  tip.hidden = !text;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = event.clientY + 18 + "px";
}
byId("picture").onpointermove = event => {
  if (!drawn || event.target.tagName !== "CANVAS") { say(event, ""); return; }
  const { picture } = drawn, area = event.target.getBoundingClientRect();
  const cell = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
  const column = cell((event.clientX - area.left) / area.width, picture.columns);
  const row = cell((event.clientY - area.top) / area.height, picture.rows);
  const byte = cells(index)[(panel * picture.rows + row) * picture.columns + column], number = value(picture, byte);
  const where = [panelName(drawn.tensor, panel),
    drawn.rowAxis && along(drawn.rowNames, drawn.rowAxis, row, picture.rows, drawn.height),
    along(drawn.columnNames, drawn.columnAxis, column, picture.columns, drawn.width)].filter(Boolean).join(" · ");
  say(event, `${where}\n${byte === 255 ? phrase("hidden") : phrase("bits", { number: digits(number) })}`);
};
byId("picture").onpointerleave = event => say(event, "");
byId("back").onclick = () => go(index - 1);
byId("forth").onclick = () => go(index + 1);
if (slider) slider.oninput = () => goStep(Number(slider.value) - 1);
for (const part of all(".part")) part.onclick = () => {
  const { first, count } = data.steps[step], layer = data.tensors[index].layer;
  const found = data.tensors.slice(first, first + count)
    .map((tensor, place) => [tensor, first + place]).filter(([tensor]) => kindOf(tensor).part === part.dataset.part);
  if (found.length) go((found.find(([tensor]) => tensor.layer === layer) || found[0])[1]);
};
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target === slider) return;
  const act = { ArrowLeft: () => go(index - 1), ArrowRight: () => go(index + 1), ArrowUp: () => goLayer(1),
    ArrowDown: () => goLayer(-1), PageUp: () => goStep(step - 1), PageDown: () => goStep(step + 1) }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTensor);
addEventListener("resize", drawTensor);
function restore() {
  const state = new URLSearchParams(location.hash.slice(1)), wanted = Number(state.get("tensor")) - 1;
  panel = Math.max(0, (Number(state.get("panel")) || 1) - 1);
  go(wanted >= 0 && wanted < data.tensors.length ? wanted : 0, true);
}
addEventListener("hashchange", restore);
step = -1;
restore();
