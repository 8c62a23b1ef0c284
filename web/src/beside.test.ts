// What is beside the points, as numbers: which way up a heat map is, where its line goes, and lines of figures.

import { describe, expect, it } from 'vitest';
import { diagonal, heatPixels, histogram } from './heat';
import { figureText, metricPath } from './metrics';
import { type FrameLine, parseLine } from './wire';

const frames = (figures: (number | undefined)[]) =>
  figures.map(
    (figure): Pick<FrameLine, 'metrics'> => ({
      metrics: new Map(figure === undefined ? [] : [['stress', figure]]),
    }),
  );

describe('the heat map', () => {
  it('has row 0 below, column 0 left, more counts brighter, and nothing where nothing was counted', () => {
    const pixels = heatPixels({ shape: [2, 3], data: new Uint32Array([1, 0, 0, 0, 0, 1000]) });
    const alphas = Array.from({ length: 6 }, (_, i) => pixels[i * 4 + 3]);
    // The upper row comes first: of it only the rightmost cell, of the lower one only the leftmost.
    expect(alphas).toEqual([0, 0, 255, 255, 0, 0]);
    const [few, many] = [3, 2].map((i) => pixels[i * 4] + pixels[i * 4 + 1]);
    expect(many).toBeGreaterThan(2 * few);
    expect([...heatPixels({ shape: [1, 1], data: new Uint32Array(1) })]).toEqual([0, 0, 0, 0]);
  });

  it('has bars above it: what was counted in each column, of all rows', () => {
    const counts = new Uint32Array([1, 0, 0, 3, 1, 0]);
    expect(histogram({ shape: [2, 3], data: counts })).toBe('M0 1V0H0.3333V0.75H0.6667V1H1V1Z');
    expect(histogram({ shape: [1, 2], data: new Uint32Array(2) })).toBe('');
  });

  it('has a line where both axes say the same', () => {
    expect(diagonal([0, 2], [0, 2])).toEqual([0, 1, 1, 0]);
    // The picture is flatter than the data: its scale ends at half of theirs.
    expect(diagonal([0, 4], [0, 2])).toEqual([0, 1, 0.5, 0]);
    expect(diagonal([0, 2], [1, 5])).toEqual([0.5, 1, 1, 0.75]);
    expect(diagonal([0, 1], [1, 2])).toBeUndefined();
  });

  it('knows what its edges stand for only if the index says so', () => {
    const frame = { kind: 'frame', file: 'frame-000000.safetensors', time: '', count: 0, points: 0 };
    const box = { low: [0, 0, 0], high: [1, 1, 1] };
    const rangeOf = (heat_map_range: unknown) => {
      const line = parseLine(JSON.stringify({ ...frame, ...box, heat_map_range }), false);
      return line.ok && line.value.kind === 'frame' ? line.value.heatMapRange : 'refused';
    };
    expect(
      rangeOf([
        [0, 2.5],
        [1, 3],
      ]),
    ).toEqual({ up: [0, 2.5], right: [1, 3] });
    for (const wrong of [
      undefined,
      7,
      [[0, 1]],
      [[0, 1], [1]],
      [
        [0, 1],
        [2, 2],
      ],
      [
        ['0', 1],
        [0, 1],
      ],
    ])
      expect(rangeOf(wrong)).toBeUndefined();
  });
});

describe('lines of figures', () => {
  it('have three digits, or as many as say something', () => {
    const texts = [0, 0.085, -2, 0.00004, 1e39].map(figureText);
    expect(texts).toEqual(['0.000', '0.085', '-2.000', '4e-5', '1e39']);
  });

  it('go from left to right, the greatest uppermost, and break where there is no figure', () => {
    expect(metricPath(frames([2, 4, undefined, 3]), 'stress')).toBe('M0.0 92.0L333.3 8.0M1000.0 50.0');
    expect(metricPath(frames([5]), 'stress')).toBe('M0.0 50.0');
    expect(metricPath(frames([1, 2]), 'of another name')).toBe('');
  });

  it('can be as long as a day has seconds', () => {
    const path = metricPath(frames(Array.from({ length: 200_000 }, (_, i) => i)), 'stress');
    expect(path.startsWith('M0.0 92.0L') && path.endsWith('L1000.0 8.0')).toBe(true);
  });
});
