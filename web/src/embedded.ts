// Frames that lie in the page itself: a file that `tidemill view --export` has written, which opens without a server.

import { type Change, parseChanges } from './edits';
import { listed } from './groups';
import type { Looks } from './library/client';
import { type About, parseAbout } from './library/wire';
import type { Source } from './loader';
import { Names } from './names';
import { lookUp } from './slots';
import {
  bad,
  type FrameLine,
  isRecord,
  type Parsed,
  type Point,
  parseLine,
  parseSelections,
  parseTensors,
  type Selection,
  STEPS,
  type Tensors,
  type Which,
} from './wire';

const ABOUT = 'about.json';

/** The elements of the page with files in them, in base64, and by their names. */
function element(file: string): HTMLElement | null {
  return document.querySelector(`script[type="text/plain"][data-file="${CSS.escape(file)}"]`);
}

export function isEmbedded(): boolean {
  return element('index.jsonl') !== null;
}

export class Embedded implements Source {
  private readonly frames: FrameLine[] = [];
  private readonly names = new Names();
  /** They are there as long as the page is open; its reader can save them as a file. */
  private groups = new Map<string, readonly number[]>();
  private begun = false;
  run: string | undefined;

  async index(_from: number, wait: boolean): Promise<Parsed<{ lines: string[]; end: number }>> {
    // Nothing comes any more.
    if (wait) return new Promise(() => {});
    const bytes = read('index.jsonl');
    if (bytes === undefined) return bad('the page has no frames in it');
    const lines = new TextDecoder()
      .decode(bytes)
      .split('\n')
      .filter((line) => line !== '');
    for (const [number, text] of lines.entries()) {
      const line = parseLine(text, number === 0);
      if (line.ok && line.value.kind === 'frame') this.frames.push(line.value);
      if (!line.ok || line.value.kind !== 'points') continue;
      const { count, file } = line.value;
      const tensors: Parsed<Tensors> = file === undefined ? { ok: true, value: new Map() } : await this.tensors(file);
      const added = tensors.ok ? this.names.add(count, tensors.value) : tensors;
      if (!added.ok) return added;
    }
    return { ok: true, value: { lines, end: bytes.length } };
  }

  async tensors(file: string): Promise<Parsed<Tensors>> {
    const bytes = read(file);
    const parsed = bytes === undefined ? bad('it is not in the page') : parseTensors(bytes.buffer);
    return parsed.ok ? parsed : bad(`${file}: ${parsed.reason}`);
  }

  async points(which: Which): Promise<Parsed<Point[]>> {
    return { ok: true, value: this.names.get(which) };
  }

  async trajectories(rows: readonly number[]): Promise<Parsed<Float32Array>> {
    const places = new Float32Array(this.frames.length * rows.length * 3).fill(Number.NaN);
    for (const [number, line] of this.frames.entries()) {
      const tensors = await this.tensors(line.file);
      if (!tensors.ok) return tensors;
      placesIn(line, tensors.value, rows, places.subarray(number * rows.length * 3));
    }
    return { ok: true, value: places };
  }

  async selections(): Promise<Parsed<Selection[]>> {
    // What has been made since is not in the file.
    if (this.begun) return listed(this.groups);
    const bytes = read('selections.json');
    const saved = bytes === undefined ? undefined : parseSelections(new TextDecoder().decode(bytes));
    if (saved?.ok === false) return saved;
    this.begun = true;
    this.groups = new Map((saved?.value ?? []).map(({ name, rows }) => [name, rows]));
    return listed(this.groups);
  }

  async saveGroup(name: string, rows: readonly number[]): Promise<Parsed<Selection[]>> {
    this.groups.set(name, rows);
    return listed(this.groups);
  }

  async removeGroup(name: string): Promise<Parsed<Selection[]>> {
    this.groups.delete(name);
    return listed(this.groups);
  }
}

/** What a library knew of the plot when the page was written: its versions, each a log of changes over its parent. */
export class EmbeddedVersions implements Looks {
  static there(): boolean {
    return element(ABOUT) !== null;
  }

  async about(): Promise<Parsed<About>> {
    return parseAbout(json(ABOUT));
  }

  async changes(_id: string, version: number): Promise<Parsed<Change[]>> {
    const told = json(ABOUT);
    const about = parseAbout(told);
    if (!about.ok) return about;
    const logs = isRecord(told) && isRecord(told.logs) ? told.logs : {};
    const { versions } = about.value;
    const changes: unknown[] = [];
    // From the version back to the original; a parent is older than what is built on it, so that this ends.
    for (let at: number | null = version; at !== null; ) {
      const log: unknown = logs[String(at)];
      const parent: number | null | undefined = versions.find(({ number }) => number === at)?.parent;
      if (!Array.isArray(log) || parent === undefined || (parent !== null && parent >= at))
        return bad(`the page has no version ${at}`);
      changes.unshift(...log);
      at = parent;
    }
    return parseChanges(changes);
  }
}

/** Writes where points are in a frame, three numbers each, and leaves alone those that are not there. */
export function placesIn(line: FrameLine, tensors: Tensors, rows: readonly number[], to: Float32Array): void {
  const steps = tensors.get('position')?.data;
  rows.forEach((row, k) => {
    const at = lookUp(line, tensors, row);
    if (at === undefined || steps === undefined) return;
    for (let axis = 0; axis < 3; axis++)
      to[k * 3 + axis] = line.low[axis] + (steps[at * 3 + axis] * (line.high[axis] - line.low[axis])) / STEPS;
  });
}

function json(file: string): unknown {
  const bytes = read(file);
  try {
    return bytes === undefined ? undefined : JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return undefined;
  }
}

function read(file: string): Uint8Array<ArrayBuffer> | undefined {
  const text = element(file)?.textContent;
  if (text === undefined || text === null) return undefined;
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
