// What people change about a plot: a state, and the log of changes that leads from one state to another. Pure.
// The server keeps logs (docs/library.md has their shape); the page only ever shows states.

import { bad, isRecord, type Parsed } from './wire';

export type Change =
  | { set: 'colour' | 'name'; grouping: string; category: string; value: string | null }
  | { set: 'hidden'; grouping: string; category: string; value: boolean | null }
  | { set: 'label' | 'glyph'; point: string; value: string | null }
  | { set: 'group'; name: string; value: readonly number[] | null }
  | { set: 'view'; value: string | null };

/** All changes against the data. Keys of categories are made by `categoryKey`; points are called by their ids. */
export type Edits = {
  colours: Map<string, string>;
  names: Map<string, string>;
  hidden: Map<string, true>;
  labels: Map<string, string>;
  glyphs: Map<string, string>;
  groups: Map<string, readonly number[]>;
  /** What stands behind `#` in a link to the view. */
  view: string | undefined;
};

export function noEdits(): Edits {
  return {
    colours: new Map(),
    names: new Map(),
    hidden: new Map(),
    labels: new Map(),
    glyphs: new Map(),
    groups: new Map(),
    view: undefined,
  };
}

export function categoryKey(grouping: string, category: string): string {
  return JSON.stringify([grouping, category]);
}

/** The state after these changes, one after the other. */
export function fold(changes: readonly Change[]): Edits {
  const edits = noEdits();
  for (const change of changes) {
    switch (change.set) {
      case 'colour':
        put(edits.colours, categoryKey(change.grouping, change.category), change.value);
        break;
      case 'name':
        put(edits.names, categoryKey(change.grouping, change.category), change.value);
        break;
      case 'hidden':
        put(edits.hidden, categoryKey(change.grouping, change.category), change.value === true ? true : null);
        break;
      case 'label':
        put(edits.labels, change.point, change.value);
        break;
      case 'glyph':
        put(edits.glyphs, change.point, change.value);
        break;
      case 'group':
        put(edits.groups, change.name, change.value);
        break;
      case 'view':
        edits.view = change.value ?? undefined;
        break;
    }
  }
  return edits;
}

function put<T>(map: Map<string, T>, key: string, value: T | null): void {
  if (value === null) map.delete(key);
  else map.set(key, value);
}

/** The fewest changes that lead from one state to another. */
export function diff(before: Edits, after: Edits): Change[] {
  const changes: Change[] = [];
  const categories = <T>(
    a: Map<string, T>,
    b: Map<string, T>,
    add: (g: string, c: string, value: T | null) => Change,
  ) =>
    each(a, b, (key, value) => {
      const [grouping, category] = JSON.parse(key) as [string, string];
      changes.push(add(grouping, category, value));
    });
  categories(before.colours, after.colours, (grouping, category, value) => ({
    set: 'colour',
    grouping,
    category,
    value,
  }));
  categories(before.names, after.names, (grouping, category, value) => ({ set: 'name', grouping, category, value }));
  categories(before.hidden, after.hidden, (grouping, category, value) => ({
    set: 'hidden',
    grouping,
    category,
    value,
  }));
  each(before.labels, after.labels, (point, value) => void changes.push({ set: 'label', point, value }));
  each(before.glyphs, after.glyphs, (point, value) => void changes.push({ set: 'glyph', point, value }));
  each(before.groups, after.groups, (name, value) => void changes.push({ set: 'group', name, value }));
  if (before.view !== after.view) changes.push({ set: 'view', value: after.view ?? null });
  return changes;
}

/** What it is now: what is changed later does not change the copy. */
export function copyOf(edits: Edits): Edits {
  return fold(diff(noEdits(), edits));
}

/** What somebody has changed and would miss: the view is no part of it, as whoever looks around changes that. */
export function diffWithoutView(before: Edits, now: Edits): Change[] {
  return diff(before, { ...now, view: before.view });
}

function each<T>(before: Map<string, T>, after: Map<string, T>, changed: (key: string, value: T | null) => void): void {
  for (const key of before.keys()) if (!after.has(key)) changed(key, null);
  for (const [key, value] of after)
    if (!before.has(key) || JSON.stringify(before.get(key)) !== JSON.stringify(value)) changed(key, value);
}

/** Checks changes as the server sends them. A kind that a later release adds is passed over. */
export function parseChanges(told: unknown): Parsed<Change[]> {
  if (!Array.isArray(told)) return bad('the changes of a version are no list');
  const changes: Change[] = [];
  for (const change of told) {
    if (!isRecord(change)) return bad('a change of a version is no object');
    const { set, grouping, category, point, name, value } = change;
    const texts = (...texts: unknown[]) => texts.every((text) => typeof text === 'string');
    const text = value === null || typeof value === 'string';
    let fits = true;
    if (set === 'colour')
      fits =
        texts(grouping, category) &&
        text &&
        (value === null || /^#[0-9a-f]{6}$/.test(typeof value === 'string' ? value : ''));
    else if (set === 'name') fits = texts(grouping, category) && text;
    else if (set === 'hidden') fits = texts(grouping, category) && (value === null || typeof value === 'boolean');
    else if (set === 'label' || set === 'glyph') fits = texts(point) && text;
    else if (set === 'group') fits = texts(name) && (value === null || isRows(value));
    else if (set === 'view') fits = text;
    else continue;
    if (!fits) return bad(`a change of a version makes no sense: ${JSON.stringify(change).slice(0, 120)}`);
    changes.push(change as Change);
  }
  return { ok: true, value: changes };
}

function isRows(value: unknown): boolean {
  return Array.isArray(value) && value.every((row) => Number.isInteger(row) && (row as number) >= 0);
}
