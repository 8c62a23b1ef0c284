// The points whose names the page knows: those that somebody has pointed at, chosen or looked for. Of ten million nobody needs all.

import type { Source } from './loader';
import type { Parsed, Point, Which } from './wire';

/** Most points that are kept, and that are asked for at once. */
const KEPT_MAX = 20_000;
const ROWS_AT_ONCE = 200;
/** Longest list of ids in one question, in letters of its URL. */
const IDS_LETTERS_MAX = 4000;

export class Known {
  private readonly points = new Map<number, Point>();

  constructor(
    private readonly source: Source,
    private readonly wrong: (reason: string) => void,
  ) {}

  get(row: number): Point | undefined {
    const point = this.points.get(row);
    if (point !== undefined) {
      // What is looked at again and again, as chosen points are, is the last to go.
      this.points.delete(row);
      this.points.set(row, point);
    }
    return point;
  }

  /** Learns what these rows are called; false if the server does not say. */
  async load(rows: readonly number[]): Promise<boolean> {
    const news = rows.filter((row) => !this.points.has(row));
    for (let begin = 0; begin < news.length; begin += ROWS_AT_ONCE) {
      const got = await this.ask({ rows: news.slice(begin, begin + ROWS_AT_ONCE) });
      if (!got.ok) return false;
    }
    return true;
  }

  /** Points that a text is found in. */
  async find(text: string, most: number): Promise<readonly Point[]> {
    if (text.trim() === '') return [];
    const got = await this.ask({ text, most });
    return got.ok ? got.value : [];
  }

  /** The rows of points by their ids, in the order of the ids; those that there are not are left out. */
  async rowsOf(ids: readonly string[]): Promise<number[]> {
    const rows: number[] = [];
    for (let begin = 0; begin < ids.length; ) {
      let end = begin;
      let letters = 0;
      while (end < ids.length && end - begin < ROWS_AT_ONCE && (end === begin || letters < IDS_LETTERS_MAX))
        letters += encodeURIComponent(ids[end++]).length;
      const got = await this.ask({ ids: ids.slice(begin, end) });
      if (!got.ok) break;
      rows.push(...got.value.map(({ row }) => row));
      begin = end;
    }
    return rows;
  }

  private async ask(which: Which): Promise<Parsed<readonly Point[]>> {
    const got = await this.source.points(which);
    if (!got.ok) this.wrong(got.reason);
    else {
      for (const point of got.value) this.points.set(point.row, point);
      for (const row of this.points.keys()) {
        if (this.points.size <= KEPT_MAX) break;
        this.points.delete(row);
      }
    }
    return got;
  }
}
