// Talks to the server: lines of the index as they come, frames ahead of play.

import type { Parsed, Point, Selection, Tensors, Which } from './wire';
import { bad, parsePoints, parseSelections, parseTensors } from './wire';

/** How long a question for news is left open. */
const WAIT_S = 25;

/** Where frames come from. */
export interface Source {
  index(from: number, wait: boolean): Promise<Parsed<{ lines: string[]; end: number }>>;
  /** The tensors of a file, or those of `only` that it has. */
  tensors(file: string, how?: { stop?: AbortSignal; only?: readonly string[] }): Promise<Parsed<Tensors>>;
  points(which: Which): Promise<Parsed<Point[]>>;
  trajectories(rows: readonly number[]): Promise<Parsed<Float32Array>>;
  selections(): Promise<Parsed<Selection[]>>;
  saveSelections(selections: readonly Selection[]): Promise<Parsed<unknown>>;
}

/** A server; `base` is where its API of one folder of frames begins. */
export class Client implements Source {
  constructor(
    private readonly base: string,
    private readonly token: string,
  ) {}

  /** The lines of the index from a byte on, and where they end; waits for news if asked to. */
  async index(from: number, wait: boolean): Promise<Parsed<{ lines: string[]; end: number }>> {
    const got = await this.ask(`index?from=${from}&wait=${wait ? WAIT_S : 0}`);
    if (!got.ok) return got;
    const text = new TextDecoder().decode(got.value);
    return {
      ok: true,
      value: { lines: text.split('\n').filter((line) => line !== ''), end: from + got.value.byteLength },
    };
  }

  async tensors(file: string, { stop, only }: { stop?: AbortSignal; only?: readonly string[] } = {}) {
    const some = only === undefined ? '' : `?${new URLSearchParams({ tensors: JSON.stringify(only) })}`;
    const got = await this.ask(`files/${file}${some}`, stop === undefined ? {} : { signal: stop });
    if (!got.ok) return got;
    const parsed = parseTensors(got.value);
    return parsed.ok ? parsed : bad(`${file}: ${parsed.reason}`);
  }

  async points(which: Which): Promise<Parsed<Point[]>> {
    const query = new URLSearchParams();
    if ('rows' in which) query.set('rows', which.rows.join(','));
    else if ('ids' in which) query.set('ids', JSON.stringify(which.ids));
    else for (const [name, value] of Object.entries(which)) query.set(name, String(value));
    const got = await this.ask(`points?${query}`);
    return got.ok ? parsePoints(new TextDecoder().decode(got.value)) : got;
  }

  /** Where points are in all frames: three numbers for each frame and point, NaN where one is not there. */
  async trajectories(rows: readonly number[]): Promise<Parsed<Float32Array>> {
    const got = await this.ask(`trajectories?rows=${rows.join(',')}`);
    const parsed = got.ok ? parseTensors(got.value) : got;
    if (!parsed.ok) return parsed;
    const data = parsed.value.get('trajectories')?.data;
    return data instanceof Float32Array ? { ok: true, value: data } : bad('the server sent no trajectories');
  }

  async selections(): Promise<Parsed<Selection[]>> {
    const got = await this.ask('selections');
    return got.ok ? parseSelections(new TextDecoder().decode(got.value)) : got;
  }

  async saveSelections(selections: readonly Selection[]): Promise<Parsed<unknown>> {
    return this.ask('selections', { method: 'PUT', body: JSON.stringify(selections) });
  }

  private async ask(path: string, init: RequestInit = {}): Promise<Parsed<ArrayBuffer>> {
    try {
      const response = await fetch(`${this.base}${path}`, {
        ...init,
        headers: { Authorization: `Bearer ${this.token}` },
      });
      if (response.ok) return { ok: true, value: await response.arrayBuffer() };
      return bad((await response.text()).slice(0, 500) || response.statusText);
    } catch (error) {
      // Of network errors a browser tells pages no more than that there was one.
      return bad(
        error instanceof Error && error.name === 'AbortError'
          ? 'given up'
          : 'the server does not answer; does `tidemill view` still run?',
      );
    }
  }
}

/** Most bytes of frames that are kept, and most frames that are fetched at once. */
const BYTES_MAX = 512 * 2 ** 20;
const FETCHES_MAX = 4;

/** Frames that have come, and those under way. What is furthest from the one that is shown goes first. */
export class FrameCache {
  private readonly kept = new Map<number, { tensors: Tensors; bytes: number }>();
  private readonly underWay = new Map<number, AbortController>();
  private readonly failed = new Set<number>();
  private queue: readonly number[] = [];
  bytes = 0;

  constructor(
    private readonly client: Source,
    private readonly fileOf: (frame: number) => string,
    private readonly came: (frame: number) => void,
    private readonly wrong: (reason: string) => void,
  ) {}

  get(frame: number): Tensors | undefined {
    return this.kept.get(frame)?.tensors;
  }

  /** Whether a frame has come, or never will. */
  has(frame: number): boolean {
    return this.kept.has(frame) || this.failed.has(frame);
  }

  /** Fetches these, in this order, and nothing else. */
  want(frames: readonly number[]): void {
    this.queue = frames.filter((frame) => !this.kept.has(frame) && !this.failed.has(frame));
    const asked = new Set(frames);
    for (const [frame, stop] of this.underWay) if (!asked.has(frame)) stop.abort();
    this.next(frames[0] ?? 0);
  }

  private next(shown: number): void {
    for (const frame of this.queue) {
      if (this.underWay.size >= FETCHES_MAX) return;
      if (!this.underWay.has(frame) && !this.kept.has(frame) && !this.failed.has(frame)) void this.fetch(frame, shown);
    }
  }

  private async fetch(frame: number, shown: number): Promise<void> {
    const stop = new AbortController();
    this.underWay.set(frame, stop);
    const got = await this.client.tensors(this.fileOf(frame), { stop: stop.signal });
    this.underWay.delete(frame);
    if (got.ok) {
      let bytes = 0;
      for (const { data } of got.value.values()) bytes += data.byteLength;
      this.kept.set(frame, { tensors: got.value, bytes });
      this.bytes += bytes;
      this.drop(shown);
      this.came(frame);
    } else if (!stop.signal.aborted) {
      // It is passed over; asking again and again would not make it whole.
      this.failed.add(frame);
      this.wrong(got.reason);
    }
    this.next(shown);
  }

  private drop(shown: number): void {
    while (this.bytes > BYTES_MAX && this.kept.size > 3) {
      const far = [...this.kept.keys()].reduce((a, b) => (Math.abs(a - shown) >= Math.abs(b - shown) ? a : b));
      this.bytes -= this.kept.get(far)?.bytes ?? 0;
      this.kept.delete(far);
    }
  }
}
