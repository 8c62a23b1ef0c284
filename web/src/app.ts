// What is shown, and the loop that draws it. The page's controls change it through methods and hear of changes.

import { axisLabels } from './axes';
import { type Category, Colours } from './colours';
import { boxOf, Dataset } from './dataset';
import { after, type Detail, nextPart, startDetail } from './detail';
import { calm } from './dom';
import { Edges } from './edges';
import type { Edits } from './edits';
import { type Fact, factsOf } from './facts';
import { Feed } from './feed';
import { Known } from './known';
import { decodeView, type View } from './link';
import type { FrameCache, Source } from './loader';
import { drawOverlay, type Mark } from './overlay';
import { RAMPS, SCHEMES } from './palettes';
import { advance, grown, type Playback, seek } from './playback';
import { type Box, type Margins, PointScene } from './scene';
import { Seen } from './seen';
import { Shown } from './shown';
import { type Colouring, Slots } from './slots';
import { Trails } from './trails';
import type { Parsed, Selection } from './wire';

/** Most trajectories that are drawn. */
export const CHOSEN_MAX = 50;

export type Details = { id: string; label: string; facts: readonly Fact[] };
export type Theme = { ink: string; soft: string; paper: string };

export class App {
  readonly dataset = new Dataset();
  readonly scene: PointScene;
  playback: Playback = { position: 0, playing: false, framesPerS: 4, loop: false };
  readonly colours = new Colours(this.dataset);
  chosen: number[] = [];
  hover: number | undefined;
  lasso: number[] = [];
  size = 8;
  opacity = 1;
  /** How long our own work on a picture took: filling a frame, and all of a turn of the loop but the fill. */
  readonly times = { fillMs: 0, turnMs: 0, pictureMs: 0 };

  private slots = new Slots(0);
  readonly seen: Seen;
  readonly shown: Shown;
  private detail: Detail = startDetail();
  readonly trails = new Trails();
  readonly edges: Edges;
  readonly known: Known;
  private readonly feed: Feed;
  private moving = true;
  private last: number | undefined;
  private scheduled = false;
  private world: Box | undefined;
  private theme: Theme = { ink: '#000', soft: '#555', paper: '#fff' };

  constructor(
    private readonly client: Source,
    /** Whether groups are part of a version, in place of being kept beside the frames. */
    private readonly inLibrary: boolean,
    points: HTMLCanvasElement,
    private readonly overlay: HTMLCanvasElement,
    /** `data`: what there is has changed; `time`: only what is shown of it. */
    private readonly changed: (what: 'data' | 'time') => void,
    private readonly notice: (text: string, wrong?: boolean) => void,
  ) {
    this.scene = new PointScene(points, () => this.redraw());
    this.known = new Known(client, notice);
    this.feed = new Feed(client, this.dataset, (points, frames) => this.grow(points, frames), notice);
    this.edges = new Edges(() => this.redraw(), notice);
    this.shown = new Shown(this.dataset, this.scene, client, () => this.redraw(), notice);
    this.seen = new Seen(this.scene, this.shown, () => this.slots);
  }

  /** Loads what there is, then waits for more as long as the page is open. */
  async start(): Promise<Parsed<void>> {
    const begun = await this.feed.start();
    if (!begun.ok) return begun;
    const saved = this.inLibrary ? undefined : await this.client.selections();
    if (saved?.ok) this.dataset.takeSelections(saved.value);
    else if (saved !== undefined) this.notice(saved.reason);
    this.colourBy(this.firstColouring());
    void this.feed.follow();
    return begun;
  }

  private grow(pointsBefore: number, framesBefore: number): void {
    const { points, frames } = this.dataset;
    if (points !== pointsBefore) {
      // Until a reader chooses another, the size of a point leaves room for the others.
      if (pointsBefore === 0) this.size = Math.max(1, Math.min(8, Math.round(16 * (2000 / points) ** 0.3) / 2));
      this.slots = new Slots(points);
      this.scene.allocate(points);
      this.shown.forget();
      if (this.dataset.selections.length > 0) this.dataset.takeSelections(this.dataset.selections);
    }
    if (frames.length !== framesBefore) this.setWorld();
    this.playback = grown(this.playback, framesBefore, frames.length, calm());
    if (this.colouring.kind !== 'plain') this.colourBy(this.colouring.name);
    if (this.chosen.length > 0) void this.loadTrails();
    this.changed('data');
    this.redraw();
  }

