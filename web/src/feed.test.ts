// What the page makes of a server that is gone for a while, refuses, or has other frames than before.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Categories } from './categories';
import { Dataset } from './dataset';
import { Edges } from './edges';
import { Feed, PAUSE_MS_MAX, PAUSE_MS_MIN } from './feed';
import { Client, FrameCache, PAUSE_MS, type Source } from './loader';
import { bad, type FrameLine, type Parsed, type Tensors } from './wire';

const HEADER = '{"format":"tidemill-frames","version":1,"title":"t","axes":["x","y","z"],"run":"abc"}';
const POINTS = '{"kind":"points","count":2,"file":"points-000000.safetensors"}';
const lost = bad('the server does not answer', 'lost');
const refused = bad('it is gone from the folder');

/** A source whose answers are given one after the other; then it answers no more. */
function sourceOf<T>(name: 'index' | 'tensors', answers: Parsed<T>[]): { source: Source; asked: unknown[][] } {
  const asked: unknown[][] = [];
  const answer = (...words: unknown[]) => {
    asked.push(words);
    const next = answers.shift();
    return next === undefined ? new Promise(() => {}) : Promise.resolve(next);
  };
  return { source: { run: undefined, [name]: answer } as unknown as Source, asked };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());
const settle = () => vi.advanceTimersByTimeAsync(0);

describe('the feed', () => {
  const lines = (end: number, ...texts: string[]) => ({ ok: true as const, value: { lines: texts, end } });

  it('says as long as nothing comes why, and when it is over; asks for the run that it has', async () => {
    const { source, asked } = sourceOf('index', [lines(9, HEADER), lost, refused, lines(20, POINTS)]);
    const said: string[] = [];
    const dataset = new Dataset();
    const told = {
      grew: () => {},
      trouble: (why: string) => void said.push(why),
      anew: expect.fail,
      notice: expect.fail,
    };
    const feed = new Feed(source, dataset, told);
    expect((await feed.start()).ok).toBe(true);
    expect(source.run).toBe('abc');
    void feed.follow();
    await settle();
    expect(said).toEqual(['Updates have stopped: the server does not answer']);
    await vi.advanceTimersByTimeAsync(PAUSE_MS_MIN);
    await vi.advanceTimersByTimeAsync(2 * PAUSE_MS_MIN);
    expect(said.slice(1)).toEqual(['Updates have stopped: it is gone from the folder', '']);
    expect(dataset.points).toBe(2);
    // Who is in trouble does not wait for news, as there may be none for long.
    const waits = [false, true, false, false, true];
    expect(asked).toEqual([0, 9, 9, 9, 20].map((from, i) => [from, waits[i]]));
  });

  it('asks less and less often while nobody answers', async () => {
    const at: number[] = [];
    const index = () => Promise.resolve(at.push(Date.now()) === 1 ? lines(9, HEADER) : lost);
    const told = { grew: () => {}, trouble: () => {}, anew: expect.fail, notice: expect.fail };
    const feed = new Feed({ run: undefined, index } as unknown as Source, new Dataset(), told);
    await feed.start();
    void feed.follow();
    await vi.advanceTimersByTimeAsync(60_000);
    const pauses = at.slice(2).map((time, i) => time - at[i + 1]);
    expect(pauses.slice(0, 6)).toEqual([1, 2, 4, 8, 8, 8].map((times) => times * PAUSE_MS_MIN));
    expect(Math.max(...pauses)).toBe(PAUSE_MS_MAX);
  });

  it('ends when the frames were written anew, and says so to whoever loads them again', async () => {
    const { source, asked } = sourceOf('index', [lines(9, HEADER), bad('written anew', 'anew')]);
    const anew = vi.fn();
    const feed = new Feed(source, new Dataset(), { grew: () => {}, trouble: expect.fail, anew, notice: expect.fail });
    await feed.start();
    await feed.follow();
    expect([anew.mock.calls.length, asked.length]).toEqual([1, 2]);
  });

  it('ends at a line that makes no sense, and says that what follows is missing', async () => {
    const { source } = sourceOf('index', [lines(9, HEADER), lines(20, '{"kind":"points"}', POINTS)]);
    const trouble = vi.fn();
    const feed = new Feed(source, new Dataset(), { grew: () => {}, trouble, anew: expect.fail, notice: expect.fail });
    await feed.start();
    await feed.follow();
    expect(trouble.mock.calls).toEqual([['The rest of the index is not shown: a line of points has no count']]);
  });
});

