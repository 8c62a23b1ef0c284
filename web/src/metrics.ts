// Figures over time: lines behind the slider, and beside it what they are in the frame that is shown.

import { byId, make } from './dom';
import { shortNumber } from './texts';
import type { FrameLine } from './wire';

const HUES = ['var(--plot-1)', 'var(--plot-2)', 'var(--plot-3)', 'var(--plot-4)'];

export class Metrics {
  private readonly names = new Set<string>();
  /** The figures that are shown, as many as there are hues; where there are more, readers choose which. */
  private shown: string[] = [];
  private scanned = 0;
  private frame: FrameLine | undefined;

  constructor(private readonly frames: readonly FrameLine[]) {}

  /** Shows what the frames have; does nothing if there is no new one. */
  update(): void {
    if (this.scanned === this.frames.length) return;
    for (; this.scanned < this.frames.length; this.scanned++)
      for (const name of this.frames[this.scanned].metrics.keys()) this.names.add(name);
    const more = [...this.names].filter((name) => !this.shown.includes(name));
    this.shown = [...this.shown, ...more].slice(0, HUES.length);
    this.fill();
  }

  /** Shows the figures of a frame. */
  show(frame: FrameLine | undefined): void {
    this.frame = frame;
    byId('metrics')
      .querySelectorAll('b')
      .forEach((element, i) => {
        const figure = frame?.metrics.get(this.shown[i]);
        element.textContent = figure === undefined ? '–' : figureText(figure);
      });
  }

  private fill(): void {
    byId('plot').innerHTML = this.shown
      .map((name, i) => `<path d="${metricPath(this.frames, name)}" style="stroke: ${HUES[i]}"/>`)
      .join('');
    byId('metrics').replaceChildren(
      ...this.shown.map((name, i) =>
        make('li', { title: name }, make('i', { style: `background: ${HUES[i]}` }), this.label(name, i), make('b')),
      ),
    );
    this.show(this.frame);
  }

  private label(name: string, place: number): HTMLElement {
    if (this.names.size <= HUES.length) return make('span', { text: name });
    const select = make('select');
    select.setAttribute('aria-label', `Line ${place + 1} of ${HUES.length}`);
    select.append(...[...this.names].map((other) => new Option(other, other, false, other === name)));
    select.onchange = () => {
      // Two lines never show the same: the other one takes what this one showed.
      this.shown = this.shown.map((other) => (other === select.value ? name : other));
      this.shown[place] = select.value;
      this.fill();
      byId('metrics').querySelectorAll('select')[place].focus();
    };
    return select;
  }
}

/** With as many digits for all frames, so that they can be compared as they pass; but not where that says nothing, or too much. */
export function figureText(figure: number): string {
  const size = Math.abs(figure);
  return size === 0 || (size >= 5e-4 && size < 1e6) ? figure.toFixed(3) : shortNumber(figure);
}

/** A line through a figure of all frames, as the path of an SVG of the size 1000 × 100; broken where a frame has none. */
export function metricPath(frames: readonly Pick<FrameLine, 'metrics'>[], name: string): string {
  let [low, high] = [Infinity, -Infinity];
  for (const { metrics } of frames) {
    const figure = metrics.get(name) ?? Number.NaN;
    if (figure < low) low = figure;
    if (figure > high) high = figure;
  }
  let path = '';
  let down = false;
  frames.forEach(({ metrics }, i) => {
    const figure = metrics.get(name);
    if (figure !== undefined) {
      const x = (1000 * i) / Math.max(1, frames.length - 1);
      const y = 92 - 84 * (high > low ? (figure - low) / (high - low) : 0.5);
      path += `${down ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    }
    down = figure !== undefined;
  });
  return path;
}
