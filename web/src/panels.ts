// Pictures beside the points: figures over time behind the slider, and the heat map.

import { css, RAMPS, ramp } from './palettes';
import type { FrameLine, Tensor } from './wire';

const HUES = ['var(--plot-1)', 'var(--plot-2)', 'var(--plot-3)', 'var(--plot-4)'];

/** The names of the figures that any frame has. */
export function metricNames(frames: readonly FrameLine[]): string[] {
  return [...new Set(frames.flatMap((frame) => [...frame.metrics.keys()]))].slice(0, HUES.length);
}

export function metricHue(at: number): string {
  return HUES[at % HUES.length];
}

/** A line through a figure of all frames, as the path of an SVG of the size 1000 × 100; broken where a frame has none. */
export function metricPath(frames: readonly FrameLine[], name: string): string {
  const figures = frames.map((frame) => frame.metrics.get(name));
  const known = figures.filter((figure) => figure !== undefined);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  let path = '';
  let down = false;
  figures.forEach((figure, i) => {
    if (figure !== undefined) {
      const x = (1000 * i) / Math.max(1, frames.length - 1);
      const y = 92 - 84 * (high > low ? (figure - low) / (high - low) : 0.5);
      path += `${down ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    }
    down = figure !== undefined;
  });
  return path;
}

/** Draws counts, darker where there are more; on a scale of logarithms, as a few cells have most. */
export function drawHeatMap(canvas: HTMLCanvasElement, map: Tensor): void {
  const [height, width] = map.shape;
  canvas.width = width;
  canvas.height = height;
  const to = canvas.getContext('2d');
  if (to === null || width * height !== map.data.length) return;
  const picture = to.createImageData(width, height);
  const counts = Array.from(map.data);
  const most = Math.log1p(counts.reduce((a, b) => Math.max(a, b), 0)) || 1;
  const stops = RAMPS.get('Viridis') ?? [];
  counts.forEach((count, i) => {
    if (count === 0) return;
    // Row 0 is the lowest, as in a plot.
    const at = ((height - 1 - Math.floor(i / width)) * width + (i % width)) * 4;
    const colour = ramp(stops, Math.log1p(count) / most);
    picture.data.set([...colour.map(Math.round), 255], at);
  });
  to.putImageData(picture, 0, 0);
}

/** The colours of a ramp as a CSS gradient. */
export function gradient(stops: readonly string[]): string {
  const colours = Array.from({ length: 12 }, (_, i) => css(ramp(stops, i / 11)));
  return `linear-gradient(to right, ${colours.join(', ')})`;
}
