// Talks to the server: lines of the index as they come, frames ahead of play.

import type { Parsed, Point, Selection, Tensor, Tensors, Which } from './wire';
import { bad, parsePoints, parseSelections, parseTensors } from './wire';

/** How long a question for news is left open, and how long after that there may be no answer before the server counts as gone. */
const WAIT_S = 3;
const LATE_S = 6;
/** How long what was not answered is left alone. */
export const PAUSE_MS = 3000;

/** Where frames come from. */
export interface Source {
  /** The run whose frames are meant; what is asked of another is refused, as the frames were written anew. */
  run: string | undefined;
  index(from: number, wait: boolean): Promise<Parsed<{ lines: string[]; end: number }>>;
  /** The tensors of a file, or those of `only` that it has. */
  tensors(file: string, how?: { stop?: AbortSignal; only?: readonly string[] }): Promise<Parsed<Tensors>>;
  points(which: Which): Promise<Parsed<Point[]>>;
  trajectories(rows: readonly number[]): Promise<Parsed<Float32Array>>;
  /** The groups that readers have made. */
  selections(): Promise<Parsed<Selection[]>>;
  /** Adds a group, or replaces its rows, or removes it; all groups as they are then, those of other readers included. */
  saveGroup(name: string, rows: readonly number[]): Promise<Parsed<Selection[]>>;
  removeGroup(name: string): Promise<Parsed<Selection[]>>;
}

/** A server; `base` is where its API of one folder of frames begins. */
export class Client implements Source {
  run: string | undefined;

  constructor(
    private readonly base: string,
    private readonly token: string,
  ) {}

  /** The lines of the index from a byte on, and where they end; waits for news if asked to. */
  async index(from: number, wait: boolean): Promise<Parsed<{ lines: string[]; end: number }>> {
    const waitS = wait ? WAIT_S : 0;
    const got = await this.ask('index', { from: String(from), wait: String(waitS) }, {}, waitS + LATE_S);
    if (!got.ok) return got;
    const text = new TextDecoder().decode(got.value);
    return {
      ok: true,
      value: { lines: text.split('\n').filter((line) => line !== ''), end: from + got.value.byteLength },
    };
  }

  async tensors(file: string, { stop, only }: { stop?: AbortSignal; only?: readonly string[] } = {}) {
    const some: Record<string, string> = only === undefined ? {} : { tensors: JSON.stringify(only) };
    const got = await this.ask(`files/${file}`, some, stop === undefined ? {} : { signal: stop });
    if (!got.ok) return got;
    const parsed = parseTensors(got.value);
    return parsed.ok ? parsed : bad(`${file}: ${parsed.reason}`);
  }

  async points(which: Which): Promise<Parsed<Point[]>> {
    let query: Record<string, string>;
    if ('rows' in which) query = { rows: which.rows.join(',') };
    else if ('ids' in which) query = { ids: JSON.stringify(which.ids) };
    else query = { text: which.text, most: String(which.most) };
    const got = await this.ask('points', query);
    return got.ok ? parsePoints(new TextDecoder().decode(got.value)) : got;
  }

  /** Where points are in all frames: three numbers for each frame and point, NaN where one is not there. */
  async trajectories(rows: readonly number[]): Promise<Parsed<Float32Array>> {
    const got = await this.ask('trajectories', { rows: rows.join(',') });
    const parsed = got.ok ? parseTensors(got.value) : got;
    if (!parsed.ok) return parsed;
    const data = parsed.value.get('trajectories')?.data;
    return data instanceof Float32Array ? { ok: true, value: data } : bad('the server sent no trajectories');
  }

  selections(): Promise<Parsed<Selection[]>> {
    return this.groups('selections');
  }

  saveGroup(name: string, rows: readonly number[]): Promise<Parsed<Selection[]>> {
    return this.groups(`selections/${encodeURIComponent(name)}`, { method: 'PUT', body: JSON.stringify({ rows }) });
  }

