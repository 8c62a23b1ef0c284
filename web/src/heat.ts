// The heat map: counts, as a picture, with what its edges stand for and a line where both are the same.

import { byId } from './dom';
import { RAMPS, ramp } from './palettes';
import { shortNumber } from './texts';
import type { Ends, FrameLine, Tensor } from './wire';

/** Shows the map of a frame. */
export function showHeatMap(map: Tensor, line: FrameLine | undefined): void {
  drawHeatMap(byId<HTMLCanvasElement>('heat-picture'), map);
  byId('heat-bars').setAttribute('d', histogram(map));
  const range = line?.heatMapRange;
  const ends = [...(range?.up ?? []), ...(range?.right ?? [])];
  ['up-low', 'up-high', 'right-low', 'right-high'].forEach((name, i) => {
    byId(`heat-${name}`).textContent = ends[i] === undefined ? '' : shortNumber(ends[i]);
  });
  const equal = range === undefined ? undefined : diagonal(range.right, range.up);
  byId('heat-equal').setAttribute('d', equal === undefined ? '' : `M${equal[0]} ${equal[1]}L${equal[2]} ${equal[3]}`);
}

/** The counts of each column, of all rows together, as bars in a square of side 1 whose origin is at the upper left; the highest bar fills it. */
export function histogram({ shape: [height, width], data }: Tensor): string {
  const sums = new Float64Array(width);
  for (let i = 0; i < height * width; i++) sums[i % width] = (sums[i % width] ?? 0) + (data[i] ?? 0);
  const most = Math.max(...sums);
  if (!(most > 0)) return '';
  const top = (sum: number) => Number((1 - sum / most).toFixed(4));
  const right = (column: number) => Number(((column + 1) / width).toFixed(4));
  return `M0 1${Array.from(sums, (sum, column) => `V${top(sum)}H${right(column)}`).join('')}V1Z`;
}

/**
 * Where both axes say the same number: begin and end of a line in a square of side 1 whose origin is at the upper left; undefined if
 * that is nowhere.
 */
export function diagonal(right: Ends, up: Ends): readonly [number, number, number, number] | undefined {
  const [low, high] = [Math.max(right[0], up[0]), Math.min(right[1], up[1])];
  if (low >= high) return undefined;
  const x = (number: number) => (number - right[0]) / (right[1] - right[0]);
  const y = (number: number) => 1 - (number - up[0]) / (up[1] - up[0]);
  return [x(low), y(low), x(high), y(high)];
}

/** Draws counts, brighter where there are more; on a scale of logarithms, as a few cells have most. */
function drawHeatMap(canvas: HTMLCanvasElement, map: Tensor): void {
  const [height, width] = map.shape;
  if (width * height !== map.data.length || width * height === 0) return;
  canvas.width = width;
  canvas.height = height;
  const to = canvas.getContext('2d');
  if (to === null) return;
  const picture = to.createImageData(width, height);
  picture.data.set(heatPixels(map));
  to.putImageData(picture, 0, 0);
}

/** Four bytes for each cell, from the upper left on; where nothing was counted nothing is drawn. */
export function heatPixels({ shape: [height, width], data }: Tensor): Uint8ClampedArray {
  const pixels = new Uint8ClampedArray(width * height * 4);
  let most = 1;
  for (const count of data) most = Math.max(most, count);
  const stops = RAMPS.get('Viridis') ?? [];
  data.forEach((count, i) => {
    if (count === 0) return;
    // Row 0 is the lowest, as in a plot.
    const at = ((height - 1 - Math.floor(i / width)) * width + (i % width)) * 4;
    pixels.set([...ramp(stops, Math.log1p(count) / Math.log1p(most)).map(Math.round), 255], at);
  });
  return pixels;
}
