// The page of a map as SVG: zoom by wheel or buttons, pan by dragging, labels on hover, the picture as PNG.

const svg = document.querySelector("figure svg"), tip = document.getElementById("tip");
const home = svg.getAttribute("viewBox").split(" ").map(Number);
let view = home.slice(), drag = null;
function show(next) { view = next; svg.setAttribute("viewBox", view.join(" ")); }
function point(event) {
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
}
function zoom(factor, x, y) {
  const width = Math.min(home[2] * 2, Math.max(home[2] / 60, view[2] * factor)), share = width / view[2];
  show([x - (x - view[0]) * share, y - (y - view[1]) * share, width, view[3] * share]);
}
const middle = factor => zoom(factor, view[0] + view[2] / 2, view[1] + view[3] / 2);
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const at = point(event);
  zoom(event.deltaY < 0 ? 0.85 : 1 / 0.85, at.x, at.y);
}, { passive: false });
svg.addEventListener("pointerdown", event => { drag = point(event); svg.setPointerCapture(event.pointerId); });
svg.addEventListener("pointerup", () => { drag = null; });
svg.addEventListener("pointermove", event => {
  if (drag) {
    const at = point(event);
    show([view[0] + drag.x - at.x, view[1] + drag.y - at.y, view[2], view[3]]);
  }
  const title = event.target.closest && event.target.closest("circle")?.querySelector("title");
  tip.hidden = !title;
  if (title) {
    tip.textContent = title.textContent;
    tip.style.left = event.clientX + 14 + "px";
    tip.style.top = event.clientY + 14 + "px";
  }
});
svg.addEventListener("dblclick", () => show(home.slice()));
const actions = { in: () => middle(0.7), out: () => middle(1 / 0.7), reset: () => show(home.slice()), png: save };
for (const button of document.querySelectorAll("button[data-action]")) button.onclick = actions[button.dataset.action];
addEventListener("keydown", event => {
  const action = { "+": "in", "=": "in", "-": "out", "0": "reset" }[event.key];
  if (action && !event.ctrlKey && !event.metaKey) actions[action]();
});
function save() {
  const copy = svg.cloneNode(true), width = 2400, height = Math.round(width * view[3] / view[2]);
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = document.querySelector("style").textContent;
  copy.prepend(style);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    [canvas.width, canvas.height] = [width, height];
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, width, height);
    context.drawImage(image, 0, 0, width, height);
    const link = document.createElement("a");
    link.download = document.title.replace(/[^\p{L}\p{N}]+/gu, "-") + ".png";
    link.href = canvas.toDataURL("image/png");
    link.click();
    document.body.dataset.saved = link.href.length;
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
}
