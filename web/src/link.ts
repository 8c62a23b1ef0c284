// A view as the part of a URL behind '#', so that it can be kept and shared.

import { SPEEDS } from './playback';

export type View = {
  frame: number;
  /** A grouping or a value; empty: points are all alike. */
  colour: string;
  scheme: string;
  /** Of the grouping that points are coloured by, either the categories that are hidden, or those that are shown. */
  hidden?: readonly string[];
  shown?: readonly string[];
  chosen: readonly string[];
  camera: readonly number[];
  /** From how far all would be seen on the screen that the camera is of, as screens differ; links of before have none. */
  fit: number;
  size: number;
  opacity: number;
  /** Whether lines between points are drawn. */
  lines: boolean;
  /** Frames per second. */
  speed: number;
  theme: 'light' | 'dark';
};

export function encodeView(view: View): string {
  const parts = new URLSearchParams();
  parts.set('frame', String(Math.round(view.frame * 100) / 100));
  parts.set('colour', view.colour);
  if (view.scheme !== '') parts.set('scheme', view.scheme);
  for (const name of view.hidden ?? []) parts.append('hide', name);
  for (const name of view.shown ?? []) parts.append('show', name);
  for (const id of view.chosen) parts.append('point', id);
  parts.set('camera', view.camera.map((x) => x.toFixed(3)).join(','));
  parts.set('fit', String(view.fit));
  parts.set('size', String(view.size));
  parts.set('opacity', String(view.opacity));
  parts.set('lines', view.lines ? '1' : '0');
  parts.set('speed', String(view.speed));
  parts.set('theme', view.theme);
  return parts.toString();
}

/** What a link says; what it says wrong is left out. One that names a colour says of all groups whether they are shown. */
export function decodeView(hash: string): Partial<View> {
  const parts = new URLSearchParams(hash.replace(/^#/, ''));
  const view: { -readonly [K in keyof View]?: View[K] } = {};
  const number = (name: string, low: number, high: number) => {
    const text = parts.get(name);
    const value = text === null || text === '' ? Number.NaN : Number(text);
    return value >= low && value <= high ? value : undefined;
  };
  const frame = number('frame', 0, 1e9);
  if (frame !== undefined) view.frame = frame;
  const size = number('size', 0.1, 100);
  if (size !== undefined) view.size = size;
  const opacity = number('opacity', 0.01, 1);
  if (opacity !== undefined) view.opacity = opacity;
  const speed = number('speed', 0, 100);
  if (SPEEDS.some((known) => known === speed)) view.speed = speed as number;
  const fit = number('fit', 0.1, 1000);
  if (fit !== undefined) view.fit = fit;
  const lines = number('lines', 0, 1);
  if (lines !== undefined) view.lines = lines === 1;
  const camera = (parts.get('camera') ?? '').split(',').map(Number);
  if (camera.length === 6 && camera.every(Number.isFinite)) view.camera = camera;
  const [colour, scheme, theme] = [parts.get('colour'), parts.get('scheme'), parts.get('theme')];
  if (colour !== null) view.colour = colour;
  if (scheme !== null) view.scheme = scheme;
  if (theme === 'light' || theme === 'dark') view.theme = theme;
  if (parts.has('show')) view.shown = parts.getAll('show');
  else if (colour !== null || parts.has('hide')) view.hidden = parts.getAll('hide');
  // A link that says all of a view names no point where none is chosen.
  if (parts.has('point') || view.camera !== undefined) view.chosen = parts.getAll('point');
  return view;
}
