// What comes from the server, checked once, here. docs/viewer.md has the format in words.

/** `lost`: nobody answered, so asking again later may help; `anew`: the frames were written anew, and what the page has is no longer true. */
export type Failed = { ok: false; reason: string; cause?: 'lost' | 'anew' };
export type Parsed<T> = { ok: true; value: T } | Failed;

export type Vector = readonly [number, number, number];

/** The first line of an index. */
export type Header = {
  kind: 'header';
  title: string;
  axes: readonly [string, string, string];
  glyphs: ReadonlyMap<string, string>;
  /** Another one whenever frames are written anew; folders of older releases have none. */
  run: string | undefined;
};
export type PointsLine = { kind: 'points'; count: number; file: string | undefined };
/** `ordered`: they go from one end to the other, as bins do. */
export type CategoriesLine = { kind: 'categories'; grouping: string; names: readonly string[]; ordered: boolean };
export type FrameLine = {
  kind: 'frame';
  file: string;
  time: string;
  /** Points in the frame. */
  count: number;
  /** Points that were known when the frame was written: so many bits has `present`. */
  points: number;
  low: Vector;
  high: Vector;
  values: ReadonlyMap<string, readonly [number, number]>;
  /** For each value three numbers: below the first are 5 % of the points', below the second half, below the third 95 %. */
  usual: ReadonlyMap<string, readonly number[]>;
  metrics: ReadonlyMap<string, number>;
  /** The file with the lines between points, if there are any. */
  edges: string | undefined;
  /** Whether its file has a heat map. */
  heatMap: boolean;
  /** What the edges of the heat map stand for, if that is known. */
  heatMapRange: HeatMapRange | undefined;
  /** An even sample of the frame, for while things move, if it has very many points. */
  sample: Sample | undefined;
};
/** From the low edge to the high one. */
export type Ends = readonly [number, number];
export type HeatMapRange = { up: Ends; right: Ends };
/** The points in the first `strata` of `of` heaps that rows are dealt out to. */
export type Sample = { file: string; count: number; strata: number; of: number };
/** A line of a kind that a later release has added. */
export type OtherLine = { kind: 'other' };
export type Line = Header | PointsLine | CategoriesLine | FrameLine | OtherLine;

export type TensorData = Uint8Array | Uint16Array | Uint32Array | Float32Array;
export type Tensor = { shape: readonly number[]; data: TensorData };
export type Tensors = ReadonlyMap<string, Tensor>;

/** Steps of a quantized number, and the number that stands for none. */
export const STEPS = 65_534;
export const MISSING = 65_535;

const FILE = /^(frame|points|edges|sample)-\d{6,}\.safetensors$/;

/** Parses one line of `index.jsonl`; `first` says that it is the one that tells the format. */
export function parseLine(text: string, first: boolean): Parsed<Line> {
  let told: unknown;
  try {
    told = JSON.parse(text);
  } catch {
    return bad(`a line of the index is no JSON: ${text.slice(0, 80)}`);
  }
  if (!isRecord(told)) return bad(`a line of the index is no object: ${text.slice(0, 80)}`);
  if (first) return parseHeader(told);
  const { kind, file } = told;
  if (file !== undefined && !(typeof file === 'string' && FILE.test(file)))
    return bad(`the index names a file ${String(file)}`);
  if (kind === 'points') {
    if (!isCount(told.count)) return bad('a line of points has no count');
    return { ok: true, value: { kind, count: told.count, file } };
  }
  if (kind === 'categories') {
    if (typeof told.grouping !== 'string' || !isTexts(told.names)) return bad('a line of categories has no names');
    const ordered = told.ordered === true;
    return { ok: true, value: { kind, grouping: told.grouping, names: told.names, ordered } };
  }
  if (kind === 'frame') return parseFrame(told, file);
  return { ok: true, value: { kind: 'other' } };
}

