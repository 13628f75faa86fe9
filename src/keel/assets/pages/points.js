// The page of many points: canvas, pan and zoom, labels, search, clusters.
//
// Points are written into the pixels of one image, 50,000 in a few milliseconds, as 2D canvases without a GPU fill shapes
// much more slowly. Overlapping points add up, so that a map from afar shows densities.

const byId = id => document.getElementById(id), facts = JSON.parse(byId("facts").textContent);
const stage = byId("stage"), canvas = byId("points"), tip = byId("tip"), read = byId("read");
const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
const CELLS = 128, SHIFT = 9, LABELS = 160, ATTEMPTS = 2500, BOX = 8, ZOOM = 4000;
const view = { x: 0, y: 0, zoom: 1 }, pointers = new Map(), widths = new Map();
let xy, names, groups, order, starts, image, pixels, taken, count = 0, ratio = 1, unit = 1, waiting = false;
let colours = [], palette = [], middles = [], selected = -1, chosen = -1, lower = null, settling = 0;
let moving = 0, dragged = false, quick = false;

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
function indexPoints() {
  starts = new Uint32Array(CELLS * CELLS + 1);
  order = new Uint32Array(count);
  const cell = point => (xy[2 * point + 1] >> SHIFT) * CELLS + (xy[2 * point] >> SHIFT);
  for (let point = 0; point < count; point++) starts[cell(point) + 1]++;
  for (let each = 0; each < CELLS * CELLS; each++) starts[each + 1] += starts[each];
  const next = starts.slice();
  for (let point = 0; point < count; point++) order[next[cell(point)]++] = point;
}
function rgb(text) { return [1, 3, 5].map(start => parseInt(text.slice(start, start + 2), 16)); }
function hue(number, dark) {
  const angle = (205 + 137.508 * number) % 360, light = dark ? 0.66 : 0.4, spread = 0.6 * Math.min(light, 1 - light);
  return [0, 8, 4].map(offset => {
    const turn = (offset + angle / 30) % 12;
    return Math.round(255 * (light - spread * Math.max(-1, Math.min(turn - 3, 9 - turn, 1))));
  });
}
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const [paper, ink, faint, mark] = ["paper", "ink", "faint", "mark"].map(name =>
    rgb(style.getPropertyValue("--" + name).trim()));
  const dark = paper[0] < 128;
  colours = { paper, ink, faint, mark };
  palette = facts.clusters.map((_, number) => hue(number, dark));
  for (const button of document.querySelectorAll("[data-cluster]"))
    button.firstChild.style.background = css(palette[button.dataset.cluster]);
}
function css(colour, alpha = 1) { return `rgba(${colour.join(",")},${alpha})`; }
function resize() {
  ratio = quick ? 1 : Math.min(devicePixelRatio || 1, 2);
  canvas.width = Math.max(50, Math.round(stage.clientWidth * ratio));
  canvas.height = Math.max(50, Math.round(stage.clientHeight * ratio));
  image = context.createImageData(canvas.width, canvas.height);
  pixels = new Uint32Array(image.data.buffer);
  taken = new Uint8Array(Math.ceil(canvas.width / BOX) * Math.ceil(canvas.height / BOX));
  const edge = 24 * ratio;
  unit = Math.min((canvas.width - 2 * edge) / Math.max(1, facts.width), (canvas.height - 2 * edge)
    / Math.max(1, facts.height));
}
const home = () => ({ x: facts.width / 2, y: facts.height / 2, zoom: 1 });
const toX = x => canvas.width / 2 + (x - view.x) * unit * view.zoom;
const toY = y => canvas.height / 2 - (y - view.y) * unit * view.zoom;
const atX = x => view.x + (x - canvas.width / 2) / (unit * view.zoom);
const atY = y => view.y - (y - canvas.height / 2) / (unit * view.zoom);
function request() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}
function disc(diameter, strength) {
  const size = Math.ceil(diameter) + 1 | 1, middle = (size - 1) / 2, mask = new Uint8Array(size * size);
  for (let place = 0; place < mask.length; place++) {
    const distance = Math.hypot(place % size - middle, Math.floor(place / size) - middle);
    mask[place] = 255 * strength * Math.max(0, Math.min(1, diameter / 2 + 0.5 - distance));
  }
  return { size, mask };
}
function drawPoints(diameter) {
  const paper = colours.paper, wide = canvas.width, high = canvas.height, scale = unit * view.zoom;
  const strength = Math.min(0.95, 0.45 + diameter / ratio / 12), full = disc(diameter, strength);
  const dim = disc(diameter, strength / 4);
  pixels.fill((255 << 24 | paper[2] << 16 | paper[1] << 8 | paper[0]) >>> 0);
  const cells = value => Math.max(0, Math.min(CELLS - 1, Math.floor(value) >> SHIFT));
  const left = cells(atX(-9)), right = cells(atX(wide + 9)), low = cells(atY(high + 9)), top = cells(atY(-9));
  const shiftX = wide / 2 - view.x * scale, shiftY = high / 2 + view.y * scale;
  const plain = groups ? palette : [colours.mark], size = full.size, half = size >> 1;
  for (let row = low; row <= top; row++) {
    const stop = starts[row * CELLS + right + 1];
    for (let place = starts[row * CELLS + left]; place < stop; place++) {
      const point = order[place], group = groups ? groups[point] : 0, off = chosen >= 0 && group !== chosen;
      const x = Math.round(xy[2 * point] * scale + shiftX) - half;
      const y = Math.round(shiftY - xy[2 * point + 1] * scale) - half;
      if (x < 0 || y < 0 || x + size > wide || y + size > high) continue;
      const colour = off ? colours.faint : plain[group], mask = off ? dim.mask : full.mask;
      const red = colour[0], green = colour[1], blue = colour[2];
      for (let line = 0, each = 0; line < size; line++) {
        let pixel = (y + line) * wide + x;
        for (let column = 0; column < size; column++, pixel++, each++) {
          const alpha = mask[each];
          if (!alpha) continue;
          const old = pixels[pixel], r = old & 255, g = old >> 8 & 255, b = old >> 16 & 255;
          pixels[pixel] = 0xff000000 | (b + ((blue - b) * alpha >> 8)) << 16 | (g + ((green - g) * alpha >> 8)) << 8
            | (r + ((red - r) * alpha >> 8));
        }
      }
    }
  }
  context.putImageData(image, 0, 0);
}
function free(left, top, right, bottom) {
  const wide = Math.ceil(canvas.width / BOX), x1 = Math.floor(left / BOX), x2 = Math.floor(right / BOX);
  const y1 = Math.floor(top / BOX), y2 = Math.floor(bottom / BOX);
  if (left < 0 || top < 0 || right >= canvas.width || bottom >= canvas.height) return false;
  for (let y = y1; y <= y2; y++) for (let x = x1; x <= x2; x++) if (taken[y * wide + x]) return false;
  for (let y = y1; y <= y2; y++) taken.fill(1, y * wide + x1, y * wide + x2 + 1);
  return true;
}
function label(text, x, y, size, colour, bold, centered) {
  const key = (bold ? "b" : "") + text;
  let wide = widths.get(key);
  if (wide === undefined) widths.set(key, wide = context.measureText(text).width / ratio);
  wide *= ratio;
  const left = centered ? x - wide / 2 : x, half = 0.62 * size;
  if (!free(left - 2, y - half, left + wide + 2, y + half)) return false;
  context.fillStyle = css(colours.paper, 0.76);
  context.fillRect(left - 2, y - half, wide + 4, 2 * half);
  context.fillStyle = css(colour);
  context.fillText(text, left, y);
  return true;
}
const short = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
function* visible() {
  const left = atX(0), right = atX(canvas.width), low = atY(canvas.height), top = atY(0);
  for (let point = 0; point < count; point++) {
    const x = xy[2 * point], y = xy[2 * point + 1];
    if (x >= left && x <= right && y >= low && y <= top && (chosen < 0 || groups[point] === chosen)) yield point;
  }
}
function drawLabels(diameter) {
  taken.fill(0);
  context.textBaseline = "middle";
  const family = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size = 13 * ratio;
  if (selected >= 0) {
    context.font = `600 ${size}px ${family}`;
    const x = toX(xy[2 * selected]), y = toY(xy[2 * selected + 1]);
    context.strokeStyle = css(colours.ink);
    context.lineWidth = 2 * ratio;
    context.beginPath();
    context.arc(x, y, diameter / 2 + 4 * ratio, 0, 2 * Math.PI);
    context.stroke();
    label(short(names[selected], 40), x + diameter / 2 + 7 * ratio, y, size, colours.ink, true);
  }
  context.font = `600 ${1.1 * size}px ${family}`;
  middles.forEach(([x, y], number) => {
    if (chosen < 0 || chosen === number)
      label(short(facts.clusters[number], 46), toX(x), toY(y), 1.1 * size, colours.ink, true, true);
  });
  context.font = `${size}px ${family}`;
  let shown = 0, tries = 0;
  const few = facts.unit === "word" || count / view.zoom ** 2 < 60;
  if (few) for (const point of visible()) {
    if (++tries > ATTEMPTS || shown >= LABELS) break;
    const x = toX(xy[2 * point]) + diameter / 2 + 3 * ratio;
    if (label(short(names[point], 36), x, toY(xy[2 * point + 1]), size, colours.ink)) shown++;
  }
}
function draw() {
  if (!count) return;
  const area = canvas.width * canvas.height * view.zoom ** 2 / count;
  const diameter = Math.max(1.6 * ratio, Math.min(9 * ratio, 0.42 * Math.sqrt(area)));
  drawPoints(diameter);
  drawLabels(diameter);
  clearTimeout(settling);
  settling = setTimeout(settle, 200);
}
function settle() {
  if (quick) {
    quick = false;
    if (devicePixelRatio > 1) { resize(); request(); return; }
  }
  const state = { x: Math.round(view.x), y: Math.round(view.y), zoom: Number(view.zoom.toPrecision(4)) };
  if (selected >= 0) state.point = selected + 1;
  if (chosen >= 0) state.cluster = chosen + 1;
  history.replaceState(null, "", "#" + new URLSearchParams(state));
  listVisible();
  document.body.dataset.settled = Number(document.body.dataset.settled || 0) + 1;
}
function listVisible() {
  if (!byId("listed").open) return;
  const items = [];
  for (const point of visible()) {
    if (items.push(item(point)) >= 200) break;
  }
  byId("words").replaceChildren(...items);
}
function item(point) {
  const element = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  button.textContent = short(names[point], 120);
  button.onclick = () => jump(point);
  element.append(button);
  return element;
}
function move(next) {
  if (!quick && devicePixelRatio > 1) {  // fewer pixels while the map moves
    quick = true;
    resize();
  }
  view.zoom = Math.max(0.5, Math.min(ZOOM, next.zoom));
  view.x = Math.max(0, Math.min(facts.width, next.x));
  view.y = Math.max(0, Math.min(facts.height, next.y));
  request();
}
function zoom(factor, x = canvas.width / 2, y = canvas.height / 2) {
  const [worldX, worldY] = [atX(x), atY(y)], next = Math.max(0.5, Math.min(ZOOM, view.zoom * factor));
  const share = view.zoom / next;
  move({ x: worldX - (worldX - view.x) * share, y: worldY - (worldY - view.y) * share, zoom: next });
}
function fly(target) {
  const from = { ...view }, began = performance.now(), own = ++moving;
  const length = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 400;
  const step = now => {
    if (own !== moving) return;
    const part = length ? Math.min(1, Math.max(0, (now - began) / length)) : 1, eased = part * (2 - part);
    const at = name => from[name] + (target[name] - from[name]) * eased;
    move({ x: at("x"), y: at("y"), zoom: from.zoom * (target.zoom / from.zoom) ** eased });
    if (part < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
function choosePoint(point) {
  selected = point;
  read.replaceChildren();
  if (point >= 0) {
    const title = document.createElement("b");
    title.textContent = names[point];
    read.append(title, groups ? facts.clusters[groups[point]] : "");
  }
  request();
}
function jump(point) {
  choosePoint(point);
  const near = Math.min(ZOOM, Math.max(view.zoom, Math.sqrt(count / 60)));
  fly({ x: xy[2 * point], y: xy[2 * point + 1], zoom: near });
}
function find(text) {
  const wanted = text.trim().toLowerCase(), found = [[], [], []];
  if (!wanted) return [];
  lower ??= names.map(name => name.toLowerCase());
  for (let point = 0; point < count; point++) {
    const place = lower[point].indexOf(wanted);
    if (place < 0) continue;
    const kind = lower[point] === wanted ? 0 : place ? 2 : 1;
    if (found[kind].length < 12) found[kind].push(point);
    if (found[1].length >= 12 && found[0].length) break;
  }
  return found.flat().slice(0, 12);
}
function nearestTo(x, y) {
  const reach = 14 * ratio, scale = unit * view.zoom;
  const cell = value => Math.max(0, Math.min(CELLS - 1, Math.floor(value) >> SHIFT));
  let best = -1, least = reach * reach;
  for (let row = cell(atY(y + reach)); row <= cell(atY(y - reach)); row++) {
    const stop = starts[row * CELLS + cell(atX(x + reach)) + 1];
    for (let place = starts[row * CELLS + cell(atX(x - reach))]; place < stop; place++) {
      const point = order[place], across = toX(xy[2 * point]) - x, down = toY(xy[2 * point + 1]) - y;
      const distance = across * across + down * down;
      if (distance < least && (chosen < 0 || groups[point] === chosen)) [best, least] = [point, distance];
    }
  }
  return best;
}
function place(event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
const placeInPixels = event => place(event).map(value => value * ratio);
function say(event, point) {
  tip.hidden = point < 0;
  stage.style.cursor = point < 0 ? "grab" : "pointer";
  if (point < 0) return;
  tip.textContent = short(names[point], 300) + (groups ? `  (${facts.clusters[groups[point]]})` : "");
  tip.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
}
stage.addEventListener("wheel", event => {
  event.preventDefault();
  moving++;
  zoom(Math.exp(-Math.max(-120, Math.min(120, event.deltaY)) / 300), ...placeInPixels(event));
}, { passive: false });
stage.addEventListener("pointerdown", event => {
  pointers.set(event.pointerId, place(event));
  stage.setPointerCapture(event.pointerId);
  moving++;
  dragged = false;
});
stage.addEventListener("pointermove", event => {
  const now = place(event), before = pointers.get(event.pointerId);
  if (!before) {
    say(event, nearestTo(...placeInPixels(event)));
    return;
  }
  if (Math.hypot(now[0] - before[0], now[1] - before[1]) > 2) dragged = true;
  if (!dragged) return;
  tip.hidden = true;
  if (pointers.size === 2) {
    const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const length = at => Math.max(1, Math.hypot(at[0] - other[0], at[1] - other[1]));
    zoom(length(now) / length(before), ratio * (now[0] + other[0]) / 2, ratio * (now[1] + other[1]) / 2);
  } else {
    const step = ratio / (unit * view.zoom);
    move({ x: view.x - (now[0] - before[0]) * step, y: view.y + (now[1] - before[1]) * step, zoom: view.zoom });
  }
  pointers.set(event.pointerId, now);
});
for (const kind of ["pointerup", "pointercancel"]) stage.addEventListener(kind, event => {
  const clicked = pointers.delete(event.pointerId) && kind === "pointerup" && !dragged;
  if (clicked) choosePoint(nearestTo(...placeInPixels(event)));
});
stage.addEventListener("pointerleave", event => say(event, -1));
stage.addEventListener("dblclick", event => zoom(2, ...placeInPixels(event)));
const actions = { in: () => zoom(1.5), out: () => zoom(1 / 1.5), reset: () => fly(home()), png: save };
for (const button of document.querySelectorAll("button[data-action]")) button.onclick = actions[button.dataset.action];
for (const button of document.querySelectorAll("button[data-cluster]")) button.onclick = () => {
  chooseCluster(Number(button.dataset.cluster) === chosen ? -1 : Number(button.dataset.cluster));
};
function chooseCluster(number) {
  chosen = number;
  for (const button of document.querySelectorAll("button[data-cluster]"))
    button.setAttribute("aria-pressed", Number(button.dataset.cluster) === number);
  request();
}
const search = byId("search"), results = byId("results");
search.addEventListener("input", () => results.replaceChildren(...find(search.value).map(item)));
search.addEventListener("keydown", event => {
  if (event.key !== "Enter") return;
  const [first] = find(search.value);
  if (first === undefined) read.textContent = search.value.trim() ? `${search.value.trim()} is not on this map.` : "";
  else jump(first);
});
byId("listed").addEventListener("toggle", listVisible);
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target === search) return;
  const action = { "+": "in", "=": "in", "-": "out", "0": "reset" }[event.key];
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  if (action) actions[action]();
  else if (event.key === "/") { event.preventDefault(); search.focus(); }
  else if (event.key === "Escape") { choosePoint(-1); chooseCluster(-1); }
  else if (step && document.activeElement === stage) {
    event.preventDefault();
    const far = 0.15 * canvas.height / (unit * view.zoom);
    move({ x: view.x + step[0] * far, y: view.y + step[1] * far, zoom: view.zoom });
  }
});
function save() {
  const link = document.createElement("a");
  link.download = document.title.replace(/[^\p{L}\p{N}]+/gu, "-") + ".png";
  link.href = canvas.toDataURL("image/png");
  link.click();
  document.body.dataset.saved = link.href.length;
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); request(); });
new ResizeObserver(() => { if (count) { resize(); request(); } }).observe(stage);
async function start() {
  if (typeof DecompressionStream === "undefined") {
    read.textContent = "This browser is too old to show the map.";
    return;
  }
  xy = new Uint16Array((await inflate(facts.points)).buffer);
  names = new TextDecoder().decode(await inflate(facts.names)).split("\n");
  groups = facts.groups ? await inflate(facts.groups) : null;
  count = names.length;
  indexPoints();
  middles = facts.clusters.map((_, number) => {
    const inside = [...order.keys()].filter(point => groups[point] === number), half = inside.length >> 1;
    return [0, 1].map(axis => inside.map(point => xy[2 * point + axis]).sort((one, other) => one - other)[half]);
  });
  readColours();
  resize();
  const state = new URLSearchParams(location.hash.slice(1)), given = name => Number(state.get(name));
  Object.assign(view, home());
  if (given("zoom") > 0) move({ x: given("x"), y: given("y"), zoom: given("zoom") });
  if (given("point") >= 1 && given("point") <= count) choosePoint(given("point") - 1);
  if (given("cluster") >= 1 && given("cluster") <= facts.clusters.length) chooseCluster(given("cluster") - 1);
  draw();
  document.body.dataset.shown = count;
}
start();
