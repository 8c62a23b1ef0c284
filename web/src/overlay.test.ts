// What is drawn over the points, as told to a canvas that writes everything down.

import { describe, expect, it } from 'vitest';
import { type Drawing, drawOverlay, type Mark } from './overlay';

type Call = { name: string; words: unknown[]; stroke: unknown; fill: unknown; alpha: number };

/** A canvas of 400 × 300 that keeps what it is told; texts are seven pixels a letter wide. */
function recorded(drawing: Partial<Drawing>): Call[] {
  const calls: Call[] = [];
  const state: Record<string, unknown> = { globalAlpha: 1 };
  const to = new Proxy(state, {
    get: (_, name: string) => {
      if (name === 'measureText') return (text: string) => ({ width: 7 * text.length });
      if (name in state && typeof state[name] !== 'function') return state[name];
      return (...words: unknown[]) =>
        void calls.push({
          name,
          words,
          stroke: state.strokeStyle,
          fill: state.fillStyle,
          alpha: state.globalAlpha as number,
        });
    },
  });
  const canvas = { width: 800, clientWidth: 400, clientHeight: 300, getContext: () => to };
  const nothing: Drawing = {
    marks: [],
    trails: [],
    hover: undefined,
    axes: [],
    lasso: [],
    times: [],
    ink: 'ink',
    soft: 'soft',
    paper: 'paper',
  };
  drawOverlay(canvas as unknown as HTMLCanvasElement, { ...nothing, ...drawing });
  return calls;
}

const spot = (x: number, y: number) => ({ x, y, depth: 1 });
const mark = (x: number, y: number, label: string, glyph = 'circle'): Mark => {
  return { spot: spot(x, y), label, glyph, colour: 'green', radius: 10 };
};
const texts = (calls: Call[]) => calls.filter(({ name }) => name === 'fillText').map(({ words }) => words);

describe('over the points', () => {
  it.each([
    ['circle', 0, 1],
    ['square', 4, 0],
    ['diamond', 4, 0],
    ['triangle', 3, 0],
    ['star', 10, 0],
    ['cross', 12, 0],
  ])('a %s has as many corners as it should, about its point, in its colour', (glyph, corners, arcs) => {
    const calls = recorded({ marks: [mark(100, 50, 'A', glyph)] });
    const lines = calls.filter(({ name }) => name === 'lineTo').map(({ words }) => words as number[]);
    expect([lines.length, calls.filter(({ name }) => name === 'arc').length]).toEqual([corners, arcs]);
    for (const [x, y] of lines) expect(Math.hypot(x - 100, y - 50)).toBeLessThan(13);
    expect(calls.find(({ name }) => name === 'fill')?.fill).toBe('green');
    // No two glyphs are the same: a square stands on a side, a diamond on a corner.
    if (corners === 4) expect(lines.some(([x]) => Math.abs(x - 100) < 1e-9)).toBe(glyph === 'diamond');
    expect(texts(calls).map(([text]) => text)).toEqual(['A']);
  });

  it('labels do not lie on each other, those that have no room are left out, all glyphs are drawn', () => {
    const marks = [
      mark(100, 50, 'one'),
      mark(100, 50, 'two'),
      ...Array.from({ length: 9 }, () => mark(100, 50, 'more')),
    ];
    const calls = recorded({ marks });
    const places = texts(calls) as [string, number, number][];
    expect(places.map(([text]) => text)).toEqual(['one', 'two', 'more', 'more']);
    places.forEach(([, x, y], i) => {
      for (const [text, u, v] of places.slice(0, i))
        expect(Math.abs(y - v) >= 15 || x - u >= 7 * text.length || u > x).toBe(true);
    });
    expect(calls.filter(({ name }) => name === 'arc').length).toBe(11);
  });

  it('a way is strong behind its point and faint before it, broken where the point is not there, and says times', () => {
    const spots = [spot(10, 20), spot(60, 20), undefined, spot(200, 200), spot(300, 200), spot(300, 250)];
    const calls = recorded({ trails: [{ spots, colour: 'red', now: 3 }], times: ['a', 'b', 'c', 'd', 'e', 'f'] });
    const drawn = (alpha: number) =>
      calls.filter((call) => call.name === 'stroke' && call.alpha === alpha).map(({ stroke }) => stroke);
    expect(drawn(0.35)).toEqual(['paper', 'red']);
    expect(drawn(0.95)).toEqual(['paper', 'red']);
    const steps = calls
      .filter(({ name }) => name === 'moveTo' || name === 'lineTo')
      .map(({ name, words }) => [name, ...words]);
    expect(steps).toEqual([
      ['moveTo', 200, 200],
      ['lineTo', 300, 200],
      ['lineTo', 300, 250],
      ['moveTo', 10, 20],
      ['lineTo', 60, 20],
      ['moveTo', 200, 200],
    ]);
    expect(texts(calls).map(([text]) => text)).toEqual(['a', 'b', 'd', 'e', 'f']);
  });

  it('numbers of axes stand beside each other where two meet, and all of them is on the screen', () => {
    const meet = [
      { text: '1.165', spots: [spot(200, 200), spot(220, 190)] },
      { text: '1.059', spots: [spot(205, 205), spot(180, 210), spot(150, 215)] },
    ];
    const edge = [
      { text: '-2.5', spots: [spot(4, 100)] },
      { text: 'far away', spots: [spot(-20, 130)] },
    ];
    const places = texts(recorded({ axes: [...meet, ...edge] })) as [string, number, number][];
    expect(places).toEqual([
      ['1.165', 200 - 17.5, 200],
      ['1.059', 150 - 17.5, 215],
      ['-2.5', 3, 100],
    ]);
  });

  it('no mark is dropped, however many there are, nor two names put in one place', () => {
    const marks = Array.from({ length: 2000 }, (_, i) => mark((i * 37) % 400, (i * 91) % 300, String(i)));
    const calls = recorded({ marks });
    expect(calls.filter(({ name }) => name === 'arc').length).toBe(2000);
    expect(texts(recorded({ marks: [mark(70, 50, 'a'), mark(60, 50, 'long long name')] })).length).toBe(2);
  });
});
