// Where points lie in the graphics card's memory, and what lies there: four 16-bit numbers a point, three of a position
// and a code for its colour.
//
// Rows are dealt out to STRATA heaps that lie one behind the other. So the first k slots are every (n / k)-th point or so: what
// is drawn while there is no time for all is an even sample, whatever the order of the rows; and filling stays fast, as it
// writes into a few places at once, each in order.

import { type Dataset, presentBits } from './dataset';
import { bad, type FrameLine, MISSING, type Parsed, STEPS, type Tensors, tensor16 } from './wire';

export const STRATA = 61;

/** Codes that are no colour: of a point that has no category or value, and of one that is not in the frame. */
export const NO_COLOUR = 65_534;
export const ABSENT = 65_535;
/** Values have the codes from 0 to this. */
export const CODES = 65_533;

export type Colouring =
  | { kind: 'grouping'; name: string }
  | { kind: 'value'; name: string; low: number; high: number }
  | { kind: 'plain' };

export class Slots {
  private readonly begins: Uint32Array;

  constructor(readonly points: number) {
    this.begins = new Uint32Array(STRATA + 1);
    for (let stratum = 0; stratum < STRATA; stratum++)
      this.begins[stratum + 1] = this.begins[stratum] + Math.ceil(Math.max(0, points - stratum) / STRATA);
  }

  slotOf(row: number): number {
    return this.begins[row % STRATA] + Math.floor(row / STRATA);
  }

  rowOf(slot: number): number {
    let stratum = 0;
    while (this.begins[stratum + 1] <= slot) stratum++;
    return (slot - this.begins[stratum]) * STRATA + stratum;
  }

  /** How many slots the first heaps take. */
  slotsOf(strata: number): number {
    return this.begins[strata];
  }

  /**
   * Fills `target` (four numbers a slot) with a frame, coloured so, or with a sample of it: `count` points, which are
   * those of the first `strata` heaps.
   */
  fill(
    target: Uint16Array,
    dataset: Dataset,
    line: FrameLine,
    tensors: Tensors,
    colouring: Colouring,
    count = line.count,
    strata = STRATA,
  ): Parsed<void> {
    const position = tensor16(tensors, 'position', count * 3);
    if (!position.ok) return bad(`${line.file}: ${position.reason}`);
    const codes = codesOf(dataset, line, tensors, colouring, count);
    if (!codes.ok) return bad(`${line.file}: ${codes.reason}`);
    const bits = tensors.get('present')?.data;
    if (bits === undefined && line.count !== line.points) return bad(`${line.file} does not say which points it has`);
    const from = position.value;
    const { array, byRow, base, scale } = codes.value;
    const next = this.begins.slice(0, strata);
    // `at` counts points that are there, `seen` rows that could be.
    let at = 0;
    let seen = 0;
    for (let row = 0, stratum = 0; row < this.points; row++) {
      const slot = next[stratum]++ * 4;
      const here = row;
      if (++stratum === strata) {
        stratum = 0;
        row += STRATA - strata;
      }
      const bit = seen++;
      if (here >= line.points || (bits !== undefined && (bits[bit >> 3] & (1 << (bit & 7))) === 0)) {
        target[slot + 3] = ABSENT;
        continue;
      }
      target[slot] = from[at * 3];
      target[slot + 1] = from[at * 3 + 1];
      target[slot + 2] = from[at * 3 + 2];
      // Of points that have come since categories were asked for, nothing is known yet.
      const code = array?.[byRow ? here : at] ?? MISSING;
      // What is beyond the ends of the colours has that of the end.
      target[slot + 3] = code === MISSING ? NO_COLOUR : Math.min(CODES, Math.max(0, base + code * scale));
      at++;
      if (at > count) return bad(`${line.file} has more points than it says`);
    }
    return { ok: true, value: undefined };
  }
}

/** Numbers from which `base + number * scale` is the code of a colour, by row or in the order of the frame. */
type Codes = { array: Uint16Array | undefined; byRow: boolean; base: number; scale: number };

function codesOf(
  dataset: Dataset,
  line: FrameLine,
  tensors: Tensors,
  colouring: Colouring,
  count: number,
): Parsed<Codes> {
  if (colouring.kind === 'plain') return { ok: true, value: { array: undefined, byRow: true, base: 0, scale: 1 } };
  if (colouring.kind === 'grouping') {
    const own = `group.${colouring.name}`;
    if (!tensors.has(own)) {
      const array = dataset.groupings.get(colouring.name)?.codes;
      return { ok: true, value: { array, byRow: true, base: 0, scale: 1 } };
    }
    const array = tensor16(tensors, own, count);
    return array.ok ? { ok: true, value: { array: array.value, byRow: false, base: 0, scale: 1 } } : array;
  }
  const range = line.values.get(colouring.name);
  if (range === undefined) return { ok: true, value: { array: undefined, byRow: false, base: 0, scale: 1 } };
  const array = tensor16(tensors, `value.${colouring.name}`, count);
  if (!array.ok) return array;
  // Each frame has its own range; colours mean the same in all of them.
  const width = colouring.high - colouring.low || 1;
  const base = ((range[0] - colouring.low) / width) * CODES;
  const scale = ((range[1] - range[0]) / STEPS / width) * CODES;
  return { ok: true, value: { array: array.value, byRow: false, base, scale } };
}

/** The value or category code of one point in a frame, and where it is; undefined if it is not there. */
export function lookUp(line: FrameLine, tensors: Tensors, row: number): number | undefined {
  if (row >= line.points) return undefined;
  const bits = presentBits(line, tensors);
  if (bits === undefined) return row;
  if ((bits[row >> 3] & (1 << (row & 7))) === 0) return undefined;
  let at = 0;
  for (let byte = 0; byte < row >> 3; byte++) at += ones(bits[byte]);
  return at + ones(bits[row >> 3] & ((1 << (row & 7)) - 1));
}

function ones(byte: number): number {
  let left = byte;
  let count = 0;
  while (left !== 0) {
    left &= left - 1;
    count++;
  }
  return count;
}