  removeGroup(name: string): Promise<Parsed<Selection[]>> {
    return this.groups(`selections/${encodeURIComponent(name)}`, { method: 'DELETE' });
  }

  private async groups(path: string, init: RequestInit = {}): Promise<Parsed<Selection[]>> {
    const got = await this.ask(path, {}, init);
    return got.ok ? parseSelections(new TextDecoder().decode(got.value)) : got;
  }

  private async ask(
    path: string,
    query: Readonly<Record<string, string>>,
    init: RequestInit = {},
    withinS?: number,
  ): Promise<Parsed<ArrayBuffer>> {
    const late = new AbortController();
    const timer = withinS === undefined ? undefined : setTimeout(() => late.abort(new Error('late')), withinS * 1000);
    const words = new URLSearchParams(this.run === undefined ? query : { ...query, run: this.run });
    try {
      const response = await fetch(`${this.base}${path}${words.size > 0 ? `?${words}` : ''}`, {
        signal: late.signal,
        ...init,
        headers: { Authorization: `Bearer ${this.token}` },
      });
      // It answers; how long the rest takes is up to the line.
      clearTimeout(timer);
      if (response.ok) return { ok: true, value: await response.arrayBuffer() };
      const reason = (await response.text()).slice(0, 500) || response.statusText;
      if (response.status === 409) return bad(reason, 'anew');
      // So says a proxy whose server is gone.
      return response.status >= 502 && response.status <= 504 ? bad(reason, 'lost') : bad(reason);
    } catch (error) {
      if (error instanceof Error && error.name === 'AbortError') return bad('given up', 'lost');
      // Of network errors a browser tells pages no more than that there was one.
      return bad('the server does not answer; does the program that shows the frames still run?', 'lost');
    }
  }
}

/** Most bytes of frames that are kept, and most frames that are fetched at once. */
const BYTES_MAX = 512 * 2 ** 20;
const FETCHES_MAX = 4;

/** Where points are, and which are there: what is fetched of every frame. */
const PLACES = ['position', 'present'];
/** Most tensors that one question names. */
const NAMES_AT_ONCE = 100;

/** What has come of a frame; `asked`: all names that the server was asked for, of which the frame need not have each. */
type Kept = { tensors: Map<string, Tensor>; asked: Set<string>; bytes: number };

/**
 * Frames that have come, and those under way. What is furthest from the one that is shown goes first.
 *
 * Of a frame the page fetches where its points are. Its other columns, such as the numbers that points can be coloured by, it fetches when
 * something shows them, and then of all frames that it fetches.
 */
export class FrameCache {
  private readonly kept = new Map<number, Kept>();
  private readonly underWay = new Map<number, AbortController>();
  /** Frames that the server refuses, or that cannot be read: asking again and again would not make them whole. */
  private readonly failed = new Set<number>();
  /** Columns that `add` is fetching. */
  private readonly adding = new Map<number, Promise<void>>();
  private queue: readonly number[] = [];
  private columns: readonly string[] = [];
  private pausing = false;
  bytes = 0;

  constructor(
    private readonly client: Source,
    private readonly fileOf: (frame: number) => string,
    /** Something of a frame has come, or never will. */
    private readonly came: (frame: number) => void,
    private readonly wrong: (reason: string) => void,
  ) {}

  /** What has come of a frame, once all that is wanted has, or no more of it ever will. */
  get(frame: number): Tensors | undefined {
    return this.has(frame) ? this.kept.get(frame)?.tensors : undefined;
  }

  /** Whether all that is wanted of a frame has come, or never will. */
  has(frame: number): boolean {
    return this.failed.has(frame) || this.missing(frame, this.columns).length === 0;
  }

  /** The server was gone and is there again: what it could not give then, it may have now. */
  retry(): void {
    this.failed.clear();
  }

