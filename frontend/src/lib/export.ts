/** A figure as a file: SVG that stands alone, PNG drawn from it, and the data as JSON. */

const NAMESPACE = "http://www.w3.org/2000/svg";
/** Presentation attributes that stand in for the page's style sheets. */
const PROPERTIES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
  "opacity", "image-rendering", "font-family", "font-size", "font-weight", "font-style", "letter-spacing", "text-anchor", "dominant-baseline",
]; // prettier-ignore
const SCALE = 2;

/** The figure with its styles as attributes, in the light theme and on white. */
export function standalone(figure: SVGSVGElement): string {
  const stage = document.createElement("div");
  stage.className = "theme-light visually-hidden";
  const copy = figure.cloneNode(true) as SVGSVGElement;
  // Beside the figure, so that style sheets with the figure's surroundings in their selectors apply.
  figure.parentElement?.append(stage);
  stage.append(copy);
  const elements = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  for (const element of elements) {
    const style = getComputedStyle(element);
    for (const name of PROPERTIES) {
      const value = style.getPropertyValue(name);
      if (value && element.parentElement && value !== inherited(element, name)) element.setAttribute(name, plain(value));
    }
  }
  for (const element of elements) {
    for (const name of [...element.getAttributeNames()]) {
      if (name === "class" || name === "tabindex" || name === "style" || name.startsWith("data-")) element.removeAttribute(name);
    }
  }
  stage.remove();
  const { width, height } = bounds(figure);
  copy.setAttribute("xmlns", NAMESPACE);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const ground = document.createElementNS(NAMESPACE, "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", "#ffffff");
  copy.prepend(ground);
  return new XMLSerializer().serializeToString(copy);
}

export function saveSvg(name: string, figure: SVGSVGElement): void {
  save(`${name}.svg`, new Blob([standalone(figure)], { type: "image/svg+xml" }));
}

export function saveJson(name: string, data: unknown): void {
  save(`${name}.json`, new Blob([JSON.stringify(data, null, 2) + "\n"], { type: "application/json" }));
}

export async function savePng(name: string, figure: SVGSVGElement): Promise<void> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(figure))}`;
  await image.decode();
  const { width, height } = bounds(figure);
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * SCALE);
  canvas.height = Math.ceil(height * SCALE);
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  await saveCanvas(name, canvas);
}

export async function saveCanvas(name: string, canvas: HTMLCanvasElement): Promise<void> {
  const content = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (content) save(`${name}.png`, content);
}

function bounds(figure: SVGSVGElement): { width: number; height: number } {
  const { width, height } = figure.viewBox.baseVal;
  return width && height ? { width, height } : figure.getBoundingClientRect();
}

/** A value that programs for SVG 1.1 understand: they paint an unknown colour, such as a transparent one, black. */
function plain(value: string): string {
  return value === "rgba(0, 0, 0, 0)" ? "none" : value;
}

/** The value that an element has without an attribute of its own. */
function inherited(element: SVGElement, name: string): string | null {
  const parent = element.parentElement;
  if (!(parent instanceof SVGElement) || name.endsWith("opacity") || name === "dominant-baseline") return null;
  return getComputedStyle(parent).getPropertyValue(name);
}

function save(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
