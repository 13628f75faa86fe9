/** The width of text in figures, before it is drawn. */

const context = document.createElement("canvas").getContext("2d");
let family = "";

/** Pixels of a text in the font of the page. */
export function textWidth(text: string, size = 14, weight = 400): number {
  family ||= getComputedStyle(document.body).fontFamily;
  if (!context) return text.length * size;
  context.font = `${weight} ${size}px ${family}`;
  return context.measureText(text).width;
}

/** A text cut to a width, with an ellipsis. */
export function fitted(text: string, width: number, size = 14, weight = 400): string {
  if (textWidth(text, size, weight) <= width) return text;
  const signs = [...text];
  while (signs.length > 1 && textWidth(`${signs.join("")}…`, size, weight) > width) signs.pop();
  return `${signs.join("").trimEnd()}…`;
}

/** A token as it is shown: whitespace is visible. */
export function visible(token: string): string {
  return token.trim() || "␣";
}
