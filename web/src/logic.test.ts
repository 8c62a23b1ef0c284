// The page's decisions, without a browser: where points lie, what the clock does, what is picked, what links say.

import { PerspectiveCamera, Vector3 } from 'three';
import { describe, expect, it } from 'vitest';
import { axisLabels } from './axes';
import { Colours, NONE } from './colours';
import { Dataset } from './dataset';
import { after, nextPart, startDetail } from './detail';
import { distanceOf, fit } from './fit';
import { Known } from './known';
import { decodeView, encodeView } from './link';
import type { Source } from './loader';
import { Names } from './names';
import { type Between, inside, isInside, nearest } from './pick';
import { advance, faster, grown, type Playback, seek, toggle, wanted } from './playback';
import type { PointScene } from './scene';
import { Seen } from './seen';
import type { Shown } from './shown';
import { ABSENT, CODES, lookUp, NO_COLOUR, Slots } from './slots';
import { type FrameLine, MISSING, STEPS, type Tensor, type Which } from './wire';

const u16 = (...numbers: number[]): Tensor => ({ shape: [numbers.length], data: new Uint16Array(numbers) });
const u8 = (...numbers: number[]): Tensor => ({ shape: [numbers.length], data: new Uint8Array(numbers) });
const u32 = (...numbers: number[]): Tensor => ({ shape: [numbers.length], data: new Uint32Array(numbers) });

function frameLine(count: number, points: number, more: Partial<FrameLine> = {}): FrameLine {
  return {
    kind: 'frame',
    file: 'frame-000000.safetensors',
    time: '',
    count,
    points,
    low: [0, 0, 0],
    high: [1, 1, 1],
    values: new Map(),
    usual: new Map(),
    metrics: new Map(),
    edges: undefined,
    heatMap: false,
    heatMapRange: undefined,
    sample: undefined,
    ...more,
  };
}

