// What is shown. The page's controls change it through methods and hear of changes.

import { CHOSEN_MAX, Chosen } from './chosen';
import { type Category, Colours } from './colours';
import { boxOf, Dataset } from './dataset';
import { calm, isDark, setDark } from './dom';
import { Edges } from './edges';
import type { Edits } from './edits';
import { type Fact, factsOf } from './facts';
import { Feed } from './feed';
import type { Margins } from './fit';
import { Groups } from './groups';
import { Known } from './known';
import { decodeView, type View } from './link';
import type { FrameCache, Source } from './loader';
import { Loop } from './loop';
import { Over, type Theme } from './over';
import { RAMPS, SCHEMES } from './palettes';
import { grown, type Playback, seek } from './playback';
import { type Box, PointScene } from './scene';
import { Seen } from './seen';
import { Shown } from './shown';
import { type Colouring, Slots } from './slots';
import type { Parsed } from './wire';

export type Details = { id: string; label: string; facts: readonly Fact[] };

export class App {
  readonly dataset = new Dataset();
  readonly scene: PointScene;
  playback: Playback = { position: 0, playing: false, framesPerS: 4, loop: false };
  readonly colours = new Colours(this.dataset);
  size = 8;
  opacity = 1;

  slots = new Slots(0);
  readonly loop: Loop;
  readonly seen: Seen;
  readonly shown: Shown;
  readonly edges: Edges;
  readonly known: Known;
  readonly chosen: Chosen;
  readonly groups: Groups;
  readonly over: Over;
  /** Why nothing new comes; empty as long as it does. */
  trouble = '';
  private readonly feed: Feed;
  private following = false;
  /** Whether the colours have changed since they were brought into the card. */
  private unpainted = false;

  constructor(
    client: Source,
    /** Whether groups are part of a version, in place of being kept beside the frames. */
    private readonly inLibrary: boolean,
    points: HTMLCanvasElement,
    overlay: HTMLCanvasElement,
    /** `data`: what there is has changed; `time`: only what is shown of it. */
    private readonly changed: (what: 'data' | 'time') => void,
    notice: (text: string, wrong?: boolean) => void,
    /** The frames were written anew: nothing that the page has is true any more. */
    anew: () => void,
  ) {
    this.loop = new Loop(this, client, () => changed('time'));
    this.scene = new PointScene(points, () => this.redraw());
    this.known = new Known(client, notice);
    this.feed = new Feed(client, this.dataset, {
      grew: (points, frames) => this.grow(points, frames),
      trouble: (reason) => this.setTrouble(reason),
      anew,
      notice,
    });
    this.edges = new Edges(() => this.redraw(), notice);
    this.shown = new Shown(this.dataset, this.scene, client, () => this.redraw(), notice);
    this.seen = new Seen(this.scene, this.shown, () => this.slots);
    this.groups = new Groups(this.dataset, client, inLibrary ? () => this.colours.edits : undefined, notice);
    this.chosen = new Chosen(this.known, client, (what) => this.chosenChanged(what), notice);
    this.over = new Over(overlay, this.dataset, this.colours, this.scene, this.seen, this.known, this.chosen);
  }

  /** Loads what there is, then waits for more as long as the page is open. */
  async start(): Promise<Parsed<void>> {
    const begun = await this.feed.start();
    if (!begun.ok) return begun;
    await this.groups.load();
    this.colourBy(this.firstColouring());
    this.following = true;
    void this.feed.follow();
    return begun;
  }

  /** What is done at the start where there are frames, when the first of them come later. */
  private begin(): Promise<void> {
    this.colourBy(this.firstColouring());
    return this.chooseMarked();
  }

  private grow(pointsBefore: number, framesBefore: number): void {
    const { points, frames } = this.dataset;
    if (points !== pointsBefore) {
      // Until a reader chooses another, the size of a point leaves room for the others.
      if (pointsBefore === 0) this.size = Math.max(1, Math.min(12, Math.round(16 * (2000 / points) ** 0.3) / 2));
      this.slots = new Slots(points);
      this.scene.allocate(points);
      this.shown.forget();
      if (this.dataset.selections.length > 0) this.dataset.takeSelections(this.dataset.selections);
    }
    if (frames.length !== framesBefore) this.setWorld();
    this.playback = grown(this.playback, framesBefore, frames.length, calm());
    if (this.colouring.kind !== 'plain') this.colourBy(this.colouring.name);
    this.chosen.follow();
    if (this.following && points !== pointsBefore) void (pointsBefore === 0 ? this.begin() : this.mark());
    this.changed('data');
    this.redraw();
  }

