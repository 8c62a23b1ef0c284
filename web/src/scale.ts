// From which number to which the colours of a value go. Pure.
//
// A few points far from all others would give these the same colour, so that the ends of the colours are those of most values, and what is
// beyond has the colour of the end. The scale is the same in all frames.

import type { FrameLine } from './wire';

/** `least` and `most` are the ends of all values, `low` and `high` those of the colours. */
export type Scale = { low: number; high: number; least: number; most: number; log: boolean };

/** So many times as wide as most values may all of them be, to have colours to their ends. */
const WIDER_MAX = 2;
/** Colours go by logarithms where half of the values would have this part of them. */
const LOW_PART = 0.1;
/** The middle of the colours is 0 where each side of it has this part of the other, or more. */
const SIDE_PART = 0.1;

export function scaleOf(frames: readonly FrameLine[], name: string): Scale {
  let [least, most] = [Infinity, -Infinity];
  for (const { values } of frames) {
    const range = values.get(name);
    if (range === undefined) continue;
    least = Math.min(least, range[0]);
    most = Math.max(most, range[1]);
  }
  if (least > most) return { low: 0, high: 0, least: 0, most: 0, log: false };
  const all = { low: least, high: most, least, most };
  const usual = frames.flatMap((frame) => [frame.usual.get(name) ?? []]).filter((three) => three.length === 3);
  if (usual.length === 0) return centred({ ...all, log: false });
  // In one frame of ten the values may go farther, too.
  const low = part(usual, 0, (last) => Math.floor(last * 0.1));
  const middle = part(usual, 1, (last) => Math.floor(last * 0.5));
  const high = part(usual, 2, (last) => Math.ceil(last * 0.9));
  const log = low > 0 && least >= 0 && middle - low < LOW_PART * (high - low);
  return centred(most - least <= WIDER_MAX * (high - low) && !log ? { ...all, log } : { ...all, low, high, log });
}

/** One of the three numbers of each frame: that at a place in their order. */
function part(usual: readonly (readonly number[])[], which: number, place: (last: number) => number): number {
  const sorted = usual.map((three) => three[which]).sort((a, b) => a - b);
  return sorted[place(sorted.length - 1)];
}

/** Numbers on both sides of 0 have scales that go as far to each. */
function centred(scale: Scale): Scale {
  if (!isSigned(scale)) return scale;
  const reach = Math.max(-scale.low, scale.high);
  return { ...scale, low: -reach, high: reach };
}

export function isSigned({ low, high }: Scale): boolean {
  const [below, above] = [-low, high];
  return below > 0 && above > 0 && Math.min(below, above) >= SIDE_PART * Math.max(below, above);
}

/** Which part of the colours, from 0 to 1, is below a number between the ends. */
export function partBelow({ low, high, log }: Scale, value: number): number {
  if (log) return Math.log(value / low) / Math.log(high / low);
  return (value - low) / (high - low || 1);
}

/** The number in the middle of the colours. */
export function middleOf({ low, high, log }: Scale): number {
  return log ? Math.sqrt(low) * Math.sqrt(high) : low / 2 + high / 2;
}
