// The category of each point, fetched when points are coloured by it: two bytes a point, of one grouping of many.

import { type Batch, type Dataset, MINE } from './dataset';
import { PAUSE_MS, type Source } from './loader';
import { MISSING, type Parsed, tensor16 } from './wire';

export class Categories {
  /** For each grouping how many batches of points have come. */
  private readonly come = new Map<string, number>();
  private readonly underWay = new Set<string>();
  /** Groupings of which the server refused a part, or sent what cannot be read. */
  private readonly failed = new Set<string>();

  constructor(
    private readonly dataset: Dataset,
    private readonly source: Source,
    private readonly came: () => void,
    private readonly wrong: (reason: string) => void,
  ) {}

  /** Whether the categories of all points are there; if not, they are fetched. */
  ready(name: string): boolean {
    const grouping = this.dataset.groupings.get(name);
    // Groups that readers make are made here.
    if (grouping === undefined || name === MINE) return true;
    const ready = grouping.codes !== undefined && this.come.get(name) === this.dataset.batches.length;
    if (!ready && !this.underWay.has(name)) void this.fetch(name);
    return ready;
  }

  /** The server was gone and is there again: what it could not give then, it may have now. */
  retry(): void {
    for (const name of this.failed) this.come.delete(name);
    this.failed.clear();
  }

  private async fetch(name: string): Promise<void> {
    this.underWay.add(name);
    const { batches, groupings } = this.dataset;
    const from = this.come.get(name) ?? 0;
    const news = batches.slice(from);
    const parts = await Promise.all(news.map((batch) => this.part(batch, name)));
    const lost = parts.find((part) => !part.ok && part.cause !== undefined);
    if (lost?.ok === false) {
      this.wrong(lost.reason);
      setTimeout(() => {
        this.underWay.delete(name);
        this.came();
      }, PAUSE_MS);
      return;
    }
    const grouping = groupings.get(name);
    if (grouping !== undefined) {
      const last = news.at(-1);
      const codes = new Uint16Array(last === undefined ? 0 : last.from + last.count).fill(MISSING);
      if (grouping.codes !== undefined) codes.set(grouping.codes);
      parts.forEach((part, i) => {
        // What cannot be read is no category: asking again and again would not make it whole.
        if (!part.ok) {
          this.failed.add(name);
          this.wrong(part.reason);
        } else if (part.value !== undefined) codes.set(part.value, news[i].from);
      });
      grouping.codes = codes;
      this.come.set(name, from + news.length);
    }
    this.underWay.delete(name);
    this.came();
  }

  private async part({ count, file }: Batch, name: string): Promise<Parsed<Uint16Array | undefined>> {
    if (file === undefined) return { ok: true, value: undefined };
    const tensor = `group.${name}`;
    const got = await this.source.tensors(file, { only: [tensor] });
    if (!got.ok) return got;
    return got.value.has(tensor) ? tensor16(got.value, tensor, count) : { ok: true, value: undefined };
  }
}
