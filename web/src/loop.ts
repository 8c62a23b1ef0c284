// The loop: draws what is shown whenever that has changed, a part in each picture, and moves time while it plays.

import type { App } from './app';
import { after, type Detail, nextPart, startDetail } from './detail';
import type { Source } from './loader';
import { advance } from './playback';

export class Loop {
  /** How long our own work on a picture took: filling a frame, and all of a turn of the loop but the fill. */
  readonly times = { fillMs: 0, turnMs: 0, pictureMs: 0 };
  /** Whether a turn is to come. */
  scheduled = false;
  private detail: Detail = startDetail();
  private moving = true;
  private last: number | undefined;
  /** Who waits until all points are there. */
  private readonly waiting: ((here: boolean) => void)[] = [];

  constructor(
    private readonly app: App,
    private readonly source: Source,
    /** A turn is over. */
    private readonly turned: () => void,
  ) {}

  /** What was drawn is no longer true: draws anew. */
  redraw(): void {
    this.moving = true;
    this.schedule();
  }

  /** How many points are drawn now. */
  drawn(): number {
    return Math.min(this.detail.drawn, this.app.shown.available());
  }

  /** Waits until all points of the moment that is shown are there; false if they cannot be read. */
  allHere(): Promise<boolean> {
    return new Promise((done) => {
      this.waiting.push(done);
    });
  }

  private schedule(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame((now) => this.turn(now));
  }

  private turn(now: number): void {
    const { app } = this;
    const { scene, shown, edges } = app;
    this.scheduled = false;
    const begin = performance.now();
    const tookMs = this.last === undefined ? undefined : now - this.last;
    const playing = app.playback.playing;
    if (playing) {
      const ready = shown.ready(Math.floor(app.playback.position));
      app.playback = advance(app.playback, (tookMs ?? 16) / 1000, app.frames, ready);
    }
    const fillMs = this.load();
    // Damping: goes on for a while after the pointer was let go; it calls `redraw`.
    scene.controls.update();
    if (edges.follow(app.dataset.frames[shown.loaded[0]], this.source)) this.moving = true;
    const points = shown.available();
    const part = nextPart(this.detail, points, this.moving || playing);
    const wasMoving = this.moving || playing;
    this.moving = false;
    if (part !== undefined && app.frames > 0) {
      if (part.clear) scene.setLines(edges.places(scene.between(), app.slots, points));
      scene.draw(part);
      this.detail = after(this.detail, part, points, wasMoving ? tookMs : undefined);
    }
    if (wasMoving) app.drawOver();
    this.times.turnMs = performance.now() - begin - fillMs;
    if (tookMs !== undefined && wasMoving) this.times.pictureMs = tookMs;
    const whole = shown.isWhole(app.playback.position, app.slots.points);
    if (whole !== undefined) for (const done of this.waiting.splice(0)) done(whole);
    this.turned();
    const more = app.playback.playing || this.detail.drawn < points;
    if (more) this.schedule();
    this.last = more || this.scheduled ? now : undefined;
  }

  /** Brings what is shown into the graphics card; returns how long that took. */
  private load(): number {
    const { app } = this;
    if (app.frames === 0) return 0;
    const begin = performance.now();
    if (app.shown.load(app.playback, app.slots, app.colouring)) {
      this.moving = true;
      this.times.fillMs = app.shown.fillMs;
    }
    if (app.painted()) this.moving = true;
    return performance.now() - begin;
  }
}
