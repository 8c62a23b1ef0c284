// Points that a reader has chosen, whose ways are drawn, and those that the data, or a version, marks with a glyph.

import type { Known } from './known';
import type { Source } from './loader';
import { count } from './texts';
import { Trails } from './trails';

/** Most points that are followed at once: more ways nobody tells apart, and each is fetched through all frames. */
export const CHOSEN_MAX = 50;

export class Chosen {
  rows: readonly number[] = [];
  /** Rows of the marked points. They are drawn whatever their number, and their ways only if they are chosen too. */
  marked: readonly number[] = [];
  readonly trails = new Trails();
  private marking: readonly string[] = [];

  constructor(
    private readonly known: Known,
    private readonly source: Source,
    /** `data`: other points are chosen or known; `picture`: only the ways have come. */
    private readonly changed: (what: 'data' | 'picture') => void,
    private readonly notice: (text: string, wrong?: boolean) => void,
  ) {}

  choose(rows: readonly number[]): void {
    const all = [...new Set(rows)];
    this.rows = all.slice(0, CHOSEN_MAX);
    if (all.length > CHOSEN_MAX)
      this.notice(
        `At most ${count(CHOSEN_MAX, 'point')} can be followed at once: ${all.length - CHOSEN_MAX} of ${all.length} left out.`,
      );
    this.trails.clear();
    this.follow();
    void this.learn();
    this.changed('data');
  }

  toggle(row: number): void {
    this.choose(this.rows.includes(row) ? this.rows.filter((other) => other !== row) : [...this.rows, row]);
  }

  /** Marks the points with these ids. */
  async mark(ids: readonly string[]): Promise<void> {
    this.marking = ids;
    const rows = ids.length > 0 ? await this.known.rowsOf(ids) : [];
    // Others may have been marked meanwhile.
    if (this.marking !== ids) return;
    this.marked = rows;
    this.changed('data');
  }

  /** Fetches the ways of the chosen points through the frames that there are now. */
  follow(): void {
    if (this.rows.length > 0) void this.loadTrails();
  }

  private async loadTrails(): Promise<void> {
    const loaded = await this.trails.load(this.source, this.rows);
    if (!loaded.ok) this.notice(loaded.reason);
    else if (loaded.value) this.changed('picture');
  }

  /** Asks what the chosen points are called; those whose names are known are shown with them at once. */
  private async learn(): Promise<void> {
    if (this.rows.every((row) => this.known.get(row) !== undefined)) return;
    if (await this.known.load(this.rows)) this.changed('data');
  }
}
