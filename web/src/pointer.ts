// The pointer over the points: what is under it, clicks that choose, and the lasso that makes a group.

import type { App } from './app';
import { MINE } from './dataset';
import { byId, make } from './dom';

/** How far from a point a mouse and a finger may be. */
const MOUSE_PX = 9;
const FINGER_PX = 22;

export class Pointer {
  lassoing = false;
  private down: { x: number; y: number } | undefined;
  private hovering = 0;
  private readonly tip = byId('tip');

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
    points.addEventListener('pointerleave', () => {
      clearTimeout(this.hovering);
      this.hideTip();
    });
  }

  setLasso(on: boolean): void {
    this.lassoing = on;
    this.app.scene.controls.enabled = !on;
    byId('stage').classList.toggle('lasso', on);
    byId('lasso').setAttribute('aria-pressed', String(on));
    this.app.lasso = [];
    this.app.drawOver();
  }

  private pressed(event: PointerEvent): void {
    this.down = { x: event.offsetX, y: event.offsetY };
    this.hideTip();
    if (!this.lassoing) return;
    this.points.setPointerCapture(event.pointerId);
    this.app.lasso = [event.offsetX, event.offsetY];
  }

  private moved(event: PointerEvent): void {
    const [x, y] = [event.offsetX, event.offsetY];
    if (this.lassoing && this.app.lasso.length > 0) {
      this.app.lasso.push(x, y);
      this.app.drawOver();
    } else if (this.down === undefined && event.pointerType === 'mouse') {
      // Where there are very many points only when the pointer rests; where that would stop the page, only a click asks.
      clearTimeout(this.hovering);
      const { pickMs } = this.app.times;
      if (pickMs > 100) return;
      this.hovering = window.setTimeout(() => void this.showTip(x, y, MOUSE_PX), pickMs > 12 ? 120 : 8);
    }
  }

  private released(event: PointerEvent): void {
    const [x, y] = [event.offsetX, event.offsetY];
    const still = this.down !== undefined && Math.hypot(x - this.down.x, y - this.down.y) < 5;
    this.down = undefined;
    if (this.lassoing) {
      if (this.app.lasso.length >= 6) this.nameGroup();
      else this.setLasso(false);
    } else if (still) {
      const radius = event.pointerType === 'mouse' ? MOUSE_PX : FINGER_PX;
      const row = this.app.pick(x, y, radius);
      if (row !== undefined) this.app.toggleChosen(row);
      void this.showTip(x, y, radius);
    }
  }

  private hideTip(): void {
    this.tip.hidden = true;
    this.app.setHover(undefined);
  }

  private async showTip(x: number, y: number, radius: number): Promise<void> {
    const { app, tip } = this;
    const row = app.pick(x, y, radius);
    app.setHover(row);
    if (row === undefined) {
      tip.hidden = true;
      return;
    }
    await app.known.load([row]);
    // The pointer may have gone on meanwhile.
    if (app.hover !== row) return;
    app.drawOver();
    tip.hidden = false;
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
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 16 + height > innerHeight - 90 ? y - height - 14 : y + 16}px`;
  }

  private nameGroup(): void {
    const { app } = this;
    const rows = app.caught();
    const dialog = byId<HTMLDialogElement>('name-group');
    const name = byId<HTMLInputElement>('group-name');
    if (rows.length === 0) {
      this.setLasso(false);
      this.notice('no point is in the lasso', false);
      return;
    }
    byId('name-count').textContent = rows.length === 1 ? '1 point' : `${rows.length.toLocaleString('en')} points`;
    name.value = '';
    dialog.returnValue = '';
    dialog.onclose = async () => {
      this.setLasso(false);
      const given = name.value.trim();
      if (dialog.returnValue !== 'save' || given === '') return;
      const others = app.dataset.selections.filter((selection) => selection.name !== given);
      if (await app.saveSelections([...others, { name: given, rows }])) app.colourBy(MINE);
    };
    dialog.showModal();
  }
}
