/** Requests of the page Figures, with the types of their answers. */

import type { Noted } from "$lib/api";

export interface FigureKind {
  name: string;
  summary: string;
  /** The inputs that it depends on. */
  options: ("model" | "text" | "second")[];
  /** Systems whose models it shows. */
  systems: string[];
}

/** An element of an SVG. */
export interface Shape {
  tag: string;
  attributes: Record<string, string>;
  children: (Shape | string)[];
}

export interface FigureAnswer extends Noted {
  title: string;
  caption: string;
  numbers: Record<string, unknown>;
  picture: Shape;
}

/** x, y, width and height of what a picture shows. */
export function viewBox(picture: Shape): [x: number, y: number, width: number, height: number] {
  const [x = 0, y = 0, width = 1, height = 1] = (picture.attributes["viewBox"] ?? "").split(" ").map(Number);
  return [x, y, width, height];
}
