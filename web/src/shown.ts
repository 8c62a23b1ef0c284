// The two frames that lie in the graphics card, whole or as samples, and the fetching of those that come next.
//
// Frames of very many points have a sample beside them. While time moves, samples are shown, which are a small part to fetch and to
// fill in; once it rests, the frame itself is fetched. The page says which of them it is.

import { Categories } from './categories';
import { type Dataset, MINE } from './dataset';
import { FrameCache, type Source } from './loader';
import { type Playback, wanted } from './playback';
import type { PointScene } from './scene';
import { type Colouring, type Slots, STRATA } from './slots';
import type { FrameLine, Tensors } from './wire';

/** Seconds of play that are fetched ahead, and least and most frames. */
const AHEAD_S = 2;
const AHEAD_MIN = 4;
const AHEAD_MAX = 64;
/** So long must time rest before whole frames are fetched in place of samples: who drags the slider passes many. */
const REST_MS = 250;

export class Shown {
  readonly cache: FrameCache;
  readonly samples: FrameCache;
  readonly categories: Categories;
  /** Whether the heat map is shown too. */
  heatMap = false;
  /** The frames that lie in the card as A and B, and how many slots of each are filled. */
  loaded: [number, number] = [-1, -1];
  fillMs = 0;
  private filled: [number, number] = [0, 0];
  private position = Number.NaN;
  private restsSince = 0;
  private waking: ReturnType<typeof setTimeout> | undefined;
  private between = false;

  constructor(
    private readonly dataset: Dataset,
    private readonly scene: PointScene,
    source: Source,
    private readonly came: () => void,
    private readonly wrong: (reason: string) => void,
  ) {
    const { frames } = dataset;
    this.categories = new Categories(dataset, source, came, wrong);
    this.cache = new FrameCache(source, (frame) => frames[frame].file, came, wrong);
    this.samples = new FrameCache(source, (frame) => frames[frame].sample?.file ?? frames[frame].file, came, wrong);
  }

  /** What lies in the card is no longer true. */
  forget(): void {
    this.loaded = [-1, -1];
  }

  /** Whether what lies in the card is coloured by what it was before. */
  get stale(): boolean {
    return this.loaded[0] < 0;
  }

  /** Fetches what there is to say of points in a frame, if the frame has come. */
  describe(frame: number): Promise<void> {
    const groupings = [...this.dataset.groupings.keys()].filter((name) => name !== MINE);
    const values = [...(this.dataset.frames[frame]?.values.keys() ?? [])];
    return this.cache.add(frame, [
      ...groupings.map((name) => `group.${name}`),
      ...values.map((name) => `value.${name}`),
    ]);
  }

  /** The server was gone and is there again. */
  retry(): void {
    this.cache.retry();
    this.samples.retry();
    this.categories.retry();
  }

  /** How many slots, from the first on, have points of what is shown. */
  available(): number {
    return this.between ? Math.min(...this.filled) : this.filled[0];
  }

  /** The tensors of a frame, or of its sample while there is nothing else. */
  get(frame: number): Tensors | undefined {
    return this.cache.get(frame) ?? (this.isSampled(frame) ? this.samples.get(frame) : undefined);
  }

  /** The last frame of those in a row from `first` on that can be shown. */
  ready(first: number): number {
    let frame = first;
    while ((this.isSampled(frame + 1) ? this.samples : this.cache).has(frame + 1)) frame++;
    return frame;
  }

  /** Whether all points of a moment lie in the card; undefined while they may still come. */
  isWhole(position: number, points: number): boolean | undefined {
    const frames = [...new Set([Math.floor(position), Math.ceil(position)])];
    if (frames.some((frame) => this.cache.has(frame) && this.cache.get(frame) === undefined)) return false;
    const here = frames.every((frame, which) => this.loaded[which] === frame);
    return here && this.available() === points ? true : undefined;
  }

  isSampled(frame: number): boolean {
    return this.dataset.frames[frame]?.sample?.of === STRATA;
  }

