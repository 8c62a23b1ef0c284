// Follows an index as it grows: its lines, checked, into the dataset.

import type { Dataset } from './dataset';
import type { Source } from './loader';
import { bad, type Line, type Parsed, parseLine } from './wire';

/** How long a server that does not answer is left alone: at first, and at most, after pauses that double. */
export const PAUSE_MS_MIN = 1000;
export const PAUSE_MS_MAX = 8000;

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
  ) {}

  /** Takes what there is, or says why there is nothing. */
  async start(): Promise<Parsed<void>> {
    const got = await this.source.index(0, false);
    return got.ok ? this.take(got.value) : got;
  }

  /** Waits for more as long as the page is open. */
  async follow(): Promise<void> {
    /** Since the last answer. */
    let pauseMs = 0;
    while (true) {
      // That the trouble is over shall be said at once, and not with the next frame.
      const got = await this.source.index(this.end, pauseMs === 0);
      if (got.ok) {
        if (pauseMs > 0) this.told.trouble('');
        pauseMs = 0;
        const taken = this.take(got.value);
        // Asked for again, a line would be no better.
        if (!taken.ok) return this.told.trouble(`The rest of the index is not shown: ${taken.reason}`);
      } else {
        if (got.cause === 'anew') return this.told.anew();
        this.told.trouble(`Updates have stopped: ${got.reason}`);
        pauseMs = Math.min(Math.max(2 * pauseMs, PAUSE_MS_MIN), PAUSE_MS_MAX);
        await new Promise((wake) => setTimeout(wake, pauseMs));
      }
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
