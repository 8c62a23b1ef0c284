// Colours as people see them who lack a kind of cones: what is called safe is, on a light and on a dark page.

import { describe, expect, it } from 'vitest';
import { Colours, GREY } from './colours';
import { Dataset } from './dataset';
import { categoryLook, looksOf, ORDERED, RAMPS, type Rgb, ramp, rgb, SCHEMES, SHAPES } from './palettes';
import { NO_COLOUR } from './slots';

/** G. Machado, M. Oliveira and L. Fernandes (2009): on linear light, as seen with all cones, and wholly without one kind. */
const SIGHTS: Record<string, readonly number[]> = {
  all: [1, 0, 0, 0, 1, 0, 0, 0, 1],
  protanopia: [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
  deuteranopia: [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
  tritanopia: [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
};
/** `--paper` of base.css, light and dark. */
const PAPERS = [rgb('#f6f7f9'), rgb('#0f151c')];
/** Differences of 2.3 can just be seen side by side; dots apart from each other need several times that. */
const LEAST = 8;

type Lab = readonly [number, number, number];
const times = (m: readonly number[], [a, b, c]: Rgb): Rgb => [
  m[0] * a + m[1] * b + m[2] * c,
  m[3] * a + m[4] * b + m[5] * c,
  m[6] * a + m[7] * b + m[8] * c,
];

/** A colour in CIE L*a*b*, as somebody sees it. */
function seen(colour: Rgb, sight: readonly number[]): Lab {
  const light = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const cut = times(sight, light as unknown as Rgb).map((c) => Math.min(1, Math.max(0, c))) as unknown as Rgb;
  const xyz = times([0.4339, 0.3762, 0.1899, 0.2126, 0.7152, 0.0722, 0.0177, 0.1095, 0.8728], cut);
  const [x, y, z] = xyz.map((t) => (t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

/** CIEDE2000: G. Sharma, W. Wu and E. Dalal (2005), equations 2 to 22. */
function difference([l1, a1, b1]: Lab, [l2, a2, b2]: Lab): number {
  const rad = Math.PI / 180;
  const seventh = (c: number) => Math.sqrt(c ** 7 / (c ** 7 + 25 ** 7));
  const g = 1.5 - seventh((Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2) / 2;
  const [c1, c2] = [Math.hypot(a1 * g, b1), Math.hypot(a2 * g, b2)];
  const hue = (a: number, b: number) => (a === 0 && b === 0 ? 0 : (Math.atan2(b, a * g) / rad + 360) % 360);
  const [h1, h2] = [hue(a1, b1), hue(a2, b2)];
  const grey = c1 * c2 === 0;
  const turn = grey ? 0 : ((h2 - h1 + 540) % 360) - 180;
  const [dl, dc, dh] = [l2 - l1, c2 - c1, 2 * Math.sqrt(c1 * c2) * Math.sin((turn / 2) * rad)];
  const [l, c] = [(l1 + l2) / 2, (c1 + c2) / 2];
  const h = grey ? h1 + h2 : Math.abs(h1 - h2) > 180 ? (h1 + h2 + 360) / 2 : (h1 + h2) / 2;
  const cos = (n: number, from: number) => Math.cos((n * h + from) * rad);
  const t = 1 - 0.17 * cos(1, -30) + 0.24 * cos(2, 0) + 0.32 * cos(3, 6) - 0.2 * cos(4, -63);
  const x = dl / (1 + (0.015 * (l - 50) ** 2) / Math.sqrt(20 + (l - 50) ** 2));
  const y = dc / (1 + 0.045 * c);
  const z = dh / (1 + 0.015 * c * t);
  const bend = -2 * seventh(c) * Math.sin(60 * Math.exp(-(((h - 275) / 25) ** 2)) * rad);
  return Math.sqrt(x * x + y * y + z * z + bend * y * z);
}

it('measures differences as the pairs that CIEDE2000 was published with', () => {
  for (const [a, b, told] of [
    [[50, 2.6772, -79.7751], [50, 0, -82.7485], 2.0425],
    [[50, 2.5, 0], [73, 25, -18], 27.1492],
    [[22.7233, 20.0904, -46.694], [23.0331, 14.973, -42.5619], 2.0373],
    [[2.0776, 0.0795, -1.135], [0.9033, -0.0636, -0.5514], 0.9082],
  ] as const)
    expect(difference(a, b)).toBeCloseTo(told, 4);
});

const safe = [...SCHEMES].filter(([name]) => name.includes('safe'));

describe.each(safe)('%s', (name, colours) => {
  it.each(Object.entries(SIGHTS))('is told apart by %s, and from grey and the page', (_, sight) => {
    const groups = Number(/safe to (\d+)/.exec(name)?.[1]);
    const looks = Array.from({ length: groups }, (_, code) => categoryLook(name, code, groups).colour);
    const all = [...looks, GREY].map((colour) => seen(colour, sight));
    let least = Infinity;
    all.forEach((a, i) => {
      for (const b of all.slice(0, i)) least = Math.min(least, difference(a, b));
      for (const paper of PAPERS) least = Math.min(least, difference(a, seen(paper, sight)));
    });
    expect(least).toBeGreaterThan(LEAST);
    expect(groups).toBe(colours.length);
  });
});

it('knows a scheme that is not safe when it sees one', () => {
  const tableau = (SCHEMES.get('Tableau') ?? []).map((colour) => seen(rgb(colour), SIGHTS.deuteranopia));
  expect(Math.min(...tableau.flatMap((a, i) => tableau.slice(0, i).map((b) => difference(a, b))))).toBeLessThan(LEAST);
});

it('has ramps whose every colour can be seen on either page', () => {
  for (const stops of RAMPS.values())
    for (let part = 0; part <= 1; part += 0.05)
      for (const paper of PAPERS)
        expect(difference(seen(ramp(stops, part), SIGHTS.all), seen(paper, SIGHTS.all))).toBeGreaterThan(LEAST);
  for (const stops of RAMPS.values()) for (const part of [-1, 0, 0.5, 1, 2]) expect(ramp(stops, part)).toHaveLength(3);
});

it('gives each group a look of its own, by shape where colours end', () => {
  expect(Math.max(...[...SCHEMES.values()].map((colours) => colours.length))).toBe(12);
  for (const scheme of SCHEMES.keys()) {
    const groups = Math.min(40, looksOf(scheme));
    const looks = Array.from({ length: groups }, (_, code) => categoryLook(scheme, code, groups));
    for (const part of looks.flatMap(({ colour }) => colour)) expect(part >= 0 && part <= 255).toBe(true);
    expect(new Set(looks.map((look) => JSON.stringify(look))).size).toBe(groups);
  }
});

it('colours bins from one end to the other until a reader wants another scheme', () => {
  const dataset = new Dataset();
  dataset.take({ kind: 'categories', grouping: 'sector', names: ['a', 'b'], ordered: false });
  dataset.take({ kind: 'categories', grouping: 'change', names: ['below', 'over'], ordered: true });
  const colours = new Colours(dataset);
  const [first, second] = [...SCHEMES.keys()];
  const by = (name: string) => {
    colours.by(name);
    return colours.scheme;
  };
  expect([by('sector'), by('change'), by('sector')]).toEqual([first, ORDERED, first]);
  by('change');
  colours.scheme = second;
  // So it stays when frames come.
  expect([by('change'), by('sector')]).toEqual([second, second]);
});

it('tells the graphics card colours, shapes, and what is hidden', () => {
  const dataset = new Dataset();
  const names = Array.from({ length: 26 }, (_, code) => `group ${code}`);
  dataset.take({ kind: 'categories', grouping: 'kind', names, ordered: false });
  const colours = new Colours(dataset);
  colours.by('kind');
  colours.show('group 13', false);
  const table = new Uint8Array(65_536 * 4);
  colours.paint(table);
  const alphas = [0, 11, 12, 13, 25, NO_COLOUR].map((code) => table[code * 4 + 3]);
  expect(alphas).toEqual([255, 255, 254, 0, 253, 255]);
  expect(colours.categories().map(({ shape }) => shape)).toEqual([
    ...names.map((_, code) => SHAPES[Math.floor(code / 12)]),
    'circle',
  ]);
});
