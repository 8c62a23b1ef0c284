import { describe, expect, it } from 'vitest';
import { MISSING, parseLine, parseSelections, parseTensors } from './wire';

/** A file as the Python side writes it. */
function file(header: object, ...parts: ArrayBufferView[]): ArrayBuffer {
  let text = JSON.stringify(header);
  text += ' '.repeat((8 - (text.length % 8)) % 8);
  const bytes = new Uint8Array(8 + text.length + parts.reduce((sum, part) => sum + part.byteLength, 0));
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(new TextEncoder().encode(text), 8);
  let at = 8 + text.length;
  for (const part of parts) {
    bytes.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), at);
    at += part.byteLength;
  }
  return bytes.buffer;
}

const frame = {
  kind: 'frame',
  file: 'frame-000000.safetensors',
  time: 'x',
  count: 1,
  points: 2,
  low: [0, 0, 0],
  high: [1, 1, 1],
};

describe('lines of the index', () => {
  it('takes what the Python side writes', () => {
    const header = parseLine('{"format":"tidemill-frames","version":1,"title":"t","axes":["x","y","z"]}', true);
    expect(header).toMatchObject({ ok: true, value: { kind: 'header', title: 't' } });
    const told = { ...frame, values: { price: [1, 2] }, usual: { price: [1.1, 1.5, 1.9] }, metrics: { stress: 0.5 } };
    const line = parseLine(JSON.stringify(told), false);
    expect(line.ok && line.value.kind === 'frame' && line.value.values.get('price')).toEqual([1, 2]);
    expect(line.ok && line.value.kind === 'frame' && line.value.usual.get('price')).toEqual([1.1, 1.5, 1.9]);
    expect(parseLine('{"kind":"of a later release"}', false)).toMatchObject({ ok: true, value: { kind: 'other' } });
  });

  it.each([
    ['{', 'no JSON'],
    ['[]', 'no object'],
    [JSON.stringify({ ...frame, file: '../secret' }), 'names a file'],
    [JSON.stringify({ ...frame, count: 3 }), 'counts'],
    [JSON.stringify({ ...frame, low: [0, 0] }), 'box'],
    [JSON.stringify({ ...frame, values: { price: ['a', 2] } }), 'range'],
    ['{"kind":"points"}', 'count'],
  ])('refuses %s', (text, reason) => {
    const line = parseLine(text, false);
    expect(line).toMatchObject({ ok: false, reason: expect.stringContaining(reason) });
  });

  it('refuses frames of another version', () => {
    expect(parseLine('{"format":"tidemill-frames","version":2}', true).ok).toBe(false);
  });
});

describe('files of tensors', () => {
  it('widens codes of categories, of which none has another number then', () => {
    const header = { 'group.kind': { dtype: 'U8', shape: [3], data_offsets: [0, 3] } };
    const parsed = parseTensors(file(header, new Uint8Array([0, 255, 254])));
    expect(parsed.ok && parsed.value.get('group.kind')?.data).toEqual(new Uint16Array([0, MISSING, 254]));
  });

  it('gives views of what lies there', () => {
    const data = new Uint16Array([1, 2, 3, 65535, 0, 7]);
    const parsed = parseTensors(file({ position: { dtype: 'U16', shape: [2, 3], data_offsets: [0, 12] } }, data));
    expect(parsed.ok && [...(parsed.value.get('position')?.data ?? [])]).toEqual([...data]);
  });

  it('takes tensors that are not aligned', () => {
    const parsed = parseTensors(
      file(
        { a: { dtype: 'U8', shape: [1], data_offsets: [0, 1] }, b: { dtype: 'U16', shape: [1], data_offsets: [1, 3] } },
        new Uint8Array([9, 1, 2]),
      ),
    );
    expect(parsed.ok && parsed.value.get('b')?.data[0]).toBe(513);
  });

  it('never reads beyond the end, wherever a file is cut off or its header lies', () => {
    const whole = file({ x: { dtype: 'F32', shape: [2], data_offsets: [0, 8] } }, new Float32Array([1, 2]));
    for (let length = 0; length < whole.byteLength; length++)
      expect(parseTensors(whole.slice(0, length)).ok).toBe(false);
    for (const told of [
      { dtype: 'F64', shape: [1], data_offsets: [0, 8] },
      { dtype: 'F32', shape: [3], data_offsets: [0, 12] },
      { dtype: 'F32', shape: [2], data_offsets: [-8, 0] },
      { dtype: 'F32', shape: [1e9], data_offsets: [0, 8] },
      { dtype: 'F32' },
      7,
    ])
      expect(parseTensors(file({ x: told }, new Float32Array([1, 2]))).ok).toBe(false);
  });
});

it('takes saved groups only as a list of names and rows', () => {
  expect(parseSelections('[{"name":"a","rows":[1,2]}]')).toEqual({ ok: true, value: [{ name: 'a', rows: [1, 2] }] });
  for (const text of ['', '{}', '[{"name":"a"}]', '[{"name":"a","rows":[1.5]}]', '[{"rows":[]}]'])
    expect(parseSelections(text).ok).toBe(false);
});