describe('slots', () => {
  it('gives each row a slot of its own, and knows the way back', () => {
    for (const points of [0, 1, 60, 61, 62, 1000, 12_345]) {
      const slots = new Slots(points);
      const taken = new Set<number>();
      for (let row = 0; row < points; row++) {
        taken.add(slots.slotOf(row));
        expect(slots.rowOf(slots.slotOf(row))).toBe(row);
      }
      expect(taken.size).toBe(points);
      expect(Math.max(-1, ...taken)).toBe(points - 1);
    }
  });

  it('has an even sample of all rows in its first slots', () => {
    const slots = new Slots(10_000);
    const first = Array.from({ length: 1000 }, (_, slot) => slots.rowOf(slot));
    for (let part = 0; part < 10; part++) {
      const inPart = first.filter((row) => Math.floor(row / 1000) === part).length;
      expect(Math.abs(inPart - 100)).toBeLessThan(20);
    }
  });

  const dataset = new Dataset();
  dataset.take({ kind: 'categories', grouping: 'kind', names: ['a', 'b'], ordered: false });
  dataset.take({ kind: 'points', count: 3, file: undefined });
  dataset.groupings.set('kind', { names: ['a', 'b'], ordered: false, codes: new Uint16Array([1, 0, MISSING]) });
  const slots = new Slots(3);

  it('fills a sample as it would fill the whole frame, as far as it goes', () => {
    const points = 1000;
    const many = new Dataset();
    many.take({ kind: 'points', count: points, file: undefined });
    const all = new Slots(points);
    // Every seventh point is not there.
    const rows = Array.from({ length: points }, (_, row) => row).filter((row) => row % 7 !== 0);
    const bitsOf = (of: number[], has: (row: number) => boolean) => {
      const bits = new Uint8Array(Math.ceil(of.length / 8));
      of.forEach((row, i) => {
        if (has(row)) bits[i >> 3] |= 1 << (i & 7);
      });
      return { shape: [bits.length], data: bits };
    };
    const every = Array.from({ length: points }, (_, row) => row);
    const tensorsOf = (known: number[]) => {
      const here = known.filter((row) => row % 7 !== 0);
      return new Map<string, Tensor>([
        ['position', u16(...here.flatMap((row) => [row, row + 1, row + 2]))],
        ['present', bitsOf(known, (row) => row % 7 !== 0)],
        ['value.v', u16(...here.map((row) => row * 3))],
      ]);
    };
    const line = frameLine(rows.length, points, { values: new Map([['v', [0, 1]]]) });
    const colouring = { kind: 'value', name: 'v', low: 0, high: 1 } as const;
    const whole = new Uint16Array(points * 4);
    expect(all.fill(whole, many, line, tensorsOf(every), colouring).ok).toBe(true);
    for (const strata of [1, 2, 17, 61]) {
      const known = every.filter((row) => row % 61 < strata);
      const part = new Uint16Array(points * 4);
      const count = known.filter((row) => row % 7 !== 0).length;
      expect(all.fill(part, many, line, tensorsOf(known), colouring, count, strata).ok).toBe(true);
      const end = all.slotsOf(strata) * 4;
      expect(known.length * 4).toBe(end);
      // Of what is not there the position does not matter.
      for (let i = 0; i < end; i += 4) {
        expect(part[i + 3]).toBe(whole[i + 3]);
        if (whole[i + 3] !== ABSENT) expect(part.subarray(i, i + 3)).toEqual(whole.subarray(i, i + 3));
      }
      expect(part.subarray(end).every((number) => number === 0)).toBe(true);
    }
  });

  it('leaves out points that are not in the frame', () => {
    const target = new Uint16Array(12);
    const tensors = new Map([
      ['position', u16(10, 11, 12, 20, 21, 22)],
      ['present', u8(0b101)],
    ]);
    expect(slots.fill(target, dataset, frameLine(2, 3), tensors, { kind: 'grouping', name: 'kind' }).ok).toBe(true);
    expect([...target.slice(slots.slotOf(0) * 4, slots.slotOf(0) * 4 + 4)]).toEqual([10, 11, 12, 1]);
    expect(target[slots.slotOf(1) * 4 + 3]).toBe(ABSENT);
    expect([...target.slice(slots.slotOf(2) * 4, slots.slotOf(2) * 4 + 4)]).toEqual([20, 21, 22, NO_COLOUR]);
    expect([0, 1, 2].map((row) => lookUp(frameLine(2, 3), tensors, row))).toEqual([0, undefined, 1]);
  });

  it('prefers the categories of the frame to those of the points, and tells values on one scale for all frames', () => {
    const target = new Uint16Array(12);
    const codes = () => [0, 1, 2].map((row) => target[slots.slotOf(row) * 4 + 3]);
    const tensors = new Map([
      ['position', u16(...new Array(9).fill(0))],
      ['group.kind', u16(0, MISSING, 1)],
      ['value.price', u16(0, STEPS, MISSING)],
    ]);
    const line = frameLine(3, 3, { values: new Map([['price', [5, 10]]]) });
    slots.fill(target, dataset, line, tensors, { kind: 'grouping', name: 'kind' });
    expect(codes()).toEqual([0, NO_COLOUR, 1]);
    slots.fill(target, dataset, line, tensors, { kind: 'value', name: 'price', low: 0, high: 10 });
    expect(codes()).toEqual([Math.floor(CODES / 2), CODES, NO_COLOUR]);
    // What is beyond the ends of the colours has those of the ends.
    slots.fill(target, dataset, line, tensors, { kind: 'value', name: 'price', low: 6, high: 7 });
    expect(codes()).toEqual([0, CODES, NO_COLOUR]);
  });

  it('says what is wrong with a frame', () => {
    const target = new Uint16Array(12);
    const plain = { kind: 'plain' } as const;
    expect(slots.fill(target, dataset, frameLine(3, 3), new Map(), plain)).toMatchObject({ ok: false });
    expect(
      slots.fill(target, dataset, frameLine(2, 3), new Map([['position', u16(1, 2, 3, 4, 5, 6)]]), plain),
    ).toMatchObject({
      ok: false,
      reason: expect.stringContaining('which points'),
    });
  });
});

