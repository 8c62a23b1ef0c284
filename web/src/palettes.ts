// Colours of categories and values.

export type Rgb = readonly [number, number, number];

/** For categories. The first two can be told apart by colour-blind readers as well. */
export const SCHEMES: ReadonlyMap<string, readonly string[]> = new Map([
  // P. Tol, "Colour schemes" (2021), muted, from which wine is left out as it is too dark for a dark page.
  [
    'Muted (colour-blind safe)',
    ['#88ccee', '#cc6677', '#ddcc77', '#44aa99', '#aa4499', '#999933', '#6699cc', '#ee8866', '#bbcc33', '#997799'],
  ],
  // M. Okabe and K. Ito (2008); grey in place of black.
  [
    'Okabe–Ito (colour-blind safe)',
    ['#e69f00', '#56b4e9', '#009e73', '#f0e442', '#0072b2', '#d55e00', '#cc79a7', '#8a8f98'],
  ],
  [
    'Tableau',
    ['#4e79a7', '#f28e2b', '#e15759', '#76b7b2', '#59a14f', '#edc948', '#b07aa1', '#ff9da7', '#9c755f', '#bab0ac'],
  ],
  ['Ordered', []],
]);

// Without their darkest part, which a dark page would swallow.
const VIRIDIS = ['#3e4a89', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6dcd59', '#b4de2c', '#fde725'];
const CIVIDIS = ['#3b496c', '#575d6d', '#707173', '#8a8678', '#a59c74', '#c3b369', '#e1cc55', '#fee838'];
const BLUE_RED = ['#2166ac', '#4393c3', '#92c5de', '#d1e5f0', '#e8e8e8', '#fddbc7', '#f4a582', '#d6604d', '#b2182b'];

/** For values. */
export const RAMPS: ReadonlyMap<string, readonly string[]> = new Map([
  ['Viridis', VIRIDIS],
  ['Cividis (colour-blind safe)', CIVIDIS],
  ['Blue to red', BLUE_RED],
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

/** The colour of a category: the scheme's own; beyond those, hues a golden angle apart, so that neighbours differ. */
export function categoryColour(scheme: string, code: number, categories: number): Rgb {
  const colours = SCHEMES.get(scheme) ?? [];
  if (colours.length === 0) return ramp(BLUE_RED, categories > 1 ? code / (categories - 1) : 0.5);
  if (code < colours.length) return rgb(colours[code]);
  const hue = (code * 137.508) % 360;
  return hsl(hue, 0.55, code % 2 === 0 ? 0.62 : 0.48);
}

function hsl(hue: number, saturation: number, lightness: number): Rgb {
  const width = saturation * Math.min(lightness, 1 - lightness);
  const part = (n: number) => {
    const k = (n + hue / 30) % 12;
    return 255 * (lightness - width * Math.max(-1, Math.min(k - 3, 9 - k, 1)));
  };
  return [part(0), part(8), part(4)];
}
