// Changes that people make: a log leads to a state, and the difference of two states is a log that leads from one to the other.

import { describe, expect, it } from 'vitest';
import { type Change, copyOf, diff, diffWithoutView, fold, noEdits, parseChanges } from './edits';

const LOG: Change[] = [
  { set: 'colour', grouping: 'a,b', category: '"]', value: '#ff0000' },
  { set: 'name', grouping: 'a', category: '', value: '<b>' },
  { set: 'hidden', grouping: 'a', category: 'x', value: true },
  { set: 'label', point: 'p', value: 'a point' },
  { set: 'glyph', point: 'p', value: 'star' },
  { set: 'group', name: 'mine', value: [1, 2] },
  { set: 'view', value: 'frame=1' },
];

/** As a list that does not depend on the order in which things were put in. */
const plain = (changes: Change[]) => changes.map((change) => JSON.stringify(change)).sort();

describe('edits', () => {
  it('are what is left of a log', () => {
    expect(plain(diff(noEdits(), fold(LOG)))).toEqual(plain(LOG));
    const undone = LOG.map((change) => ({ ...change, value: null }));
    expect(fold([...LOG, ...undone])).toEqual(noEdits());
    expect(fold([...undone, ...LOG])).toEqual(fold(LOG));
  });

  it('lead from any state to any other', () => {
    // Every pair of subsets of the log, with other values in the second.
    const other = LOG.map((change) =>
      change.set === 'group'
        ? { ...change, value: [3] }
        : change.set === 'hidden'
          ? change
          : { ...change, value: '#00ff00' },
    ) as Change[];
    const subset = (log: Change[], bits: number) => log.filter((_, i) => (bits & (1 << i)) !== 0);
    for (let a = 0; a < 128; a += 5)
      for (let b = 0; b < 128; b += 3) {
        const [before, after] = [subset(LOG, a), fold(subset(other, b))];
        const changes = diff(fold(before), after);
        expect(fold([...before, ...changes])).toEqual(after);
        expect(diff(after, after)).toEqual([]);
      }
  });

  it('are there to lose once anything but the view is another than when a version was opened', () => {
    const now = fold(LOG);
    const opened = copyOf(now);
    now.view = 'frame=2';
    expect(diffWithoutView(opened, now)).toEqual([]);
    for (const change of LOG) {
      const lost = fold([...LOG, { ...change, value: null }]);
      expect(diffWithoutView(opened, lost)).toHaveLength(change.set === 'view' ? 0 : 1);
    }
    // The page changes its maps in place: what it is compared with must not change with them, and what is undone is no change.
    now.labels.set('q', 'another');
    expect(diffWithoutView(opened, now)).toEqual([{ set: 'label', point: 'q', value: 'another' }]);
    now.labels.delete('q');
    expect(diffWithoutView(opened, now)).toEqual([]);
  });

  it('are checked as they come in', () => {
    expect(parseChanges(LOG)).toEqual({ ok: true, value: LOG });
    // A kind of a later release is passed over; what makes no sense is not.
    expect(parseChanges([{ set: 'sound', value: 1 }])).toEqual({ ok: true, value: [] });
    for (const wrong of [
      7,
      [7],
      [{ set: 'colour', grouping: 'a', category: 'b', value: 'red' }],
      [{ set: 'hidden', grouping: 'a', category: 'b', value: 'yes' }],
      [{ set: 'label', value: 'a' }],
      [{ set: 'group', name: 'a', value: [-1] }],
    ])
      expect(parseChanges(wrong).ok, JSON.stringify(wrong)).toBe(false);
  });
});