describe('names', () => {
  it('are found by id and label over several batches of points', () => {
    const known = new Names();
    const texts = (name: string, ...all: string[]) => {
      const bytes = all.map((text) => new TextEncoder().encode(text));
      const offsets = [0];
      for (const text of bytes) offsets.push(offsets[offsets.length - 1] + text.length);
      return [
        [`${name}.offsets`, u32(...offsets)],
        [`${name}.bytes`, u8(...bytes.flatMap((text) => [...text]))],
      ] as [string, Tensor][];
    };
    const found = (text: string) => known.get({ text, most: 5 }).map(({ row }) => row);
    known.add(
      2,
      new Map([
        ...texts('id', 'AAPL', 'MSFT'),
        ...texts('label', 'Apple', 'Microsoft'),
        ['group.kind', u16(MISSING, 7)] as [string, Tensor],
      ]),
    );
    expect(found('micro')).toEqual([1]);
    known.add(1, new Map(texts('id', 'ÄAP')));
    expect(known.get({ rows: [2, 1, 9] })).toEqual([
      { row: 2, id: 'ÄAP', label: '', codes: new Map() },
      { row: 1, id: 'MSFT', label: 'Microsoft', codes: new Map([['kind', 7]]) },
    ]);
    expect([found('ap'), found('zz'), found(' ')]).toEqual([[0, 2], [], []]);
    expect(known.get({ ids: ['MSFT', 'msft', 'AAPL'] }).map(({ row }) => row)).toEqual([1, 0]);
  });

  it('are asked of the server once, and ids in questions of a bearable length', async () => {
    const asked: Which[] = [];
    const source = {
      points: async (which: Which) => {
        asked.push(which);
        const rows = 'rows' in which ? which.rows : 'ids' in which ? which.ids.map(Number) : [];
        return { ok: true, value: rows.map((row) => ({ row, id: String(row), label: '', codes: new Map() })) };
      },
    } as unknown as Source;
    const known = new Known(source, (reason) => expect.fail(reason));
    await known.load([1, 2]);
    await known.load([2, 3]);
    expect(asked).toEqual([{ rows: [1, 2] }, { rows: [3] }]);
    const ids = Array.from({ length: 900 }, (_, i) => String(1_000_000 + i));
    expect(await known.rowsOf(ids)).toEqual(ids.map(Number));
    for (const which of asked.slice(2)) expect('ids' in which && which.ids.length <= 200).toBe(true);
    expect(await known.rowsOf(['9'.repeat(9000), '7'])).toHaveLength(2);
    // Of very many the one that is looked at stays, and the first of the others goes.
    for (let row = 0; row < 25_000; row += 200) {
      await known.load(Array.from({ length: 200 }, (_, i) => row + i));
      expect(known.get(7)?.id).toBe('7');
    }
    expect([known.get(8), known.get(24_999)?.id]).toEqual([undefined, '24999']);
  });
});

describe('the clock', () => {
  const start: Playback = { position: 0, playing: true, framesPerS: 4, loop: false };

  it('goes on smoothly, waits for frames, and stops at the end', () => {
    expect(advance(start, 0.1, 10, 9).position).toBeCloseTo(0.4);
    expect(advance({ ...start, position: 2.9 }, 0.2, 10, 3).position).toBe(3);
    const end = advance({ ...start, position: 8.9 }, 0.2, 10, 9);
    expect([end.position, end.playing]).toEqual([9, false]);
    const again = advance({ ...start, position: 9, loop: true }, 0.1, 10, 9);
    expect([again.position, again.playing]).toEqual([0, true]);
    expect(advance(start, 3600, 1000, 999).position).toBe(1);
  });

  it('begins anew after the end, keeps within the frames, and follows new ones from the last', () => {
    expect(toggle({ ...start, position: 9, playing: false }, 10)).toMatchObject({ position: 0, playing: true });
    expect(toggle({ ...start, playing: false }, 1).playing).toBe(false);
    expect(seek(start, 99, 10).position).toBe(9);
    expect(seek(start, -1, 0).position).toBe(0);
    expect(grown({ ...start, playing: false, position: 9 }, 10, 11, false).playing).toBe(true);
    expect(grown({ ...start, playing: false, position: 5 }, 10, 11, false).playing).toBe(false);
    // Who wants no motion is there at once.
    expect(grown({ ...start, playing: false, position: 9 }, 10, 11, true)).toMatchObject({
      playing: false,
      position: 10,
    });
    expect(faster({ ...start, framesPerS: 30 }, 1).framesPerS).toBe(30);
    expect(faster(start, -1).framesPerS).toBe(2);
    expect(wanted(2.5, 5, 4)).toEqual([2, 3, 4]);
  });
});