describe('a server that says nothing', () => {
  afterEach(() => void vi.unstubAllGlobals());
  const never = (signal: AbortSignal) =>
    new Promise((_, fail) => signal.addEventListener('abort', () => fail(signal.reason)));

  it('counts as gone within ten seconds', async () => {
    vi.stubGlobal('fetch', (_: string, { signal }: { signal: AbortSignal }) => never(signal));
    const asked = new Client('/api/', 'token').index(9, true);
    await vi.advanceTimersByTimeAsync(10_000);
    expect(await asked).toMatchObject({ ok: false, cause: 'lost' });
  });

  it('does not while an answer is on its way, however long that takes', async () => {
    const body = (signal: AbortSignal) =>
      Promise.race([never(signal), new Promise((done) => setTimeout(() => done(new ArrayBuffer(0)), 60_000))]);
    vi.stubGlobal('fetch', async (_: string, { signal }: { signal: AbortSignal }) => ({
      ok: true,
      arrayBuffer: () => body(signal),
    }));
    const asked = new Client('/api/', 'token').index(9, true);
    await vi.advanceTimersByTimeAsync(60_000);
    expect((await asked).ok).toBe(true);
  });
});

const some: Parsed<Tensors> = { ok: true, value: new Map() };

/** A cache of frames, and what it does with these answers; `came` is called when a frame has. */
const cacheOf = (answers: Parsed<Tensors>[], came: (cache: FrameCache) => void = () => {}) => {
  const { source, asked } = sourceOf('tensors', answers);
  const wrong: string[] = [];
  const cache: FrameCache = new FrameCache(
    source,
    (frame) => `frame ${frame}`,
    () => came(cache),
    (why) => void wrong.push(why),
  );
  const only = () => asked.map(([, how]) => (how as { only: string[] }).only);
  return { cache, asked, wrong, only };
};

describe('frames', () => {
  const again = (cache: FrameCache) => cache.want([3]);

  it('that nobody answered for are asked for again after a while, and play waits for them', async () => {
    const { cache, asked, wrong } = cacheOf([lost, lost, some], again);
    cache.want([3]);
    await settle();
    expect([cache.has(3), wrong.length]).toEqual([false, 1]);
    cache.want([3]);
    await settle();
    expect(asked.length).toBe(1);
    await vi.advanceTimersByTimeAsync(2 * PAUSE_MS);
    expect([cache.get(3) !== undefined, asked.length]).toEqual([true, 3]);
  });

  it('that the server refuses are told to whoever waits for them', async () => {
    const told: [boolean, boolean][] = [];
    const { cache } = cacheOf([refused], (cache) => void told.push([cache.has(3), cache.get(3) === undefined]));
    cache.want([3]);
    await settle();
    expect(told).toEqual([[true, true]]);
  });

  it('that the server refuses are passed over until it was gone and is there again', async () => {
    const { cache, asked } = cacheOf([refused, some], again);
    cache.want([3]);
    await settle();
    cache.want([3]);
    await vi.advanceTimersByTimeAsync(10 * PAUSE_MS);
    expect([cache.has(3), cache.get(3), asked.length]).toEqual([true, undefined, 1]);
    cache.retry();
    cache.want([3]);
    await settle();
    expect(cache.get(3)).toBeDefined();
  });
});