  /** Brings what is shown into the card, as far as it has come; whether anything has changed. */
  load(playback: Playback, slots: Slots, colouring: Colouring): boolean {
    const frames = this.dataset.frames.length;
    const position = Math.min(playback.position, frames - 1);
    const first = Math.floor(position);
    const second = Math.min(first + 1, frames - 1);
    const rests = this.rests(position, playback.playing);
    // Who waits for a frame shall not wait for those behind it too.
    const waits = !playback.playing && this.loaded[0] !== first;
    const ahead = waits ? 0 : Math.min(AHEAD_MAX, Math.max(AHEAD_MIN, Math.ceil(AHEAD_S * playback.framesPerS)));
    const next = wanted(position, frames, ahead);
    const columns = this.columns(colouring);
    this.samples.want(
      next.filter((frame) => this.isSampled(frame)),
      columns,
    );
    const whole = rests ? [first, ...(position > first ? [second] : [])] : [];
    this.cache.want([...whole, ...next.filter((frame) => !this.isSampled(frame) && !whole.includes(frame))], columns);
    if (this.loaded[0] !== first && this.loaded[1] === first) {
      this.scene.swap();
      this.loaded = [this.loaded[1], this.loaded[0]];
      this.filled = [this.filled[1], this.filled[0]];
    }
    const changed = [this.fill(0, first, rests, slots, colouring), this.fill(1, second, rests, slots, colouring)];
    // Until both have come, the one that is there is shown.
    const t = position - first;
    this.between = t > 0 && this.loaded[1] === second;
    if (this.loaded[0] === first) this.scene.setBetween(this.between ? t : 0);
    // Now it is the turn of those behind it.
    if (waits && this.loaded[0] === first) this.came();
    return changed.includes(true);
  }

  /** What is shown of frames, beside where points are. */
  private columns(colouring: Colouring): string[] {
    const columns = this.heatMap ? ['heat_map'] : [];
    if (colouring.kind === 'value') columns.push(`value.${colouring.name}`);
    else if (colouring.kind === 'grouping' && colouring.name !== MINE) columns.push(`group.${colouring.name}`);
    return columns;
  }

  /** Whether time has rested for a while; if it has not, whoever draws is woken when it will have. */
  private rests(position: number, playing: boolean): boolean {
    const now = performance.now();
    if (playing || position !== this.position) {
      this.position = position;
      this.restsSince = now;
      clearTimeout(this.waking);
      this.waking = undefined;
    }
    const rests = !playing && now - this.restsSince >= REST_MS;
    if (!rests && !playing && this.isSampled(Math.floor(position)))
      this.waking ??= setTimeout(
        () => {
          // Should it have come too early, there is another.
          this.waking = undefined;
          this.came();
        },
        REST_MS + 10 - (now - this.restsSince),
      );
    return rests;
  }

  private fill(which: 0 | 1, frame: number, rests: boolean, slots: Slots, colouring: Colouring): boolean {
    const line: FrameLine = this.dataset.frames[frame];
    const sampled = this.isSampled(frame);
    const whole = this.cache.get(frame);
    const sample = sampled ? this.samples.get(frame) : undefined;
    // In one colour until the categories come, and then in others, it would flicker: until then a sample, which has its own.
    const coloured = (tensors: Tensors) =>
      colouring.kind !== 'grouping' || tensors.has(`group.${colouring.name}`) || this.categories.ready(colouring.name);
    const useWhole = whole !== undefined && (sample === undefined || rests) && coloured(whole);
    const tensors = useWhole ? whole : sample;
    const has = this.loaded[which] === frame ? this.filled[which] : -1;
    if (tensors === undefined || has === slots.points || (has >= 0 && !useWhole)) return false;
    if (!useWhole && !coloured(tensors)) return false;
    const begin = performance.now();
    const strata = useWhole ? STRATA : (line.sample?.strata ?? STRATA);
    const count = useWhole ? line.count : (line.sample?.count ?? 0);
    const target = this.scene.array(which);
    const filled = slots.fill(target, this.dataset, line, tensors, colouring, count, strata);
    if (!filled.ok) this.wrong(filled.reason);
    this.filled[which] = slots.slotsOf(strata);
    this.scene.upload(which, line, this.filled[which]);
    this.loaded[which] = frame;
    this.fillMs = performance.now() - begin;
    return true;
  }
}