describe('level of detail', () => {
  it('draws what there is time for while things move, then all the rest, each point once', () => {
    let detail = { ...startDetail(), budget: 300 };
    const drawn: number[] = [];
    for (let picture = 0; picture < 9; picture++) {
      const part = nextPart(detail, 1000, picture === 0);
      if (part === undefined) break;
      expect(part.clear).toBe(picture === 0);
      for (let slot = part.begin; slot < part.begin + part.count; slot++) drawn.push(slot);
      detail = after(detail, part, 1000, undefined);
    }
    expect(drawn).toEqual(Array.from({ length: 1000 }, (_, slot) => slot));
  });

  it('finds how many points there is time for', () => {
    // A machine that draws 10,000 points a millisecond.
    let detail = startDetail();
    for (let picture = 0; picture < 60; picture++) {
      const part = nextPart(detail, 10_000_000, true);
      if (part !== undefined) detail = after(detail, part, 10_000_000, Math.max(16, part.count / 10_000));
    }
    expect(detail.budget).toBeGreaterThan(200_000);
    expect(detail.budget).toBeLessThan(400_000);
  });
});

describe('picking', () => {
  const unit = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
  const screen = { matrix: unit, width: 200, height: 200 };
  const at = (...rows: number[][]) => new Uint16Array(rows.flat());
  const between = (a: Uint16Array, b: Uint16Array, t: number): Between => ({
    a,
    b,
    t,
    lowA: [-1, -1, -1],
    stepA: [1 / 100, 1 / 100, 1 / 100],
    lowB: [-1, -1, -1],
    stepB: [1 / 100, 1 / 100, 1 / 100],
    shown: new Uint8Array(65_536).fill(1),
    blend: false,
  });

  it('finds a point where it is between two frames, and none that is hidden or gone', () => {
    const both = between(at([100, 100, 0, 0], [0, 0, 0, 1]), at([150, 100, 0, 0], [0, 0, 0, ABSENT]), 0.5);
    expect(nearest(both, screen, 2, 125, 100, 5)).toBe(0);
    expect(nearest(both, screen, 2, 100, 100, 5)).toBeUndefined();
    // Halfway, the page tells the time of the second frame.
    expect(nearest({ ...both, t: 0.49 }, screen, 2, 0, 200, 5)).toBe(1);
    expect(nearest(both, screen, 2, 0, 200, 5)).toBeUndefined();
    both.shown[0] = 0;
    expect(nearest(both, screen, 2, 125, 100, 5)).toBeUndefined();
  });

  const seenOf = (lies: Between) => {
    // A palette in which the red of a code is the code.
    const colours = Uint8Array.from({ length: 4 * 65_536 }, (_, i) => (i % 4 === 0 ? i / 4 : i % 4 === 3 ? 255 : 0));
    const scene = { between: () => lies, colours } as unknown as PointScene;
    const shown = { available: () => 3 } as unknown as Shown;
    return new Seen(scene, shown, () => new Slots(3));
  };
  const codes = (...all: number[]) => at(...all.map((code) => [0, 0, 0, code]));

  it('counts the points of the frame whose time is told: the nearer one, the second halfway', () => {
    const [a, b] = [codes(1, 1, NO_COLOUR), codes(1, 2, ABSENT)];
    const counted = (t: number) => [...(seenOf(between(a, b, t)).counts() ?? [])];
    for (const t of [0, 0.3, 0.49]) {
      expect(Math.round(4 + t)).toBe(4);
      expect(counted(t)).toEqual([
        [1, 2],
        [NO_COLOUR, 1],
      ]);
    }
    for (const t of [0.5, 0.7]) {
      expect(Math.round(4 + t)).toBe(5);
      expect(counted(t)).toEqual([
        [1, 1],
        [2, 1],
      ]);
    }
  });

  it('has the colours of the graphics card: between those of two values, and those of one category or the other', () => {
    const [a, b] = [codes(100, 100, 40), codes(200, NO_COLOUR, ABSENT)];
    const red = (t: number, blend: boolean) =>
      [0, 1, 2].map(
        (row) =>
          seenOf({ ...between(a, b, t), blend })
            .colourOf(row)
            .slice(4)
            .split(' ')[0],
      );
    const none = String(NO_COLOUR & 255);
    expect(red(0.25, true)).toEqual(['125', '100', '40']);
    expect(red(0.75, true)).toEqual(['175', none, '40']);
    expect(red(0.25, false)).toEqual(['100', '100', '40']);
    expect(red(0.75, false)).toEqual(['200', none, '40']);
  });

  it('catches what is in a lasso that is not convex', () => {
    const u = [0, 0, 100, 0, 100, 100, 60, 100, 60, 40, 40, 40, 40, 100, 0, 100];
    expect([isInside(u, 20, 50), isInside(u, 50, 80), isInside(u, 50, 20), isInside(u, 120, 50)]).toEqual([
      true,
      false,
      true,
      false,
    ]);
    const points = at([20, 150, 0, 0], [50, 120, 0, 0], [50, 180, 0, 0]);
    expect(inside(between(points, points, 0), screen, 3, u)).toEqual([0, 2]);
  });
});

