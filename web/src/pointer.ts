// The pointer over the points: what is under it, clicks that choose, and the lasso that makes a group.

import type { App } from './app';
import { MINE } from './dataset';
import { ask } from './dialog';
import { byId, make } from './dom';
import { freeName } from './groups';
import { count } from './texts';

/** Longest name of a group, in letters. */
const NAME_MAX = 80;
/** How far from a point a mouse and a finger may be. */
const MOUSE_PX = 9;
const FINGER_PX = 22;

export class Pointer {
  lassoing = false;
  private down: { x: number; y: number } | undefined;
  private hovering = 0;
  private readonly tip = byId('tip');
  /** The frame that the tip tells of. */
  private told = -1;

  constructor(
    private readonly app: App,
    private readonly points: HTMLCanvasElement,
    private readonly notice: (text: string, wrong?: boolean) => void,
  ) {
    points.addEventListener('pointerdown', (event) => this.pressed(event));
    points.addEventListener('pointermove', (event) => this.moved(event));
    points.addEventListener('pointerup', (event) => this.released(event));
    points.addEventListener('pointercancel', () => {
      this.down = undefined;
    });
    points.addEventListener('pointerleave', (event) => {
      // A finger leaves whenever it is lifted: what it has tapped stays to be read.
      if (event.pointerType !== 'mouse') return;
      clearTimeout(this.hovering);
      this.hideTip();
    });
  }

  setLasso(on: boolean): void {
    this.lassoing = on;
    this.app.scene.controls.enabled = !on;
    byId('stage').classList.toggle('lasso', on);
    byId('lasso').setAttribute('aria-pressed', String(on));
    this.app.over.lasso = [];
    this.app.drawOver();
    // Keys mean the points now, not the button that was pressed last.
    if (on) this.points.focus({ preventScroll: true });
  }

  /** Makes a group of the chosen points: the lasso of who has no pointer. */
  groupChosen(): void {
    void this.nameGroup([...this.app.chosen.rows].sort((a, b) => a - b));
  }

  private pressed(event: PointerEvent): void {
    this.hideTip();
    // Two fingers turn or zoom; neither of them taps, nor draws.
    if (!event.isPrimary) {
      this.down = undefined;
      if (this.lassoing) this.setLasso(true);
      return;
    }
    this.down = { x: event.offsetX, y: event.offsetY };
    if (!this.lassoing) return;
    this.points.setPointerCapture(event.pointerId);
    this.app.over.lasso = [event.offsetX, event.offsetY];
  }

  private moved(event: PointerEvent): void {
    const [x, y] = [event.offsetX, event.offsetY];
    if (this.lassoing) {
      if (this.down === undefined || !event.isPrimary) return;
      this.app.over.lasso.push(x, y);
      this.app.drawOver();
    } else if (this.down === undefined && event.pointerType === 'mouse') {
      // Where there are very many points only when the pointer rests; where that would stop the page, only a click asks.
      clearTimeout(this.hovering);
      const { pickMs } = this.app.seen;
      if (pickMs > 100) return;
      this.hovering = window.setTimeout(() => void this.showTip(x, y, MOUSE_PX), pickMs > 12 ? 120 : 8);
    }
  }

  private released(event: PointerEvent): void {
    const [x, y] = [event.offsetX, event.offsetY];
    if (this.down === undefined) return;
    const still = Math.hypot(x - this.down.x, y - this.down.y) < 5;
    this.down = undefined;
    if (this.lassoing) {
      if (this.app.over.lasso.length >= 6) void this.nameCaught();
      else this.setLasso(false);
    } else if (still) {
      const radius = event.pointerType === 'mouse' ? MOUSE_PX : FINGER_PX;
      const row = this.app.seen.pick(x, y, radius);
      if (row !== undefined) this.app.chosen.toggle(row);
      void this.showTip(x, y, radius);
    }
  }