  private setTrouble(reason: string): void {
    const over = this.trouble !== '' && reason === '';
    this.trouble = reason;
    if (over) {
      this.shown.retry();
      this.edges.retry();
    }
    this.changed('data');
    this.redraw();
  }

  /** The world is as large as the frames need; while they stay within it, it does not change under the reader's eyes. */
  private setWorld(): void {
    const box = boxOf(this.dataset.frames);
    const fits =
      this.over.world !== undefined &&
      box.low.every((x, i) => x >= (this.over.world as Box).low[i]) &&
      box.high.every((x, i) => x <= (this.over.world as Box).high[i]);
    if (fits) return;
    const first = this.over.world === undefined;
    this.over.world = box;
    this.scene.setWorld(box);
    if (first) this.scene.resetCamera();
    for (const which of [0, 1] as const) {
      const frame = this.dataset.frames[this.shown.loaded[which]];
      if (frame !== undefined) this.scene.setBox(which, frame);
    }
  }

  get loaded(): readonly [number, number] {
    return this.shown.loaded;
  }

  get cache(): FrameCache {
    return this.shown.cache;
  }

  get frames(): number {
    return this.dataset.frames.length;
  }

  valueNames(): string[] {
    return this.colours.valueNames();
  }

  // ---- what is shown

  seek(position: number): void {
    this.set({ ...seek(this.playback, position, this.frames), playing: false });
  }

  set(playback: Playback): void {
    this.playback = playback;
    this.redraw();
    this.changed('time');
  }

  /** Colours by the grouping or value of that name; what there is not leaves all points alike. */
  colourBy(name: string): void {
    if (this.colours.by(name)) this.shown.forget();
    this.paint();
  }

  setScheme(scheme: string): void {
    if (SCHEMES.has(scheme) || RAMPS.has(scheme)) this.colours.scheme = scheme;
    this.paint();
  }

  get colouring(): Colouring {
    return this.colours.colouring;
  }

  get scheme(): string {
    return this.colours.scheme;
  }

  categories(): Category[] {
    return this.colours.categories();
  }

  show(name: string, shown: boolean): void {
    this.colours.show(name, shown);
    this.paint();
  }

  isolate(name: string): void {
    this.colours.isolate(name);
    this.paint();
  }

  /** Shows what a version changes: colours, names, groups, and the view if it has one. */
  async setEdits(edits: Edits): Promise<void> {
    this.colours.setEdits(edits);
    if (this.inLibrary) await this.groups.load();
    this.colourBy(this.colouring.kind === 'plain' ? this.firstColouring() : this.colouring.name);
    await this.chooseMarked();
    if (edits.view !== undefined) await this.setView(decodeView(edits.view));
  }

  /** Marks the points that the data marks, and follows them unless they are too many for that. */
  async chooseMarked(): Promise<void> {
    await this.mark();
    const { marked } = this.chosen;
    this.chosen.choose(marked.length <= CHOSEN_MAX ? marked : []);
  }

  private mark(): Promise<void> {
    return this.chosen.mark([...this.colours.glyphs().keys()]);
  }

  /** Changes something: tells the edits of now, to be changed, and shows them. */
  edit(change: (edits: Edits) => void): void {
    change(this.colours.edits);
    void this.mark();
    this.paint();
  }

  private firstColouring(): string {
    return [...this.dataset.groupings.keys()][0] ?? this.valueNames()[0] ?? '';
  }

  private paint(): void {
    this.unpainted = true;
    this.painted();
    this.redraw();
    this.changed('data');
  }

  /**
   * Brings the colours into the card, if they have changed; but not while the points there are still those of another colouring, which the new
   * colours would not fit. Whether it did.
   */
  painted(): boolean {
    if (!this.unpainted || this.shown.stale) return false;
    this.unpainted = false;
    this.colours.paint(this.scene.colours);
    this.scene.coloursChanged(this.colouring.kind === 'value');
    return true;
  }

