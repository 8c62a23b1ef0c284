// Lines between points: those of a tree, or of any graph. They move with their points.

import { PAUSE_MS, type Source } from './loader';
import { type Between, codeOf, positionOf } from './pick';
import type { Slots } from './slots';
import type { FrameLine } from './wire';

export class Edges {
  shown = true;
  /** Rows of begin and end, one after the other, of the frame that is shown. */
  pairs: Uint32Array = new Uint32Array(0);
  private file: string | undefined;
  private readonly kept = new Map<string, Uint32Array>();
  private readonly underWay = new Set<string>();
  /** Files that the server refused, or that cannot be read. */
  private readonly failed = new Set<string>();
  private buffer = new Float32Array(0);

  constructor(
    private readonly came: () => void,
    private readonly wrong: (reason: string) => void,
  ) {}

  /** Makes the edges those of a frame; whether they are others than before. */
  follow(frame: FrameLine | undefined, source: Source): boolean {
    const file = frame?.edges;
    if (file === this.file) return false;
    const pairs = file === undefined ? new Uint32Array(0) : this.kept.get(file);
    if (pairs === undefined) {
      if (file !== undefined && !this.underWay.has(file)) void this.fetch(file, source);
      return false;
    }
    this.file = file;
    this.pairs = pairs;
    return true;
  }

  /** The server was gone and is there again: what it could not give then, it may have now. */
  retry(): void {
    for (const file of this.failed) {
      this.kept.delete(file);
      if (this.file === file) this.file = undefined;
    }
    this.failed.clear();
  }

  private async fetch(file: string, source: Source): Promise<void> {
    this.underWay.add(file);
    const got = await source.tensors(file);
    if (!got.ok && got.cause !== undefined) {
      this.wrong(got.reason);
      setTimeout(() => {
        this.underWay.delete(file);
        this.came();
      }, PAUSE_MS);
      return;
    }
    this.underWay.delete(file);
    const data = got.ok ? got.value.get('edges')?.data : undefined;
    const fits = data instanceof Uint32Array && data.length % 2 === 0;
    if (!fits) {
      this.failed.add(file);
      this.wrong(got.ok ? `${file} has no edges` : got.reason);
    }
    // What cannot be read is no edges: asking again and again would not make it whole.
    this.kept.set(file, fits ? (data as Uint32Array) : new Uint32Array(0));
    this.came();
  }

  /** Begin and end of each edge whose points are both shown, three numbers each. */
  places(between: Between, slots: Slots, available = slots.points): Float32Array {
    if (!this.shown) return this.buffer.subarray(0, 0);
    if (this.buffer.length < this.pairs.length * 3) this.buffer = new Float32Array(this.pairs.length * 3);
    const at = new Float64Array(3);
    let end = 0;
    for (let i = 0; i < this.pairs.length; i += 2) {
      const here = end;
      for (const row of [this.pairs[i], this.pairs[i + 1]]) {
        if (row >= slots.points) break;
        const slot = slots.slotOf(row);
        if (slot >= available || !positionOf(between, slot, at) || between.shown[codeOf(between, slot)] === 0) break;
        this.buffer.set(at, end);
        end += 3;
      }
      if (end - here < 6) end = here;
    }
    return this.buffer.subarray(0, end);
  }
}
