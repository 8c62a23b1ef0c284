// What the lines of the index add up to: how many points, groupings and frames. Knows neither network nor page, and no point by name.

import {
  bad,
  type FrameLine,
  type Header,
  type Line,
  MISSING,
  type Parsed,
  type Selection,
  type Tensors,
} from './wire';

export type Grouping = {
  names: string[];
  /** Whether its categories go from one end to the other, as bins do. */
  ordered: boolean;
  /** The category of each point in its first frame; undefined until somebody has asked for it (`Categories`). */
  codes: Uint16Array | undefined;
};
/** Points that came together, and the file that tells of them. */
export type Batch = { from: number; count: number; file: string | undefined };

/** What the groups that readers make are called as a grouping. No grouping of the data has this name: who writes frames refuses it. */
export const MINE = 'my groups';

export class Dataset {
  header: Header | undefined;
  points = 0;
  readonly frames: FrameLine[] = [];
  readonly groupings = new Map<string, Grouping>();
  readonly batches: Batch[] = [];
  selections: readonly Selection[] = [];

  take(line: Line): Parsed<void> {
    switch (line.kind) {
      case 'header':
        this.header = line;
        break;
      case 'frame':
        if (line.points > this.points) return bad(`${line.file} has points that the index does not`);
        this.frames.push(line);
        break;
      case 'categories': {
        const grouping = this.groupings.get(line.grouping) ?? { names: [], ordered: false, codes: undefined };
        grouping.ordered ||= line.ordered;
        grouping.names.push(...line.names);
        this.groupings.set(line.grouping, grouping);
        break;
      }
      case 'points':
        this.batches.push({ from: this.points, count: line.count, file: line.file });
        this.points += line.count;
        break;
      case 'other':
        break;
    }
    return { ok: true, value: undefined };
  }

  /** Takes the groups that readers have made as a grouping; in several, a point is in the last one. */
  takeSelections(selections: readonly Selection[]): void {
    this.selections = selections;
    if (selections.length === 0) {
      this.groupings.delete(MINE);
      return;
    }
    const codes = new Uint16Array(this.points).fill(MISSING);
    selections.forEach(({ rows }, code) => {
      for (const row of rows) if (row < this.points) codes[row] = code;
    });
    this.groupings.set(MINE, { names: selections.map(({ name }) => name), ordered: false, codes });
  }
}

/** The rows of the points in a frame, or undefined if they are simply 0, 1, 2, ... */
export function presentBits(line: FrameLine, tensors: Tensors): Uint8Array | undefined {
  const bits = tensors.get('present')?.data;
  return bits instanceof Uint8Array && bits.length * 8 >= line.points ? bits : undefined;
}

/** The box that all frames lie in. */
export function boxOf(frames: readonly FrameLine[]): { low: number[]; high: number[] } {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (const frame of frames) {
    if (frame.count === 0) continue;
    for (let axis = 0; axis < 3; axis++) {
      low[axis] = Math.min(low[axis], frame.low[axis]);
      high[axis] = Math.max(high[axis], frame.high[axis]);
    }
  }
  return low[0] <= high[0] ? { low, high } : { low: [-1, -1, -1], high: [1, 1, 1] };
}