  setLook(size: number, opacity: number): void {
    [this.size, this.opacity] = [size, opacity];
    this.scene.setLook(size, opacity, this.over.theme.paper);
    this.redraw();
  }

  setTheme(theme: Theme): void {
    this.over.theme = theme;
    this.setLook(this.size, this.opacity);
  }

  resize(width: number, height: number, margins: Margins): void {
    this.scene.resize(width, height, margins);
    this.over.resize(width, height);
    this.redraw();
  }

  // ---- points

  private chosenChanged(what: 'data' | 'picture'): void {
    this.redraw();
    if (what === 'data') this.changed('data');
  }

  /** The name of a point; its row until the server has said it. */
  id(row: number): string {
    return this.known.get(row)?.id ?? String(row);
  }

  rowsOf(ids: readonly string[]): Promise<number[]> {
    return this.known.rowsOf(ids);
  }

  setHover(row: number | undefined): void {
    if (row === this.over.hover) return;
    this.over.hover = row;
    this.drawOver();
  }

  /** Stops time, and waits until all points of the moment that is shown are there; false if they cannot be read. */
  allHere(): Promise<boolean> {
    this.set({ ...this.playback, playing: false });
    return this.loop.allHere();
  }

  /** Fetches what there is to say of a point in the frame that is shown. */
  async describe(row: number): Promise<void> {
    await Promise.all([this.known.load([row]), this.shown.describe(Math.round(this.playback.position))]);
  }

  /** What is known of a point: all, once it was fetched (`describe`). */
  details(row: number): Details {
    const { edits } = this.colours;
    const frame = Math.round(this.playback.position);
    const point = this.known.get(row);
    const id = this.id(row);
    return {
      id,
      label: edits.labels.get(id) ?? point?.label ?? '',
      facts: factsOf(this.dataset, edits, row, point, this.dataset.frames[frame], this.cache.get(frame)),
    };
  }

  /** How many of the points are drawn now. */
  drawn(): { drawn: number; of: number } {
    return { drawn: this.loop.drawn(), of: this.slots.points };
  }

  /** The heat map of the frame that is shown, once it has come. */
  heatMap() {
    return this.shown.get(Math.round(this.playback.position))?.get('heat_map');
  }

  showHeatMap(shown: boolean): void {
    this.shown.heatMap = shown;
    this.redraw();
  }

  // ---- a view as a link

  view(): View {
    return {
      frame: this.playback.position,
      colour: this.colouring.kind === 'plain' ? '' : this.colouring.name,
      scheme: this.scheme,
      ...this.colours.visible(),
      chosen: this.chosen.rows.map((row) => this.id(row)),
      camera: this.scene.cameraState(),
      fit: this.scene.fitDistance(),
      size: this.size,
      opacity: this.opacity,
      lines: this.edges.shown,
      speed: this.playback.framesPerS,
      theme: isDark() ? 'dark' : 'light',
    };
  }

  async setView(view: Partial<View>): Promise<void> {
    if (view.colour !== undefined) this.colourBy(view.colour);
    if (view.scheme !== undefined) this.setScheme(view.scheme);
    if (view.hidden !== undefined || view.shown !== undefined) this.colours.setVisible(view);
    if (view.lines !== undefined) this.edges.shown = view.lines;
    if (view.speed !== undefined) this.playback = { ...this.playback, framesPerS: view.speed };
    if (view.theme !== undefined) setDark(view.theme === 'dark');
    if (view.camera !== undefined) this.scene.setCamera(view.camera, view.fit);
    this.setLook(view.size ?? this.size, view.opacity ?? this.opacity);
    if (view.frame !== undefined) this.seek(view.frame);
    this.paint();
    if (view.chosen !== undefined) this.chosen.choose(await this.known.rowsOf(view.chosen));
  }

  // ---- drawing

  /** What was drawn is no longer true: draws anew. */
  redraw(): void {
    this.loop.redraw();
  }

  drawOver(): void {
    this.over.draw(this.playback.position);
  }
}
