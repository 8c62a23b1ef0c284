// Colours of categories and values.

export type Rgb = readonly [number, number, number];

/** The scheme of categories that go from one end to the other, such as bins. */
export const ORDERED = 'Ordered';

/**
 * For categories. The colours of those that are called safe can be told apart, from each other, from the grey of points of no category and
 * from a light and a dark page, by people who lack any one of the three kinds of cones (palettes.test.ts checks it).
 */
export const SCHEMES: ReadonlyMap<string, readonly string[]> = new Map([
  // Found by search for the greatest of the least differences; each is as far as may be from those before it.
  [
    'Colour-blind safe to 12',
    [
      '#0083ec',
      '#ffd35f',
      '#4e6537',
      '#a0376c',
      '#1bcbff',
      '#7cae91',
      '#5d50b5',
      '#917800',
      '#eb9046',
      '#09788a',
      '#e55264',
      '#d390c8',
    ],
  ],
  // M. Okabe and K. Ito (2008) without black, which a dark page swallows, and purple, which some see as our grey.
  ['Okabe–Ito, safe to 6', ['#e69f00', '#56b4e9', '#009e73', '#f0e442', '#0072b2', '#d55e00']],
  [
    'Tableau',
    ['#4e79a7', '#f28e2b', '#e15759', '#76b7b2', '#59a14f', '#edc948', '#b07aa1', '#ff9da7', '#9c755f', '#bab0ac'],
  ],
  [ORDERED, []],
]);

/** What tells categories apart for which a scheme has no more colours: each round of colours has a shape of its own. */
export const SHAPES = ['circle', 'square', 'diamond', 'triangle', 'cross'] as const;
export type Look = { colour: Rgb; shape: number };

// Without their darkest part, which a dark page would swallow.
const VIRIDIS = ['#3e4a89', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6dcd59', '#b4de2c', '#fde725'];
const CIVIDIS = ['#3b496c', '#575d6d', '#707173', '#8a8678', '#a59c74', '#c3b369', '#e1cc55', '#fee838'];
// Its middle is as far from white as a light page needs.
const BLUE_RED = ['#2166ac', '#4393c3', '#76b0d4', '#a3bfd2', '#bcbcbc', '#dbb49f', '#f0a07c', '#d6604d', '#b2182b'];

/** The ramp of values on both sides of 0. */
export const DIVERGING = 'Blue to red';

/** For values. */
export const RAMPS: ReadonlyMap<string, readonly string[]> = new Map([
  ['Viridis', VIRIDIS],
  ['Cividis, color-blind safe', CIVIDIS],
  [DIVERGING, BLUE_RED],
]);

export function rgb(text: string): Rgb {
  const number = Number.parseInt(text.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

export function css([red, green, blue]: Rgb): string {
  return `rgb(${Math.round(red)} ${Math.round(green)} ${Math.round(blue)})`;
}

/** A colour as `css` writes it, as `#rrggbb`. */
export function hex(text: string): string {
  const parts = text.match(/\d+/g) ?? ['0', '0', '0'];
  return `#${parts
    .slice(0, 3)
    .map((part) => Number(part).toString(16).padStart(2, '0'))
    .join('')}`;
}

/** The colour at `part` (0 to 1) of a ramp. */
export function ramp(stops: readonly string[], part: number): Rgb {
  const at = Math.min(1, Math.max(0, part)) * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(at));
  const [a, b] = [rgb(stops[first]), rgb(stops[first + 1])];
  const t = at - first;
  return [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t];
}

/** The colours of a ramp as a CSS gradient. */
export function gradient(stops: readonly string[]): string {
  const colours = Array.from({ length: 12 }, (_, i) => css(ramp(stops, i / 11)));
  return `linear-gradient(to right, ${colours.join(', ')})`;
}

/** How many categories a scheme can tell apart, by colour and shape. */
export function looksOf(scheme: string): number {
  const colours = SCHEMES.get(scheme)?.length ?? 0;
  return colours === 0 ? Infinity : colours * SHAPES.length;
}

/** How a category is drawn; `shape` is its place among `SHAPES`. */
export function categoryLook(scheme: string, code: number, categories: number): Look {
  const colours = SCHEMES.get(scheme) ?? [];
  if (colours.length === 0) return { colour: ramp(BLUE_RED, categories > 1 ? code / (categories - 1) : 0.5), shape: 0 };
  return {
    colour: rgb(colours[code % colours.length]),
    shape: Math.floor(code / colours.length) % SHAPES.length,
  };
}