function parseHeader(told: Record<string, unknown>): Parsed<Header> {
  if (told.format !== 'tidemill-frames' || told.version !== 1)
    return bad('these frames were written by another release of Tidemill than this page is of');
  const axes = told.axes;
  if (!isTexts(axes) || axes.length !== 3) return bad('the index does not name three axes');
  const glyphs = isRecord(told.glyphs) ? Object.entries(told.glyphs) : [];
  return {
    ok: true,
    value: {
      kind: 'header',
      title: typeof told.title === 'string' ? told.title : '',
      axes: [axes[0], axes[1], axes[2]],
      glyphs: new Map(glyphs.map(([id, glyph]) => [id, String(glyph)])),
      run: typeof told.run === 'string' ? told.run : undefined,
    },
  };
}

function parseFrame(told: Record<string, unknown>, file: string | undefined): Parsed<FrameLine> {
  const { time, count, points, low, high } = told;
  if (file === undefined || typeof time !== 'string' || !isCount(count) || !isCount(points) || count > points)
    return bad('a line of a frame lacks file, time or counts');
  if (!isVector(low) || !isVector(high)) return bad(`the box of ${file} is no box`);
  const values = new Map<string, readonly [number, number]>();
  for (const [name, range] of Object.entries(isRecord(told.values) ? told.values : {})) {
    if (!isNumbers(range) || range.length !== 2) return bad(`${file}: the range of ${name} is no range`);
    values.set(name, [range[0], range[1]]);
  }
  const usual = new Map<string, readonly number[]>();
  for (const [name, three] of Object.entries(isRecord(told.usual) ? told.usual : {}))
    if (isVector(three)) usual.set(name, three);
  const metrics = new Map<string, number>();
  for (const [name, figure] of Object.entries(isRecord(told.metrics) ? told.metrics : {}))
    if (typeof figure === 'number') metrics.set(name, figure);
  const { edges } = told;
  if (edges !== undefined && !(typeof edges === 'string' && FILE.test(edges)))
    return bad(`the index names a file ${String(edges)}`);
  return {
    ok: true,
    value: {
      kind: 'frame',
      file,
      time,
      count,
      points,
      low,
      high,
      values,
      usual,
      metrics,
      edges,
      heatMap: told.heat_map === true,
      heatMapRange: parseHeatMapRange(told.heat_map_range),
      sample: parseSample(told.sample),
    },
  };
}

/** What makes no sense is not known: the map itself is there. */
function parseHeatMapRange(told: unknown): HeatMapRange | undefined {
  if (!Array.isArray(told) || told.length !== 2) return undefined;
  const [up, right] = told;
  const fits = (ends: unknown): ends is Ends => isNumbers(ends) && ends.length === 2 && ends[0] < ends[1];
  return fits(up) && fits(right) ? { up, right } : undefined;
}

/** What is no sample that this page understands is none: the frame itself is there. */
function parseSample(told: unknown): Sample | undefined {
  if (!isRecord(told) || typeof told.file !== 'string' || !FILE.test(told.file)) return undefined;
  const { file, count, strata, of } = told;
  return isCount(count) && isCount(strata) && isCount(of) && strata <= of ? { file, count, strata, of } : undefined;
}

const KINDS = { U8: Uint8Array, U16: Uint16Array, U32: Uint32Array, F32: Float32Array } as const;

/** The number of no category where codes of categories have 8 bits. */
const MISSING_8 = 255;

