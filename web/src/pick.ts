// Which points are where on the screen. Pure: positions as they lie in the graphics card's memory, and a matrix.

import { ABSENT, NO_COLOUR } from './slots';

/** Two frames, and how far between them things are. */
export type Between = {
  a: Uint16Array;
  b: Uint16Array;
  lowA: readonly number[];
  stepA: readonly number[];
  lowB: readonly number[];
  stepB: readonly number[];
  t: number;
  /** For each code whether it is shown. */
  shown: Uint8Array;
  /** The graphics card shows a colour between those of two values. */
  blend: boolean;
};

export type Screen = {
  /** From positions to clip space, by columns as in WebGL. */
  matrix: readonly number[];
  width: number;
  height: number;
};

export type Spot = { x: number; y: number; depth: number };

/** Where a slot's point is; false if it is not there. Writes into `to`, as it is called for each point. */
export function positionOf(between: Between, slot: number, to: Float64Array): boolean {
  const { a, b, lowA, stepA, lowB, stepB, t } = between;
  const i = slot * 4;
  const [hereA, hereB] = [a[i + 3] !== ABSENT, b[i + 3] !== ABSENT];
  // A point that comes or goes fades: it counts while it is in the nearer frame.
  if (!(t < 0.5 ? hereA : hereB)) return false;
  for (let axis = 0; axis < 3; axis++) {
    const atA = lowA[axis] + a[i + axis] * stepA[axis];
    const atB = lowB[axis] + b[i + axis] * stepB[axis];
    to[axis] = !hereB ? atA : !hereA ? atB : atA + (atB - atA) * t;
  }
  return true;
}

/** The code of a slot's point in the nearer frame, else in the one that has it. */
export function codeOf(between: Between, slot: number): number {
  const [a, b] = [between.a[slot * 4 + 3], between.b[slot * 4 + 3]];
  return a !== ABSENT && (between.t < 0.5 || b === ABSENT) ? a : b;
}

/** The code of the colour that the graphics card shows: between those of two values, while a category is one or the other. */
export function colourCodeOf(between: Between, slot: number): number {
  const [a, b] = [between.a[slot * 4 + 3], between.b[slot * 4 + 3]];
  // What has no value has nothing between.
  if (!between.blend || Math.max(a, b) >= NO_COLOUR) return codeOf(between, slot);
  return Math.floor(a + (b - a) * between.t + 0.5);
}

/** Points in the nearer frame, for each code: the frame whose time and figures the page shows. */
export function countCodes(between: Between): Map<number, number> {
  const array = between.t < 0.5 ? between.a : between.b;
  const counts = new Uint32Array(ABSENT + 1);
  for (let i = 3; i < array.length; i += 4) counts[array[i]]++;
  const found = new Map<number, number>();
  counts.forEach((count, code) => {
    if (count > 0 && code !== ABSENT) found.set(code, count);
  });
  return found;
}

export function project(screen: Screen, at: ArrayLike<number>): Spot | undefined {
  const { matrix: m, width, height } = screen;
  const w = m[3] * at[0] + m[7] * at[1] + m[11] * at[2] + m[15];
  if (w <= 0) return undefined;
  const x = (m[0] * at[0] + m[4] * at[1] + m[8] * at[2] + m[12]) / w;
  const y = (m[1] * at[0] + m[5] * at[1] + m[9] * at[2] + m[13]) / w;
  return { x: ((x + 1) / 2) * width, y: ((1 - y) / 2) * height, depth: w };
}

/** Calls `visit` for each point that is shown and in front of the camera. */
function eachShown(between: Between, screen: Screen, points: number, visit: (slot: number, spot: Spot) => void): void {
  const at = new Float64Array(3);
  for (let slot = 0; slot < points; slot++) {
    if (!positionOf(between, slot, at) || between.shown[codeOf(between, slot)] === 0) continue;
    const spot = project(screen, at);
    if (spot !== undefined) visit(slot, spot);
  }
}

/** The slot of the point under a place: of those within `radius` pixels the one in front, unless another is far nearer. */
export function nearest(
  between: Between,
  screen: Screen,
  points: number,
  x: number,
  y: number,
  radius: number,
): number | undefined {
  let best: number | undefined;
  let least = Infinity;
  eachShown(between, screen, points, (slot, spot) => {
    const away = Math.hypot(spot.x - x, spot.y - y);
    if (away > radius) return;
    const cost = away / radius + spot.depth * 0.05;
    if (cost < least) [best, least] = [slot, cost];
  });
  return best;
}

/** The slots within a lasso, a list of x and y in turns. */
export function inside(between: Between, screen: Screen, points: number, lasso: readonly number[]): number[] {
  const found: number[] = [];
  eachShown(between, screen, points, (slot, spot) => {
    if (isInside(lasso, spot.x, spot.y)) found.push(slot);
  });
  return found;
}

/** Whether a ray from the place crosses the polygon's edge an odd number of times. */
export function isInside(polygon: readonly number[], x: number, y: number): boolean {
  let within = false;
  for (let i = 0, j = polygon.length - 2; i < polygon.length; j = i, i += 2) {
    const [xi, yi, xj, yj] = [polygon[i], polygon[i + 1], polygon[j], polygon[j + 1]];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) within = !within;
  }
  return within;
}