describe('links', () => {
  const view = {
    frame: 2.25,
    colour: 'a & b',
    scheme: 'Tableau',
    hidden: ['x', 'y=z', ''],
    chosen: ['#1'],
    camera: [1, 2, 3, 4, 5, 6],
    fit: 3.25,
    size: 8,
    opacity: 0.5,
    lines: false,
    speed: 0.25,
    theme: 'dark',
  } as const;

  const { hidden: _, ...rest } = view;

  it('say the view, and what is wrong in them is left out', () => {
    expect(decodeView(`#${encodeView(view)}`)).toEqual(view);
    const other = { ...rest, colour: '', shown: ['only'], chosen: [], lines: true, theme: 'light' } as const;
    expect(decodeView(encodeView(other))).toEqual(other);
    expect(decodeView('#frame=abc&camera=1,2&fit=0&size=-1&opacity=9&camera=&lines=2&speed=7&theme=pink')).toEqual({});
    expect(decodeView('')).toEqual({});
  });

  it('say of every group whether it is shown, however many there are, in the fewest names', () => {
    const dataset = new Dataset();
    const names = Array.from({ length: 400 }, (_, code) => `group ${code}`);
    dataset.take({ kind: 'categories', grouping: 'kind', names, ordered: false });
    const [from, to] = [new Colours(dataset), new Colours(dataset)];
    const shown = (colours: Colours) => colours.categories().map((category) => category.shown);
    for (const hide of [names.slice(0, 150), names.slice(3), [...names, NONE], []]) {
      for (const colours of [from, to]) colours.by('kind');
      for (const name of names) from.show(name, !hide.includes(name));
      from.show(NONE, !hide.includes(NONE));
      const said = encodeView({ ...rest, colour: 'kind', ...from.visible() });
      to.setVisible(decodeView(said) as { hidden?: string[]; shown?: string[] });
      expect(shown(to)).toEqual(shown(from));
    }
    from.isolate('group 7');
    expect(from.visible()).toEqual({ shown: ['group 7'] });
  });
});

