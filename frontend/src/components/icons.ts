/** Icons as paths on a grid of 20 by 20, drawn with strokes. */

export const icons = {
  try: "M3 5h14v8H9l-4 3.5V13H3Z M6.5 9h7",
  words: "M4 15 8 5l4 10 M5.5 11.5h5 M14.5 9.5a2.7 2.7 0 1 0 2 4.4 M17 9.5V15",
  attention: "M3 5h14 M3 15h14 M5 5l9 10 M10 5 5 15 M15 5l-5 10",
  layers: "m10 3 7 3.5-7 3.5-7-3.5Z M3 10l7 3.5 7-3.5 M3 13.5 10 17l7-3.5",
  trace: "M4 4v5h5 M4 9c0 4 2 6 6 6h6 M13 12l3 3-3 3",
  explain: "M9 3.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Z M13 13l4 4 M9 6.5v2.7 M9 11.4v.1",
  bias: "M10 3v14 M6 17h8 M3.5 6 10 5l6.5-1 M3.5 6 1.8 11h3.400Z M16.500 4l-1.7 5h3.4Z",
  figures: "M3 4h5v4H3Z M12 4h5v4h-5Z M7.500 13h5v4h-5Z M5.500 8v2.500h9V8 M10 10.500V13",
  runs: "M3 3v14h14 M6 12l3-5 3 3 4-6",
  compare: "M4 17V9h3v8Z M8.5 17V4h3v13Z M13 17v-5h3v5Z",
  claims: "M4 3.5h12v13H4Z M7 10l2.2 2.2L13.2 8",
  data: "M4 5.5C4 4 16 4 16 5.5v9c0 1.5-12 1.5-12 0Z M4 5.500c0 1.5 12 1.5 12 0 M4 10c0 1.5 12 1.5 12 0",
  menu: "M3 6h14 M3 10h14 M3 14h14",
  close: "M5 5l10 10 M15 5 5 15",
  sun: "M10 6.500a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7Z M10 2v1.5 M10 16.500V18 M2 10h1.5 M16.5 10H18 M4.3 4.300l1.1 1.1 M14.6 14.600l1.1 1.1 M4.3 15.700l1.1-1.1 M14.6 5.400l1.1-1.1",
  moon: "M16 11.500A6.5 6.5 0 0 1 8.5 4a6.5 6.5 0 1 0 7.5 7.500Z",
  save: "M10 3v9 M6.5 8.5 10 12l3.5-3.5 M4 16h12",
} as const;

export type Icon = keyof typeof icons;