  /** Fetches these, in this order, and nothing else; of each where its points are, and these columns if it has them. */
  want(frames: readonly number[], columns: readonly string[] = []): void {
    this.columns = columns;
    this.queue = frames.filter((frame) => !this.has(frame));
    const asked = new Set(frames);
    for (const [frame, stop] of this.underWay) if (!asked.has(frame)) stop.abort();
    this.next(frames[0] ?? 0);
  }

  /** Fetches further columns of a frame that has come, once: what is said of one of its points. */
  add(frame: number, columns: readonly string[]): Promise<void> {
    // Whoever asks while they come waits for them too.
    const added = (this.adding.get(frame) ?? Promise.resolve()).then(() => this.fetchColumns(frame, columns));
    this.adding.set(frame, added);
    return added.finally(() => this.adding.get(frame) === added && this.adding.delete(frame));
  }

  private async fetchColumns(frame: number, columns: readonly string[]): Promise<void> {
    const kept = this.kept.get(frame);
    const names = kept === undefined ? [] : this.missing(frame, columns);
    for (let begin = 0; begin < names.length; begin += NAMES_AT_ONCE) {
      const only = names.slice(begin, begin + NAMES_AT_ONCE);
      const got = await this.client.tensors(this.fileOf(frame), { only });
      if (!got.ok) return this.wrong(got.reason);
      // Meanwhile it may have been dropped.
      if (this.kept.get(frame) === kept) this.take(frame, only, got.value);
    }
  }

  /** Which of the places and these columns were not yet asked for. */
  private missing(frame: number, columns: readonly string[]): string[] {
    const asked = this.kept.get(frame)?.asked;
    return [...PLACES, ...columns].filter((name) => !asked?.has(name));
  }

  private take(frame: number, only: readonly string[], tensors: Tensors): void {
    const kept = this.kept.get(frame) ?? { tensors: new Map(), asked: new Set(), bytes: 0 };
    for (const name of only) kept.asked.add(name);
    for (const [name, tensor] of tensors) {
      // A page that has its frames in it is given all of them each time.
      if (kept.tensors.has(name)) continue;
      kept.tensors.set(name, tensor);
      kept.bytes += tensor.data.byteLength;
      this.bytes += tensor.data.byteLength;
    }
    this.kept.set(frame, kept);
  }

  private next(shown: number): void {
    if (this.pausing) return;
    for (const frame of this.queue) {
      if (this.underWay.size >= FETCHES_MAX) return;
      if (!this.underWay.has(frame) && !this.has(frame)) void this.fetch(frame, shown);
    }
  }

  private async fetch(frame: number, shown: number): Promise<void> {
    const stop = new AbortController();
    this.underWay.set(frame, stop);
    const only = this.missing(frame, this.columns);
    const got = await this.client.tensors(this.fileOf(frame), { stop: stop.signal, only });
    this.underWay.delete(frame);
    if (got.ok) {
      this.take(frame, only, got.value);
      this.drop(shown);
      this.came(frame);
    } else if (!stop.signal.aborted) {
      this.wrong(got.reason);
      if (got.cause === undefined) {
        this.failed.add(frame);
        // Nothing more of it will come: whoever waits for it must look again, and give up.
        this.came(frame);
      } else this.pause(frame);
    }
    this.next(shown);
  }

  /** Nobody answered: after a while whoever draws asks for the frames that are wanted then. */
  private pause(frame: number): void {
    if (this.pausing) return;
    this.pausing = true;
    setTimeout(() => {
      this.pausing = false;
      this.came(frame);
    }, PAUSE_MS);
  }

  private drop(shown: number): void {
    while (this.bytes > BYTES_MAX && this.kept.size > 3) {
      const far = [...this.kept.keys()].reduce((a, b) => (Math.abs(a - shown) >= Math.abs(b - shown) ? a : b));
      this.bytes -= this.kept.get(far)?.bytes ?? 0;
      this.kept.delete(far);
    }
  }
}