  /** The world is as large as the frames need; while they stay within it, it does not change under the reader's eyes. */
  private setWorld(): void {
    const box = boxOf(this.dataset.frames);
    const fits =
      this.world !== undefined &&
      box.low.every((x, i) => x >= (this.world as Box).low[i]) &&
      box.high.every((x, i) => x <= (this.world as Box).high[i]);
    if (fits) return;
    const first = this.world === undefined;
    this.world = box;
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
    if (this.inLibrary) this.dataset.takeSelections([...edits.groups].map(([name, rows]) => ({ name, rows })));
    this.colourBy(this.colouring.kind === 'plain' ? this.firstColouring() : this.colouring.name);
    await this.chooseMarked();
    if (edits.view !== undefined) await this.setView(decodeView(edits.view));
  }

  /** Chooses the points that are drawn large. */
  async chooseMarked(): Promise<void> {
    this.choose(await this.known.rowsOf([...this.marked.keys()]));
  }

  /** Changes something: tells the edits of now, to be changed, and shows them. */
  edit(change: (edits: Edits) => void): void {
    change(this.colours.edits);
    this.paint();
  }

  /** Points that are drawn large, and how. */
  get marked(): Map<string, string> {
    return new Map([...(this.dataset.header?.glyphs ?? []), ...this.colours.edits.glyphs]);
  }

  private firstColouring(): string {
    return [...this.dataset.groupings.keys()][0] ?? this.valueNames()[0] ?? '';
  }

  private paint(): void {
    this.colours.paint(this.scene.colours);
    this.scene.coloursChanged(this.colouring.kind === 'value');
    this.redraw();
    this.changed('data');
  }

  setLook(size: number, opacity: number): void {
    [this.size, this.opacity] = [size, opacity];
    this.scene.setLook(size, opacity, this.theme.paper);
    this.redraw();
  }

  setTheme(theme: Theme): void {
    this.theme = theme;
    this.setLook(this.size, this.opacity);
  }

  resize(width: number, height: number, margins: Margins): void {
    this.scene.resize(width, height, margins);
    const ratio = Math.min(window.devicePixelRatio, 2);
    this.overlay.width = width * ratio;
    this.overlay.height = height * ratio;
    this.redraw();
  }

  // ---- points

  choose(rows: readonly number[]): void {
    this.chosen = [...new Set(rows)].slice(0, CHOSEN_MAX);
    this.trails.clear();
    if (this.chosen.length > 0) {
      void this.loadTrails();
      void this.learn(this.chosen);
    }
    this.redraw();
    this.changed('data');
  }

  /** Asks what these points are called, and shows it; points whose names are known are shown with them at once. */
  private async learn(rows: readonly number[]): Promise<void> {
    if (rows.every((row) => this.known.get(row) !== undefined)) return;
    if (await this.known.load(rows)) {
      this.redraw();
      this.changed('data');
    }
  }

  /** The name of a point; its row until the server has said it. */
  id(row: number): string {
    return this.known.get(row)?.id ?? String(row);
  }

  rowsOf(ids: readonly string[]): Promise<number[]> {
    return this.known.rowsOf(ids);
  }

  toggleChosen(row: number): void {
    this.choose(this.chosen.includes(row) ? this.chosen.filter((other) => other !== row) : [...this.chosen, row]);
  }

  private async loadTrails(): Promise<void> {
    const loaded = await this.trails.load(this.client, this.chosen);
    if (!loaded.ok) this.notice(loaded.reason);
    else if (loaded.value) this.redraw();
  }

  setHover(row: number | undefined): void {
    if (row === this.hover) return;
    this.hover = row;
    this.drawOver();
  }

  async saveSelections(selections: readonly Selection[]): Promise<boolean> {
    if (this.inLibrary) {
      this.colours.edits.groups = new Map(selections.map(({ name, rows }) => [name, rows]));
      this.dataset.takeSelections(selections);
      return true;
    }
    const saved = await this.client.saveSelections(selections);
    if (!saved.ok) this.notice(saved.reason);
    else this.dataset.takeSelections(selections);
    return saved.ok;
  }

