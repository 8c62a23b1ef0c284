// What is drawn over the points: chosen ones with glyph and label, their trajectories, the lasso.

import type { Spot } from './pick';

export type Mark = { spot: Spot; label: string; glyph: string; colour: string };
/** A way through all frames: where it can be seen, undefined in frames without the point. */
export type Trail = { spots: readonly (Spot | undefined)[]; colour: string; now: number };

export type Drawing = {
  marks: readonly Mark[];
  trails: readonly Trail[];
  hover: Mark | undefined;
  lasso: readonly number[];
  /** What the frames are called, for the marks of time along a trail. */
  times: readonly string[];
  ink: string;
  paper: string;
};

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
/** So many marks of time along a trail. */
const TIMES = 6;

export function drawOverlay(canvas: HTMLCanvasElement, drawing: Drawing): void {
  const to = canvas.getContext('2d');
  if (to === null) return;
  const ratio = canvas.width / Math.max(1, canvas.clientWidth);
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  to.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  to.font = FONT;
  to.textBaseline = 'middle';
  for (const trail of drawing.trails) drawTrail(to, trail, drawing);
  for (const mark of drawing.marks) drawMark(to, mark, drawing);
  if (drawing.hover !== undefined) drawMark(to, drawing.hover, drawing);
  if (drawing.lasso.length >= 4) {
    to.beginPath();
    for (let i = 0; i < drawing.lasso.length; i += 2) to.lineTo(drawing.lasso[i], drawing.lasso[i + 1]);
    to.closePath();
    to.globalAlpha = 0.12;
    to.fillStyle = drawing.ink;
    to.fill();
    to.globalAlpha = 1;
    to.setLineDash([4, 4]);
    to.strokeStyle = drawing.ink;
    to.lineWidth = 1.5;
    to.stroke();
    to.setLineDash([]);
  }
}

function drawTrail(to: CanvasRenderingContext2D, trail: Trail, { times, ink, paper }: Drawing): void {
  const { spots, colour, now } = trail;
  to.lineJoin = 'round';
  // The past is strong, the future faint.
  for (const [begin, end, alpha] of [
    [Math.floor(now), spots.length, 0.3],
    [0, Math.floor(now) + 1, 0.9],
  ]) {
    to.beginPath();
    let down = false;
    for (let i = begin; i < end; i++) {
      const spot = spots[i];
      if (spot === undefined) down = false;
      else if (down) to.lineTo(spot.x, spot.y);
      else to.moveTo(spot.x, spot.y);
      down = spot !== undefined;
    }
    to.globalAlpha = alpha;
    to.strokeStyle = colour;
    to.lineWidth = 2;
    to.stroke();
  }
  const every = Math.max(1, Math.ceil(spots.length / TIMES));
  let last: Spot | undefined;
  for (let i = 0; i < spots.length; i += every) {
    const spot = spots[i];
    if (spot === undefined) continue;
    to.globalAlpha = 1;
    to.fillStyle = colour;
    to.beginPath();
    to.arc(spot.x, spot.y, 3, 0, 2 * Math.PI);
    to.fill();
    // Marks that lie on each other, or on the point's own name, cannot be read.
    const here = spots[Math.round(now)];
    if (here !== undefined && Math.hypot(here.x - spot.x, here.y - spot.y) < 40) continue;
    if (last !== undefined && Math.hypot(last.x - spot.x, last.y - spot.y) < 40) continue;
    last = spot;
    to.globalAlpha = 0.85;
    text(to, times[i] ?? '', spot.x + 6, spot.y + 8, ink, paper);
  }
  to.globalAlpha = 1;
}

function drawMark(to: CanvasRenderingContext2D, mark: Mark, { ink, paper }: Drawing): void {
  const { x, y } = mark.spot;
  outline(to, mark.glyph, x, y, 8);
  to.fillStyle = mark.colour;
  to.fill();
  to.lineWidth = 2;
  to.strokeStyle = ink;
  to.stroke();
  text(to, mark.label, x + 13, y, ink, paper);
}

function text(to: CanvasRenderingContext2D, label: string, x: number, y: number, ink: string, paper: string): void {
  to.lineWidth = 3;
  to.lineJoin = 'round';
  to.strokeStyle = paper;
  to.strokeText(label, x, y);
  to.fillStyle = ink;
  to.fillText(label, x, y);
}

function outline(to: CanvasRenderingContext2D, glyph: string, x: number, y: number, r: number): void {
  to.beginPath();
  if (glyph === 'circle') {
    to.arc(x, y, r * 0.8, 0, 2 * Math.PI);
    return;
  }
  if (glyph === 'cross') {
    const [a, b] = [r * 0.35, r];
    for (const [u, v] of [
      [-a, -b],
      [a, -b],
      [a, -a],
      [b, -a],
      [b, a],
      [a, a],
      [a, b],
      [-a, b],
      [-a, a],
      [-b, a],
      [-b, -a],
      [-a, -a],
    ])
      to.lineTo(x + u, y + v);
    to.closePath();
    return;
  }
  const corners = glyph === 'star' ? 10 : glyph === 'triangle' ? 3 : 4;
  const turn = glyph === 'square' ? Math.PI / 4 : 0;
  for (let i = 0; i < corners; i++) {
    const angle = turn - Math.PI / 2 + (2 * Math.PI * i) / corners;
    const away = glyph === 'star' && i % 2 === 1 ? r * 0.5 : r * 1.1;
    to.lineTo(x + away * Math.cos(angle), y + away * Math.sin(angle));
  }
  to.closePath();
}
