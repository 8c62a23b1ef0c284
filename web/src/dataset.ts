// What the lines of the index add up to: points, groupings and frames. Knows neither network nor page.

import {
  bad,
  type FrameLine,
  type Header,
  type Line,
  MISSING,
  type Parsed,
  type Selection,
  type Tensors,
  tensor16,
} from './wire';

export type Grouping = {
  names: string[];
  /** The category of each point in its first frame. */
  codes: Uint16Array;
};

/** Texts one after the other, decoded when they are asked for: a million of them as strings would take long. */
export class Texts {
  private readonly decoder = new TextDecoder();
  private readonly parts: { from: number; offsets: Uint32Array; bytes: Uint8Array }[] = [];

  get empty(): boolean {
    return this.parts.length === 0;
  }

  /** Adds the texts of points from row `from` on. */
  add(name: string, from: number, count: number, tensors: Tensors): Parsed<void> {
    const offsets = tensors.get(`${name}.offsets`)?.data;
    const bytes = tensors.get(`${name}.bytes`)?.data;
    if (offsets === undefined && bytes === undefined) return { ok: true, value: undefined };
    if (!(offsets instanceof Uint32Array) || !(bytes instanceof Uint8Array) || offsets.length !== count + 1)
      return bad(`the texts ${name} make no sense`);
    this.parts.push({ from, offsets, bytes });
    return { ok: true, value: undefined };
  }

  at(row: number): string | undefined {
    for (let i = this.parts.length - 1; i >= 0; i--) {
      const { from, offsets, bytes } = this.parts[i];
      const at = row - from;
      if (at >= 0)
        return at + 1 < offsets.length ? this.decoder.decode(bytes.subarray(offsets[at], offsets[at + 1])) : undefined;
    }
    return undefined;
  }
}

/** What the groups that readers make are called as a grouping. */
export const MINE = 'my groups';

export class Dataset {
  header: Header | undefined;
  points = 0;
  readonly frames: FrameLine[] = [];
  readonly groupings = new Map<string, Grouping>();
  readonly ids = new Texts();
  readonly labels = new Texts();
  selections: readonly Selection[] = [];
  private names: string[] = [];

  /** Takes a line; `tensors` are those of the file that a line of points names. */
  take(line: Line, tensors?: Tensors): Parsed<void> {
    switch (line.kind) {
      case 'header':
        this.header = line;
        break;
      case 'frame':
        if (line.points > this.points) return bad(`${line.file} has points that the index does not`);
        this.frames.push(line);
        break;
      case 'categories': {
        const grouping = this.groupings.get(line.grouping) ?? {
          names: [],
          codes: new Uint16Array(this.points).fill(MISSING),
        };
        grouping.names.push(...line.names);
        this.groupings.set(line.grouping, grouping);
        break;
      }
      case 'points':
        return this.addPoints(line.count, tensors ?? new Map());
      case 'other':
        break;
    }
    return { ok: true, value: undefined };
  }

  /** The name of a point: its number where it has no other. */
  id(row: number): string {
    return this.ids.at(row) ?? String(row);
  }

  label(row: number): string {
    return this.labels.at(row) ?? '';
  }

  /** Rows whose id or label has the text, ids that begin with it first. */
  search(text: string, most: number): number[] {
    if (this.ids.empty && this.labels.empty) {
      const row = /^\d{1,10}$/.test(text.trim()) ? Number(text) : Number.NaN;
      return row < this.points ? [row] : [];
    }
    for (let row = this.names.length; row < this.points; row++)
      this.names.push(`${this.id(row)}\n${this.label(row)}`.toLowerCase());
    const wanted = text.trim().toLowerCase();
    if (wanted === '') return [];
    const first: number[] = [];
    const later: number[] = [];
    for (let row = 0; row < this.points && first.length < most; row++) {
      const found = this.names[row].indexOf(wanted);
      if (found === 0) first.push(row);
      else if (found > 0 && later.length < most) later.push(row);
    }
    return [...first, ...later].slice(0, most);
  }

  rowOf(id: string): number | undefined {
    return this.search(id, 1000).find((row) => this.id(row) === id);
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
    this.groupings.set(MINE, { names: selections.map(({ name }) => name), codes });
  }

  private addPoints(count: number, tensors: Tensors): Parsed<void> {
    for (const [name, texts] of [
      ['id', this.ids],
      ['label', this.labels],
    ] as const) {
      const added = texts.add(name, this.points, count, tensors);
      if (!added.ok) return added;
    }
    for (const [name, grouping] of this.groupings) {
      const codes = new Uint16Array(this.points + count).fill(MISSING);
      codes.set(grouping.codes);
      if (tensors.has(`group.${name}`)) {
        const first = tensor16(tensors, `group.${name}`, count);
        if (!first.ok) return first;
        codes.set(first.value, this.points);
      }
      grouping.codes = codes;
    }
    this.points += count;
    return { ok: true, value: undefined };
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

/** The range of a value over all frames. */
export function rangeOf(frames: readonly FrameLine[], name: string): readonly [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const frame of frames) {
    const range = frame.values.get(name);
    if (range === undefined) continue;
    low = Math.min(low, range[0]);
    high = Math.max(high, range[1]);
  }
  return low <= high ? [low, high] : [0, 0];
}
