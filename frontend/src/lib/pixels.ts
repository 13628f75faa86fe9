/** Matrices of 8-bit weights as images: one pixel each, in the colour of a CSS variable. */

export function bytes(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
}

type Colour = [red: number, green: number, blue: number];

/** The address of a PNG whose opacity is the weight, for an <image> in a figure. */
export function pixelImage(weights: Uint8Array, columns: number, rows: number, colour: Colour): string {
  return painted(columns, rows, (at) => [...colour, weights[at] ?? 0]);
}

/** The same for the cells of a traced tensor: roots of shares of the largest magnitude; 255 is minus infinity. */
export function signedImage(cells: Uint8Array, columns: number, rows: number, signed: boolean, colours: { positive: Colour; negative: Colour; masked: Colour }): string {
  return painted(columns, rows, (at) => {
    const byte = cells[at] ?? 0;
    if (byte === 255) return [...colours.masked, 255];
    const root = signed ? byte / 127 - 1 : byte / 254;
    return [...(root < 0 ? colours.negative : colours.positive), Math.round(255 * Math.abs(root))];
  });
}

function painted(columns: number, rows: number, pixel: (at: number) => [...Colour, opacity: number]): string {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  if (!context) return "";
  const image = context.createImageData(columns, rows);
  for (let at = 0; at < columns * rows; at++) image.data.set(pixel(at), 4 * at);
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/** A colour of the design as red, green and blue, in the current theme or the light one. */
export function colourOf(variable: string, light = false): Colour {
  const probe = document.createElement("span");
  if (light) probe.className = "theme-light";
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const [red = 0, green = 0, blue = 0] = (getComputedStyle(probe).color.match(/[\d.]+/g) ?? []).map(Number);
  probe.remove();
  return [red, green, blue];
}