describe('the camera', () => {
  const direction = new Vector3(2, 1.3, 2.9).normalize();
  const looking = (half: number[], right: number, up: number) => {
    const camera = new PerspectiveCamera((Math.atan(up) * 360) / Math.PI, right / up, 0.01, 100);
    const far = distanceOf(half, direction, right, up);
    camera.position.copy(direction).multiplyScalar(far);
    camera.lookAt(0, 0, 0);
    camera.updateMatrixWorld();
    return camera;
  };

  it('sees all of the box, and is no farther away than that takes', () => {
    for (const half of [
      [1, 1, 1],
      [1, 0.1, 0.4],
      [0.2, 1, 0],
    ])
      for (const [right, up] of [
        [0.4, 0.4],
        [0.2, 0.45],
        [0.7, 0.3],
      ]) {
        const camera = looking(half, right, up);
        const seen: number[] = [];
        for (const u of [-1, 1])
          for (const v of [-1, 1])
            for (const w of [-1, 1]) {
              const at = new Vector3(u * half[0], v * half[1], w * half[2]).project(camera);
              seen.push(Math.abs(at.x), Math.abs(at.y));
            }
        expect(Math.max(...seen)).toBeLessThan(1.0001);
        if (camera.position.length() > 2.001) expect(Math.max(...seen)).toBeGreaterThan(0.999);
      }
  });

  it('keeps all of the box out of the corners, and as near as that can be', () => {
    const tan = Math.tan(Math.PI / 8);
    for (const half of [
      [1, 1, 1],
      [1, 0.6, 0],
      [1, 0.2, 0],
      [0.2, 1, 0],
      [0, 0, 0],
    ])
      for (const [width, height, right] of [
        [700, 375, 308],
        [900, 600, 308],
        [1280, 800, 308],
        [2000, 700, 308],
        [768, 1024, 24],
      ]) {
        const margins = { top: 24, right, bottom: 106, left: 24 };
        const corners = { left: { width: 280, height: 106 }, right: { width: 346, height: 56 } };
        const canvas = { width, height, tan };
        const { margins: chosen, far } = fit(half, direction, canvas, { ...margins, corners });
        const camera = new PerspectiveCamera(45, width / height, 0.01, 100);
        camera.position.copy(direction).multiplyScalar(far);
        camera.lookAt(0, 0, 0);
        camera.updateMatrixWorld();
        const [x, y] = [(chosen.left - chosen.right) / 2, (chosen.top - chosen.bottom) / 2];
        camera.setViewOffset(width, height, -x, -y, width, height);
        for (let i = 0; i < 1000; i++) {
          // Along an edge of the box, or through it.
          const at = [i & 1, i & 2, i & 4].map((bit, axis) => (bit ? 1 : i & 8 ? -1 : (i % 37) / 18 - 1) * half[axis]);
          const seen = new Vector3(...at).project(camera);
          const spot = [((seen.x + 1) / 2) * width, ((1 - seen.y) / 2) * height];
          expect(spot[0] > 280 || spot[1] > 106).toBe(true);
          expect(spot[0] < width - 346 || spot[1] > 56).toBe(true);
          expect(spot[1]).toBeLessThan(height - 105);
        }
        // Where the corner is free already, nothing moves.
        const little = { width: 5, height: 5 };
        const free = fit(half, direction, canvas, { ...margins, corners: { left: little, right: little } });
        expect(free.far).toBeLessThanOrEqual(far);
        expect(free.margins).toMatchObject({ top: 24, left: 24 });
      }
  });

  it('has names and ends of axes beside the box, and none of an axis that has no length', () => {
    const camera = looking([1, 0, 0.5], 0.6, 0.4);
    const matrix = camera.projectionMatrix.clone().multiply(camera.matrixWorldInverse).elements;
    const screen = { matrix, width: 1200, height: 800 };
    const labels = axisLabels(screen, [1, 0, 0.5], [-3, 0, 0], [12_345.678, 0, 7], ['east', 'up', 'north']);
    expect(labels.map(({ text }) => text)).toEqual(['east', '-3', '12,350', 'north', '0', '7']);
    for (const { spots } of labels)
      for (const { x, y } of spots) expect(Math.hypot(x - 600, y - 400)).toBeGreaterThan(50);
  });
});
