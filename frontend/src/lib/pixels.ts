/** Matrices of 8-bit weights as images: one pixel each, in the colour of a CSS variable. */

export function bytes(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
}

/** The address of a PNG whose opacity is the weight, for an <image> in a figure. */
export function pixelImage(weights: Uint8Array, columns: number, rows: number, colour: [number, number, number]): string {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  if (!context) return "";
  const image = context.createImageData(columns, rows);
  for (let at = 0; at < weights.length; at++) image.data.set([...colour, weights[at] ?? 0], 4 * at);
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/** A colour of the design as red, green and blue, in the current theme. */
export function colourOf(variable: string): [number, number, number] {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const [red = 0, green = 0, blue = 0] = (getComputedStyle(probe).color.match(/[\d.]+/g) ?? []).map(Number);
  probe.remove();
  return [red, green, blue];
}