describe('columns of frames', () => {
  const tensor = (length: number) => ({ shape: [length], data: new Uint16Array(length) });
  const of = (...names: string[]): Parsed<Tensors> => ({
    ok: true,
    value: new Map(names.map((name) => [name, tensor(4)])),
  });

  it('are fetched when something shows them, and no other with them', async () => {
    const { cache, only } = cacheOf([of('position'), of('value.a'), of('heat_map')]);
    cache.want([3]);
    await settle();
    expect([cache.has(3), [...(cache.get(3)?.keys() ?? [])], cache.bytes]).toEqual([true, ['position'], 8]);
    // Until the column has come the frame is none: it would be shown in no colours.
    cache.want([3], ['value.a']);
    expect([cache.has(3), cache.get(3)]).toEqual([false, undefined]);
    await settle();
    expect([[...(cache.get(3)?.keys() ?? [])], cache.bytes]).toEqual([['position', 'value.a'], 16]);
    // What the frame does not have is asked for once.
    cache.want([3], ['value.a', 'group.none']);
    await settle();
    cache.want([3], ['group.none']);
    await settle();
    expect(cache.has(3)).toBe(true);
    expect(only()).toEqual([['position', 'present'], ['value.a'], ['group.none']]);
  });

  it('of one frame are added for what is said of its points, once, also while play goes on', async () => {
    const { cache, only } = cacheOf([of('position'), of('group.a', 'value.b')]);
    await cache.add(3, ['value.b']);
    cache.want([3]);
    await settle();
    await Promise.all([cache.add(3, ['group.a', 'value.b']), cache.add(3, ['group.a', 'value.b'])]);
    expect([...(cache.get(3)?.keys() ?? [])]).toEqual(['position', 'group.a', 'value.b']);
    expect(only()).toEqual([
      ['position', 'present'],
      ['group.a', 'value.b'],
    ]);
  });

  it('that the server refuses leave the frame as it is', async () => {
    const { cache, wrong } = cacheOf([of('position'), refused, refused]);
    cache.want([3]);
    await settle();
    await cache.add(3, ['value.a']);
    cache.want([3], ['value.a']);
    await settle();
    expect([cache.has(3), cache.get(3)?.has('position'), wrong.length]).toEqual([true, true, 2]);
  });
});

describe('categories', () => {
  const codes = new Map([['group.kind', { shape: [2], data: new Uint16Array([1, 0]) }]]);

  it('are asked for again when nobody answered, and those refused when the server is there again', async () => {
    const { source, asked } = sourceOf('tensors', [lost, refused, { ok: true, value: codes }]);
    const dataset = new Dataset();
    dataset.take({ kind: 'categories', grouping: 'kind', names: ['a', 'b'], ordered: false });
    dataset.take({ kind: 'points', count: 2, file: 'points-000000.safetensors' });
    const categories = new Categories(
      dataset,
      source,
      () => categories.ready('kind'),
      () => {},
    );
    expect(categories.ready('kind')).toBe(false);
    await vi.advanceTimersByTimeAsync(5 * PAUSE_MS);
    expect([categories.ready('kind'), asked.length]).toEqual([true, 2]);
    categories.retry();
    expect(categories.ready('kind')).toBe(false);
    await settle();
    expect(categories.ready('kind')).toBe(true);
    expect([...(dataset.groupings.get('kind')?.codes ?? [])]).toEqual([1, 0]);
  });
});

describe('lines between points', () => {
  it('are asked for again when nobody answered, and those refused when the server is there again', async () => {
    const pairs = new Map([['edges', { shape: [1, 2], data: new Uint32Array([0, 1]) }]]);
    const { source, asked } = sourceOf('tensors', [lost, refused, { ok: true, value: pairs }]);
    const frame = { edges: 'edges-000000.safetensors' } as FrameLine;
    const edges = new Edges(
      () => edges.follow(frame, source),
      () => {},
    );
    edges.follow(frame, source);
    await vi.advanceTimersByTimeAsync(5 * PAUSE_MS);
    expect([asked.length, edges.pairs.length]).toEqual([2, 0]);
    edges.retry();
    edges.follow(frame, source);
    await settle();
    expect([...edges.pairs]).toEqual([0, 1]);
  });
});