/** Parses a file in the safetensors format. The tensors are views of `buffer`: nothing is copied but codes of 8 bits, which get 16. */
export function parseTensors(buffer: ArrayBuffer): Parsed<Tensors> {
  if (buffer.byteLength < 8) return bad('it is cut off');
  const view = new DataView(buffer);
  const length = view.getUint32(0, true);
  if (view.getUint32(4, true) !== 0 || length > buffer.byteLength - 8)
    return bad('it is cut off, or no file of tensors');
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array(buffer, 8, length)));
  } catch {
    return bad('its header is no JSON');
  }
  if (!isRecord(header)) return bad('its header is no object');
  const tensors = new Map<string, Tensor>();
  const begin = 8 + length;
  for (const [name, told] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    if (!isRecord(told) || !isNumbers(told.shape) || !isNumbers(told.data_offsets))
      return bad(`tensor ${name} lacks a shape`);
    const kind = KINDS[told.dtype as keyof typeof KINDS];
    if (kind === undefined) return bad(`tensor ${name} has the type ${String(told.dtype)}, which is none of ours`);
    const [from, to] = told.data_offsets;
    const numbers = told.shape.reduce((product, side) => product * side, 1);
    if (
      !isCount(from) ||
      !isCount(to) ||
      to - from !== numbers * kind.BYTES_PER_ELEMENT ||
      begin + to > buffer.byteLength
    )
      return bad(`tensor ${name} reaches beyond its end`);
    const place = begin + from;
    // Other writers than ours need not align what they write.
    const aligned = place % kind.BYTES_PER_ELEMENT === 0;
    const data = aligned ? new kind(buffer, place, numbers) : new kind(buffer.slice(place, begin + to), 0, numbers);
    const narrow = data instanceof Uint8Array && name.startsWith('group.');
    tensors.set(name, { shape: told.shape, data: narrow ? wide(data) : data });
  }
  return { ok: true, value: tensors };
}

/** Codes of categories in 16 bits. */
function wide(codes: Uint8Array): Uint16Array {
  return Uint16Array.from(codes, (code) => (code === MISSING_8 ? MISSING : code));
}

/** A tensor of 16-bit numbers with a shape that fits, or what is wrong with it. */
export function tensor16(tensors: Tensors, name: string, count: number): Parsed<Uint16Array> {
  const found = tensors.get(name);
  if (found === undefined) return bad(`it has no ${name}`);
  if (!(found.data instanceof Uint16Array) || found.data.length !== count)
    return bad(`${name} has ${found.data.length} numbers where ${count} of 16 bits are needed`);
  return { ok: true, value: found.data };
}

/** A list in JSON; `what` begins the sentence that says what is wrong with it. */
function parseList(text: string, what: string): Parsed<readonly unknown[]> {
  let told: unknown;
  try {
    told = JSON.parse(text);
  } catch {
    return bad(`${what} no JSON`);
  }
  return Array.isArray(told) ? { ok: true, value: told } : bad(`${what} no list`);
}

/** Groups that readers of the page have made. */
export type Selection = { name: string; rows: readonly number[] };

export function parseSelections(text: string): Parsed<Selection[]> {
  const told = parseList(text, 'the saved groups are');
  if (!told.ok) return told;
  const selections: Selection[] = [];
  for (const group of told.value) {
    if (!isRecord(group) || typeof group.name !== 'string' || !isNumbers(group.rows) || !group.rows.every(isCount))
      return bad('a saved group lacks a name or rows');
    selections.push({ name: group.name, rows: group.rows });
  }
  return { ok: true, value: selections };
}

/** A point: what it is called, and its categories in its first frame, by grouping. */
export type Point = { row: number; id: string; label: string; codes: ReadonlyMap<string, number> };
/** Which points are asked for: by row, by id, or those that a text is found in, best first. */
export type Which = { rows: readonly number[] } | { ids: readonly string[] } | { text: string; most: number };

export function parsePoints(text: string): Parsed<Point[]> {
  const told = parseList(text, 'what the server says of points is');
  if (!told.ok) return told;
  const points: Point[] = [];
  for (const point of told.value) {
    const codes = isRecord(point) && isRecord(point.codes) ? Object.entries(point.codes) : undefined;
    if (
      !isRecord(point) ||
      !isCount(point.row) ||
      typeof point.id !== 'string' ||
      typeof point.label !== 'string' ||
      !codes?.every(([, code]) => isCount(code))
    )
      return bad('the server says of a point what makes no sense');
    points.push({ row: point.row, id: point.id, label: point.label, codes: new Map(codes as [string, number][]) });
  }
  return { ok: true, value: points };
}

export function bad(reason: string, cause?: Failed['cause']): Failed {
  return cause === undefined ? { ok: false, reason } : { ok: false, reason, cause };
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0;
}
function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'string');
}
function isNumbers(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'number');
}
function isVector(value: unknown): value is Vector {
  return isNumbers(value) && value.length === 3;
}
