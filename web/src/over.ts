// The canvas over the points: which marks, ways, axes and lasso are drawn on it, from what is shown.

import { axisLabels } from './axes';
import type { Chosen } from './chosen';
import type { Colours } from './colours';
import type { Dataset } from './dataset';
import type { Known } from './known';
import { drawOverlay, type Mark } from './overlay';
import type { Box, PointScene } from './scene';
import type { Seen } from './seen';

export type Theme = { ink: string; soft: string; paper: string };

export class Over {
  hover: number | undefined;
  /** Corners of the lasso: x and y in turns. */
  lasso: number[] = [];
  theme: Theme = { ink: '#000', soft: '#555', paper: '#fff' };
  /** The box that the axes are those of. */
  world: Box | undefined;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly dataset: Dataset,
    private readonly colours: Colours,
    private readonly scene: PointScene,
    private readonly seen: Seen,
    private readonly known: Known,
    private readonly chosen: Chosen,
  ) {}

  resize(width: number, height: number): void {
    const ratio = Math.min(window.devicePixelRatio, 2);
    const [w, h] = [Math.floor(width * ratio), Math.floor(height * ratio)];
    // As for the points: setting it clears what is drawn.
    if (w !== this.canvas.width || h !== this.canvas.height) [this.canvas.width, this.canvas.height] = [w, h];
  }

  draw(position: number): void {
    const { chosen, dataset, hover, scene } = this;
    const glyphs = this.colours.glyphs();
    const mark = (row: number): Mark[] => {
      const spot = this.seen.spotOf(row);
      const id = this.known.get(row)?.id ?? '';
      if (spot === undefined) return [];
      const label = this.colours.edits.labels.get(id) ?? id;
      // Never smaller than the point that it stands for.
      const radius = Math.max(8, 1.25 * scene.radiusAt(spot.depth) + 1);
      return [{ spot, label, glyph: glyphs.get(id) ?? 'circle', colour: this.seen.colourOf(row), radius }];
    };
    const rows = new Set([...chosen.rows, ...chosen.marked.filter((row) => this.seen.isShown(row))]);
    drawOverlay(this.canvas, {
      marks: [...rows].flatMap(mark),
      trails: chosen.trails.seen(chosen.rows, scene, position, (row) => this.seen.colourOf(row)),
      hover: hover === undefined || rows.has(hover) ? undefined : mark(hover)[0],
      axes: this.axisLabels(),
      lasso: this.lasso,
      times: dataset.frames.map((frame) => frame.time),
      ...this.theme,
    });
  }

  private axisLabels() {
    const { header } = this.dataset;
    if (header === undefined || this.world === undefined) return [];
    return axisLabels(this.scene.screen(), this.scene.half, this.world.low, this.world.high, header.axes);
  }
}
