// Which colours values get: those of most points must differ, whatever a few others are.

import { describe, expect, it } from 'vitest';
import { Colours } from './colours';
import { Dataset } from './dataset';
import { DIVERGING, RAMPS } from './palettes';
import { middleOf, partBelow, scaleOf } from './scale';
import type { FrameLine } from './wire';

/** A frame of these numbers. */
function frame(numbers: readonly number[], name = 'v'): FrameLine {
  const sorted = [...numbers].sort((a, b) => a - b);
  const usual = [0.05, 0.5, 0.95].map((part) => sorted[Math.round(part * (sorted.length - 1))]);
  return {
    kind: 'frame',
    file: 'frame-000000.safetensors',
    time: '',
    count: 0,
    points: 0,
    low: [0, 0, 0],
    high: [1, 1, 1],
    values: new Map([[name, [sorted[0], sorted[sorted.length - 1]]]]),
    usual: new Map([[name, usual]]),
    metrics: new Map(),
    edges: undefined,
    heatMap: false,
    heatMapRange: undefined,
    sample: undefined,
  };
}

const evenly = (low: number, high: number) => Array.from({ length: 201 }, (_, i) => low + (i / 200) * (high - low));

describe('the colours of a value', () => {
  it('go to the ends of values that are spread evenly', () => {
    const scale = scaleOf([frame(evenly(3, 5)), frame(evenly(4, 9))], 'v');
    expect(scale).toEqual({ low: 3, high: 9, least: 3, most: 9, log: false });
    expect([3, 6, 9].map((value) => partBelow(scale, value))).toEqual([0, 0.5, 1]);
    expect(middleOf(scale)).toBe(6);
  });

  it('leave out a few points that are far away, and a few frames', () => {
    const frames = Array.from({ length: 30 }, (_, i) => frame(evenly(10, i === 3 ? 5000 : 20)));
    frames.push(frame([...evenly(10, 20), 1e9]));
    const scale = scaleOf(frames, 'v');
    expect(scale.low).toBeCloseTo(10.5, 1);
    expect(scale.high).toBeCloseTo(19.5, 1);
    expect([scale.least, scale.most, scale.log]).toEqual([10, 1e9, false]);
  });

  it('are those of frames that move from one end to the other', () => {
    const scale = scaleOf(
      Array.from({ length: 101 }, (_, i) => frame(evenly(i, i + 1))),
      'v',
    );
    expect([scale.low, scale.high]).toEqual([0, 101]);
  });

  it('go by logarithms where most would be alike otherwise', () => {
    const capital = [0, ...evenly(6, 10).map((digits) => 10 ** digits)];
    const scale = scaleOf([frame(capital)], 'v');
    expect(scale).toMatchObject({ least: 0, most: 1e10, log: true });
    const parts = [1e7, 1e8, 1e9].map((value) => partBelow(scale, value));
    expect(parts[0]).toBeGreaterThan(0.15);
    expect(parts[1]).toBeCloseTo(0.5, 1);
    expect(parts[2]).toBeLessThan(0.85);
    expect(partBelow(scale, middleOf(scale))).toBeCloseTo(0.5);
  });

  it('have 0 in the middle where there are values on both sides, and colours that tell these apart', () => {
    const change = frame([...evenly(-60, 100), 3156], 'change');
    const scale = scaleOf([change], 'change');
    expect(scale.low).toBe(-scale.high);
    expect(scale.high).toBeLessThan(100);
    expect(partBelow(scale, 0)).toBe(0.5);
    expect(scaleOf([frame(evenly(-1, 100))], 'v').low).toBe(-1);
    const dataset = new Dataset();
    dataset.take({ kind: 'points', count: 1, file: undefined });
    dataset.take(change);
    dataset.take(frame(evenly(1, 2)));
    const colours = new Colours(dataset);
    const by = (name: string) => {
      colours.by(name);
      return colours.scheme;
    };
    const [first, second] = [...RAMPS.keys()];
    expect([by('change'), by('v'), by('change')]).toEqual([DIVERGING, first, DIVERGING]);
    colours.scheme = second;
    // So it stays when frames come.
    expect([by('change'), by('v')]).toEqual([second, second]);
  });

  it('are told of frames that do not say where most values lie, and of a value that is not there', () => {
    const old = { ...frame([1, 2, 1000]), usual: new Map() };
    expect(scaleOf([old], 'v')).toEqual({ low: 1, high: 1000, least: 1, most: 1000, log: false });
    expect(scaleOf([old], 'w')).toEqual({ low: 0, high: 0, least: 0, most: 0, log: false });
    // Values that are all the same have a colour, too.
    expect(partBelow(scaleOf([frame([7, 7])], 'v'), 7)).toBe(0);
  });
});