  /** What is known of a point: all, once `known` has been asked for it. */
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
    return { drawn: Math.min(this.detail.drawn, this.shown.available()), of: this.slots.points };
  }

  heatMap() {
    return this.shown.get(Math.round(this.playback.position))?.get('heat_map');
  }

  // ---- a view as a link

  view(): View {
    return {
      frame: this.playback.position,
      colour: this.colouring.kind === 'plain' ? '' : this.colouring.name,
      scheme: this.scheme,
      hidden: [...this.colours.hiddenNames()],
      chosen: this.chosen.map((row) => this.id(row)),
      camera: this.scene.cameraState(),
      size: this.size,
      opacity: this.opacity,
    };
  }

  async setView(view: Partial<View>): Promise<void> {
    if (view.colour !== undefined) this.colourBy(view.colour);
    if (view.scheme !== undefined) this.setScheme(view.scheme);
    if (view.hidden !== undefined) for (const name of view.hidden) this.colours.hiddenNames().add(name);
    if (view.camera !== undefined) this.scene.setCamera(view.camera);
    this.setLook(view.size ?? this.size, view.opacity ?? this.opacity);
    if (view.frame !== undefined) this.seek(view.frame);
    this.paint();
    if (view.chosen !== undefined) this.choose(await this.known.rowsOf(view.chosen));
  }

  // ---- the loop

  /** Brings what is shown into the graphics card; returns how long that took. */
  private load(): number {
    if (this.frames === 0) return 0;
    const begin = performance.now();
    if (this.shown.load(this.playback, this.slots, this.colouring)) {
      this.moving = true;
      this.times.fillMs = this.shown.fillMs;
    }
    return performance.now() - begin;
  }

  /** What was drawn is no longer true: draws anew. */
  redraw(): void {
    this.moving = true;
    this.schedule();
  }

  private schedule(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame((now) => this.turn(now));
  }

  private turn(now: number): void {
    this.scheduled = false;
    const begin = performance.now();
    const tookMs = this.last === undefined ? undefined : now - this.last;
    const playing = this.playback.playing;
    if (playing) {
      const ready = this.shown.ready(Math.floor(this.playback.position));
      this.playback = advance(this.playback, (tookMs ?? 16) / 1000, this.frames, ready);
    }
    const fillMs = this.load();
    // Damping: goes on for a while after the pointer was let go; it calls `redraw`.
    this.scene.controls.update();
    if (this.edges.follow(this.dataset.frames[this.shown.loaded[0]], this.client)) this.moving = true;
    const points = this.shown.available();
    const part = nextPart(this.detail, points, this.moving || playing);
    const wasMoving = this.moving || playing;
    this.moving = false;
    if (part !== undefined && this.frames > 0) {
      if (part.clear) this.scene.setLines(this.edges.places(this.scene.between(), this.slots, points));
      this.scene.draw(part);
      this.detail = after(this.detail, part, points, wasMoving ? tookMs : undefined);
    }
    if (wasMoving) this.drawOver();
    this.times.turnMs = performance.now() - begin - fillMs;
    if (tookMs !== undefined && wasMoving) this.times.pictureMs = tookMs;
    this.changed('time');
    const more = this.playback.playing || this.detail.drawn < points;
    if (more) this.schedule();
    this.last = more || this.scheduled ? now : undefined;
  }

  drawOver(): void {
    const mark = (row: number): Mark[] => {
      const spot = this.seen.spotOf(row);
      const id = this.known.get(row)?.id ?? '';
      if (spot === undefined) return [];
      const label = this.colours.edits.labels.get(id) ?? id;
      // Never smaller than the point that it stands for.
      const radius = Math.max(8, 1.25 * this.scene.radiusAt(spot.depth) + 1);
      return [{ spot, label, glyph: this.marked.get(id) ?? 'circle', colour: this.seen.colourOf(row), radius }];
    };
    drawOverlay(this.overlay, {
      marks: this.chosen.flatMap(mark),
      trails: this.trails.seen(this.chosen, this.scene, this.playback.position, (row) => this.seen.colourOf(row)),
      hover: this.hover === undefined || this.chosen.includes(this.hover) ? undefined : mark(this.hover)[0],
      axes: this.axisLabels(),
      lasso: this.lasso,
      times: this.dataset.frames.map((frame) => frame.time),
      ...this.theme,
    });
  }

  private axisLabels() {
    const { header } = this.dataset;
    if (header === undefined || this.world === undefined) return [];
    return axisLabels(this.scene.screen(), this.scene.half, this.world.low, this.world.high, header.axes);
  }
}
