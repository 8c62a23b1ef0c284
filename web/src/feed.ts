// Follows an index as it grows: its lines, checked, into the dataset.

import type { Dataset } from './dataset';
import type { Source } from './loader';
import { type Line, type Parsed, parseLine } from './wire';

/** How long a server that does not answer is left alone. */
const PAUSE_MS = 3000;

export class Feed {
  private end = 0;

  constructor(
    private readonly source: Source,
    private readonly dataset: Dataset,
    /** Called when there is more; with how many points and frames there were before. */
    private readonly grew: (points: number, frames: number) => void,
    private readonly notice: (text: string, wrong?: boolean) => void,
  ) {}

  /** Takes what there is, or says why there is nothing. */
  start(): Promise<Parsed<void>> {
    return this.more(false);
  }

  /** Waits for more as long as the page is open. */
  async follow(): Promise<void> {
    let lost = false;
    while (true) {
      const got = await this.more(true);
      // Said once, and not as long as it lasts.
      if (!got.ok && !lost) this.notice(got.reason);
      if (got.ok && lost) this.notice('The server answers again.', false);
      lost = !got.ok;
      // A server that is gone may come back; asking more often would not help.
      if (lost) await new Promise((wake) => setTimeout(wake, PAUSE_MS));
    }
  }

  private async more(wait: boolean): Promise<Parsed<void>> {
    const got = await this.source.index(this.end, wait);
    if (!got.ok) return got;
    const news: Line[] = [];
    for (const [number, text] of got.value.lines.entries()) {
      const line = parseLine(text, this.end === 0 && number === 0);
      if (!line.ok) return line;
      news.push(line.value);
    }
    this.end = got.value.end;
    const [points, frames] = [this.dataset.points, this.dataset.frames.length];
    for (const line of news) {
      const taken = this.dataset.take(line);
      if (!taken.ok) this.notice(taken.reason);
    }
    if (news.length > 0) this.grew(points, frames);
    return { ok: true, value: undefined };
  }
}
