// A view as the part of a URL behind '#', so that it can be kept and shared.

export type View = {
  frame: number;
  colour: string;
  scheme: string;
  hidden: readonly string[];
  chosen: readonly string[];
  camera: readonly number[];
  size: number;
  opacity: number;
};

/** Most that a link says of each list; browsers and people stop at some length. */
const LIST_MAX = 100;

export function encodeView(view: View): string {
  const parts = new URLSearchParams();
  parts.set('frame', String(Math.round(view.frame * 100) / 100));
  if (view.colour !== '') parts.set('colour', view.colour);
  if (view.scheme !== '') parts.set('scheme', view.scheme);
  for (const name of view.hidden.slice(0, LIST_MAX)) parts.append('hide', name);
  for (const id of view.chosen.slice(0, LIST_MAX)) parts.append('point', id);
  parts.set('camera', view.camera.map((x) => x.toFixed(3)).join(','));
  parts.set('size', String(view.size));
  parts.set('opacity', String(view.opacity));
  return parts.toString();
}

/** What a link says; what it says wrong is left out. */
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
  const camera = (parts.get('camera') ?? '').split(',').map(Number);
  if (camera.length === 6 && camera.every(Number.isFinite)) view.camera = camera;
  const [colour, scheme] = [parts.get('colour'), parts.get('scheme')];
  if (colour !== null) view.colour = colour;
  if (scheme !== null) view.scheme = scheme;
  if (parts.has('hide')) view.hidden = parts.getAll('hide').slice(0, LIST_MAX);
  if (parts.has('point')) view.chosen = parts.getAll('point').slice(0, LIST_MAX);
  return view;
}
