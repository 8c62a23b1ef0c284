// Names of points in a page that has all of them in it, as no server can be asked.

import type { Parsed, Point, Tensors, Which } from './wire';
import { bad, MISSING } from './wire';

/** Texts one after the other, decoded when they are asked for. */
class Texts {
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

export class Names {
  private points = 0;
  private readonly ids = new Texts();
  private readonly labels = new Texts();
  private readonly parts: { from: number; tensors: Tensors }[] = [];
  private folded: string[] = [];

  /** Takes the next `count` points; `tensors` are those of their file. */
  add(count: number, tensors: Tensors): Parsed<void> {
    for (const [name, texts] of [
      ['id', this.ids],
      ['label', this.labels],
    ] as const) {
      const added = texts.add(name, this.points, count, tensors);
      if (!added.ok) return added;
    }
    this.parts.push({ from: this.points, tensors });
    this.points += count;
    return { ok: true, value: undefined };
  }

  get(which: Which): Point[] {
    if ('rows' in which) return which.rows.filter((row) => row < this.points).map((row) => this.point(row));
    if ('text' in which) return this.search(which.text, which.most).map((row) => this.point(row));
    const rows = new Map<string, number>();
    if (which.ids.length > 0) for (let row = 0; row < this.points; row++) rows.set(this.id(row), row);
    return which.ids.flatMap((id) => rows.get(id) ?? []).map((row) => this.point(row));
  }

  private id(row: number): string {
    return this.ids.at(row) ?? String(row);
  }

  private point(row: number): Point {
    const codes = new Map<string, number>();
    const part = this.parts.findLast(({ from }) => from <= row);
    for (const [name, { data }] of part?.tensors ?? [])
      if (name.startsWith('group.')) {
        const code = data[row - (part?.from ?? 0)];
        if (code !== MISSING) codes.set(name.slice('group.'.length), code);
      }
    return { row, id: this.id(row), label: this.labels.at(row) ?? '', codes };
  }

  /** Rows whose id or label has the text, ids that begin with it first. */
  private search(text: string, most: number): number[] {
    const wanted = text.trim().toLowerCase();
    if (wanted === '') return [];
    if (this.ids.empty && this.labels.empty) {
      const row = /^\d{1,10}$/.test(wanted) ? Number(wanted) : Number.NaN;
      return row < this.points ? [row] : [];
    }
    for (let row = this.folded.length; row < this.points; row++)
      this.folded.push(`${this.id(row)}\n${this.labels.at(row) ?? ''}`.toLowerCase());
    const first: number[] = [];
    const later: number[] = [];
    for (let row = 0; row < this.points && first.length < most; row++) {
      const found = this.folded[row].indexOf(wanted);
      if (found === 0) first.push(row);
      else if (found > 0 && later.length < most) later.push(row);
    }
    return [...first, ...later].slice(0, most);
  }
}
