// Follows an index as it grows: its lines, checked, into the dataset.

import type { Dataset } from './dataset';
import { PAUSE_MS, type Source } from './loader';
import { bad, type Line, type Parsed, parseLine } from './wire';

/** What a feed tells of itself. */
export type Told = {
  /** There is more; there were so many points and frames before. */
  grew: (points: number, frames: number) => void;
  /** Why nothing new comes, as long as that lasts; empty when it is over. */
  trouble: (reason: string) => void;
  /** The frames were written anew: what the dataset has is no longer true. The feed has ended. */
  anew: () => void;
  notice: (text: string) => void;
};

export class Feed {
  private end = 0;

  constructor(
    private readonly source: Source,
    private readonly dataset: Dataset,
    private readonly told: Told,
    private readonly pauseMs = PAUSE_MS,
  ) {}

  /** Takes what there is, or says why there is nothing. */
  async start(): Promise<Parsed<void>> {
    const got = await this.source.index(0, false);
    return got.ok ? this.take(got.value) : got;
  }

  /** Waits for more as long as the page is open. */
  async follow(): Promise<void> {
    let trouble = false;
    while (true) {
      const got = await this.source.index(this.end, true);
      if (!got.ok && got.cause === 'anew') return this.told.anew();
      if (!got.ok) this.told.trouble(`Nothing new comes: ${got.reason}`);
      else if (trouble) this.told.trouble('');
      trouble = !got.ok;
      if (got.ok) {
        const taken = this.take(got.value);
        // Asked for again, a line would be no better.
        if (!taken.ok) return this.told.trouble(`What follows in the index is not shown: ${taken.reason}`);
      } else await new Promise((wake) => setTimeout(wake, this.pauseMs));
    }
  }

  private take({ lines, end }: { lines: string[]; end: number }): Parsed<void> {
    const news: Line[] = [];
    for (const [number, text] of lines.entries()) {
      const line = parseLine(text, this.end === 0 && number === 0);
      if (!line.ok) return bad(line.reason);
      if (line.value.kind === 'header') this.source.run = line.value.run;
      news.push(line.value);
    }
    this.end = end;
    const [points, frames] = [this.dataset.points, this.dataset.frames.length];
    for (const line of news) {
      const taken = this.dataset.take(line);
      if (!taken.ok) this.told.notice(taken.reason);
    }
    if (news.length > 0) this.told.grew(points, frames);
    return { ok: true, value: undefined };
  }
}
