/** Arrow keys that work anywhere on a page, but leave fields, lists and scrolling parts their own. */

const OWN = "input, select, textarea, [contenteditable], [role=listbox], [role=tablist], [role=region][tabindex], svg [tabindex]";

/** The direction of an arrow key, as a step down and to the right; null if the key is for something else. */
export function arrow(event: KeyboardEvent): readonly [down: number, right: number] | null {
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return null;
  if (event.target instanceof Element && event.target.closest(OWN)) return null;
  switch (event.key) {
    case "ArrowDown":
      return [1, 0];
    case "ArrowUp":
      return [-1, 0];
    case "ArrowRight":
      return [0, 1];
    case "ArrowLeft":
      return [0, -1];
    default:
      return null;
  }
}