  /** Time has moved: what the tip tells is of the frame that is shown. */
  follow(): void {
    const row = this.app.over.hover;
    if (!this.tip.hidden && row !== undefined && Math.round(this.app.playback.position) !== this.told)
      void this.tell(row);
  }

  hideTip(): void {
    this.tip.hidden = true;
    this.app.setHover(undefined);
  }

  private async showTip(x: number, y: number, radius: number): Promise<void> {
    const { app, tip } = this;
    const row = app.seen.pick(x, y, radius);
    app.setHover(row);
    if (row === undefined) {
      tip.hidden = true;
      return;
    }
    if (!(await this.tell(row))) return;
    app.drawOver();
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 16 + height > innerHeight - 90 ? y - height - 14 : y + 16}px`;
  }

  /** Writes into the tip what a point is; false if the pointer has gone on before that was known. */
  private async tell(row: number): Promise<boolean> {
    const { app, tip } = this;
    const frame = Math.round(app.playback.position);
    this.told = frame;
    await app.describe(row);
    if (app.over.hover !== row) return false;
    // Time has gone on meanwhile, and what is said of the next frame is on its way.
    if (this.told !== frame) return true;
    const { id, label, facts } = app.details(row);
    const list = make(
      'dl',
      {},
      ...facts.flatMap(([name, value]) => [make('dt', { text: name }), make('dd', { text: value })]),
    );
    tip.replaceChildren(
      make('b', { text: id }),
      ...(label !== '' && label !== id ? [make('span', { text: label })] : []),
      list,
    );
    return true;
  }

  /** Makes a group of what is in the lasso: of all points there, also where only a sample of them has come so far. */
  private async nameCaught(): Promise<void> {
    const { app } = this;
    const { lasso } = app.over;
    const screen = app.scene.screen();
    const waits = setTimeout(() => this.notice('One moment: not all points have arrived yet.', false), 300);
    const here = await app.allHere();
    clearTimeout(waits);
    // It may have been let go, or drawn anew, meanwhile.
    if (app.over.lasso !== lasso) return;
    if (here) return this.nameGroup(app.seen.caught(lasso, screen));
    this.setLasso(false);
    this.notice('No group was made: the points of this frame cannot be read, so those in the lasso are unknown.');
  }

  private async nameGroup(rows: readonly number[]): Promise<void> {
    const { app } = this;
    if (rows.length === 0) {
      this.setLasso(false);
      this.notice('No point is in the lasso, or chosen.', false);
      return;
    }
    const name = await this.askName(rows.length);
    this.setLasso(false);
    if (name !== undefined && (await app.groups.save(name, rows))) app.colourBy(MINE);
  }

  /** What a group of so many points is to be called: groups are replaced by their names, but none without asking. */
  private async askName(points: number): Promise<string | undefined> {
    const { groups, dataset } = this.app;
    for (let name = ''; ; ) {
      const answer = await ask(
        'name-group',
        count(points, 'point'),
        [{ id: 'group-name', label: 'Name of the group', value: name, most: NAME_MAX, required: true }],
        [{ name: 'save', title: 'Save', look: 'primary', checks: true }],
      );
      name = answer?.value('group-name').trim() ?? '';
      // Others may have made groups since the page was opened.
      if (name === '' || !(await groups.load())) return undefined;
      const there = dataset.selections.find((group) => group.name === name);
      if (there === undefined) return name;
      const free = freeName(
        name,
        dataset.selections.map((group) => group.name),
        NAME_MAX,
      );
      const same = await ask(
        'same-name',
        `There is a group “${name}”`,
        [],
        [
          { name: 'beside', title: `Save as “${free}”`, look: 'primary' },
          { name: 'replace', title: 'Replace it', look: 'danger' },
        ],
        `It has ${count(there.rows.length, 'point')}, and may be another reader’s.`,
      );
      if (same !== undefined) return same.choice === 'beside' ? free : name;
    }
  }
}
