// What the server of a library sends, checked once, here. docs/library.md lists the routes.

import { bad, isRecord, type Parsed } from '../wire';

export type Plot = {
  id: string;
  title: string;
  description: string;
  collection: string;
  tags: readonly string[];
  source: string;
  kind: string;
  frames: number;
  points: number;
  bytes: number;
  created: string;
  changed: string;
  versions: number;
  comments: number;
};
export type Version = {
  number: number;
  parent: number | null;
  name: string;
  note: string;
  author: string;
  created: string;
};
export type Comment = { number: number; author: string; text: string; created: string };
export type Share = { number: number; version: number | null; name: string; created: string; token: string };

/** All about one plot; who only looks is told neither comments nor shares. */
export type About = {
  plot: Plot;
  writable: boolean;
  versions: readonly Version[];
  comments: readonly Comment[];
  shares: readonly Share[];
};
export type Summary = {
  tags: ReadonlyMap<string, number>;
  collections: ReadonlyMap<string, number>;
  formats: readonly string[];
  bytesMax: number;
};

/** For each field the type that it must have. `null?` stands for a number or null. */
type Shape = Record<string, 'string' | 'number' | 'null?' | 'strings'>;
const PLOT: Shape = {
  id: 'string',
  title: 'string',
  description: 'string',
  collection: 'string',
  tags: 'strings',
  source: 'string',
  kind: 'string',
  frames: 'number',
  points: 'number',
  bytes: 'number',
  created: 'string',
  changed: 'string',
  versions: 'number',
  comments: 'number',
};
const VERSION: Shape = {
  number: 'number',
  parent: 'null?',
  name: 'string',
  note: 'string',
  author: 'string',
  created: 'string',
};
const COMMENT: Shape = { number: 'number', author: 'string', text: 'string', created: 'string' };
const SHARE: Shape = { number: 'number', version: 'null?', name: 'string', created: 'string', token: 'string' };

function checked<T>(told: unknown, shape: Shape, what: string): Parsed<T> {
  if (!isRecord(told)) return bad(`the server sent no ${what}`);
  for (const [name, kind] of Object.entries(shape)) {
    const value = told[name];
    const fits =
      kind === 'strings'
        ? Array.isArray(value) && value.every((item) => typeof item === 'string')
        : kind === 'null?'
          ? value === null || typeof value === 'number'
          : typeof value === kind;
    if (!fits) return bad(`the server sent a ${what} without ${name}`);
  }
  return { ok: true, value: told as T };
}

function list<T>(told: unknown, shape: Shape, what: string): Parsed<T[]> {
  if (!Array.isArray(told)) return bad(`the server sent no list of ${what}s`);
  const items: T[] = [];
  for (const item of told) {
    const one = checked<T>(item, shape, what);
    if (!one.ok) return one;
    items.push(one.value);
  }
  return { ok: true, value: items };
}

export const parsePlot = (told: unknown): Parsed<Plot> => checked(told, PLOT, 'plot');
export const parseVersion = (told: unknown): Parsed<Version> => checked(told, VERSION, 'version');
export const parseShare = (told: unknown): Parsed<Share> => checked(told, SHARE, 'share');

export function parsePlots(told: unknown): Parsed<{ plots: Plot[]; total: number }> {
  if (!isRecord(told) || typeof told.total !== 'number') return bad('the server sent no list of plots');
  const plots = list<Plot>(told.plots, PLOT, 'plot');
  return plots.ok ? { ok: true, value: { plots: plots.value, total: told.total } } : plots;
}

export function parseAbout(told: unknown): Parsed<About> {
  if (!isRecord(told) || typeof told.writable !== 'boolean') return bad('the server sent nothing about the plot');
  const plot = parsePlot(told.plot);
  if (!plot.ok) return plot;
  const versions = list<Version>(told.versions, VERSION, 'version');
  if (!versions.ok) return versions;
  const comments = list<Comment>(told.comments, COMMENT, 'comment');
  if (!comments.ok) return comments;
  const shares = list<Share>(told.shares, SHARE, 'share');
  if (!shares.ok) return shares;
  return {
    ok: true,
    value: {
      plot: plot.value,
      writable: told.writable,
      versions: versions.value,
      comments: comments.value,
      shares: shares.value,
    },
  };
}

export function parseSummary(told: unknown): Parsed<Summary> {
  if (!isRecord(told) || !isRecord(told.limits) || !isRecord(told.tags) || !isRecord(told.collections))
    return bad('the server sent nothing about the library');
  const counts = (of: Record<string, unknown>) => new Map(Object.entries(of).map(([name, n]) => [name, Number(n)]));
  const formats = Array.isArray(told.formats) ? told.formats.map(String) : [];
  return {
    ok: true,
    value: {
      tags: counts(told.tags),
      collections: counts(told.collections),
      formats,
      bytesMax: Number(told.limits.bytes) || 0,
    },
  };
}
