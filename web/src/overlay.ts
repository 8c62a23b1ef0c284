// What is drawn over the points: chosen ones with glyph and label, their trajectories, the axes, the lasso.

import type { AxisLabel } from './axes';
import type { Spot } from './pick';
import { cut } from './texts';

/** `radius` is that of the glyph, in pixels. */
export type Mark = { spot: Spot; label: string; glyph: string; colour: string; radius: number };
/** A way through all frames: where it can be seen, undefined in frames without the point. */
export type Trail = { spots: readonly (Spot | undefined)[]; colour: string; now: number };

export type Drawing = {
  marks: readonly Mark[];
  trails: readonly Trail[];
  hover: Mark | undefined;
  axes: readonly AxisLabel[];
  lasso: readonly number[];
  /** What the frames are called, for the marks of time along a trail. */
  times: readonly string[];
  ink: string;
  soft: string;
  paper: string;
};

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const LINE_PX = 15;
/** So many marks of time along a trail. */
const TIMES = 6;
/** Longest texts, in letters. */
const LABEL_MAX = 28;
const TIME_MAX = 20;

/** Side of the squares that boxes are sorted into, so that each is compared with its neighbours only: marks may be thousands. */
const SQUARE_PX = 64;

type Extent = { left: number; top: number; right: number; bottom: number };

/** Room on the screen: two texts in one place cannot be read, so who comes first has it. */
class Room {
  private readonly taken = new Map<number, Extent[]>();

  constructor(
    private readonly width: number,
    private readonly height: number,
  ) {}

  /** Takes the place of a glyph, whatever is there. */
  hold({ x, y }: Spot, radius: number): void {
    const box = { left: x - radius, top: y - radius, right: x + radius, bottom: y + radius };
    for (const boxes of this.squares(box)) boxes.push(box);
  }

  /** Takes a place whose left middle is at `x` and `y`; false if it is taken, or not on the screen. */
  take(x: number, y: number, width: number): boolean {
    const box = { left: x - 3, top: y - LINE_PX / 2, right: x + width + 3, bottom: y + LINE_PX / 2 };
    if (box.left < 0 || box.right > this.width || box.top < 0 || box.bottom > this.height) return false;
    const squares = this.squares(box);
    const apart = (other: Extent) =>
      box.right <= other.left || box.left >= other.right || box.bottom <= other.top || box.top >= other.bottom;
    const free = squares.every((boxes) => boxes.every(apart));
    if (free) for (const boxes of squares) boxes.push(box);
    return free;
  }

  /** What lies in the squares of the screen that a box reaches into. */
  private squares({ left, top, right, bottom }: Extent): Extent[][] {
    const clamp = (at: number, most: number) => Math.floor(Math.min(Math.max(0, at), most) / SQUARE_PX);
    const found: Extent[][] = [];
    for (let u = clamp(left, this.width); u <= clamp(right, this.width); u++)
      for (let v = clamp(top, this.height); v <= clamp(bottom, this.height); v++) {
        const key = u * 65_536 + v;
        const boxes = this.taken.get(key) ?? [];
        this.taken.set(key, boxes);
        found.push(boxes);
      }
    return found;
  }
}

function clamp(number: number, low: number, high: number): number {
  return Math.max(low, Math.min(number, high));
}

export function drawOverlay(canvas: HTMLCanvasElement, drawing: Drawing): void {
  const to = canvas.getContext('2d');
  if (to === null) return;
  const ratio = canvas.width / Math.max(1, canvas.clientWidth);
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  to.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  to.font = FONT;
  to.textBaseline = 'middle';
  const room = new Room(canvas.clientWidth, canvas.clientHeight);
  // Names of points matter most, those of the point under the pointer first; then times, then axes.
  const { hover } = drawing;
  const marks = [...(hover === undefined ? [] : [hover]), ...drawing.marks];
  for (const { spot, radius } of marks) room.hold(spot, radius);
  const names = marks.map((mark) => placed(to, room, mark));
  for (const trail of drawing.trails) drawTrail(to, trail, drawing);
  for (const trail of drawing.trails) drawTimes(to, trail, drawing, room);
  for (const { text, spots } of drawing.axes) {
    const width = to.measureText(text).width;
    for (const { x, y } of spots) {
      // A text whose place is on the screen, but not all of it, is moved in.
      const left = x < 0 || x > canvas.clientWidth ? x : clamp(x - width / 2, 3, canvas.clientWidth - width - 3);
      if (!room.take(left, y, width)) continue;
      write(to, text, left, y, drawing.soft, drawing.paper);
      break;
    }
  }
  // What was put first lies on top.
  for (let i = marks.length - 1; i >= 0; i--) drawMark(to, marks[i], drawing);
  for (const name of names) if (name !== undefined) write(to, name.text, name.x, name.y, drawing.ink, drawing.paper);
  drawLasso(to, drawing);
}

function drawLasso(to: CanvasRenderingContext2D, { lasso, ink }: Drawing): void {
  if (lasso.length < 4) return;
  to.beginPath();
  for (let i = 0; i < lasso.length; i += 2) to.lineTo(lasso[i], lasso[i + 1]);
  to.closePath();
  to.globalAlpha = 0.12;
  to.fillStyle = ink;
  to.fill();
  to.globalAlpha = 1;
  to.setLineDash([4, 4]);
  to.strokeStyle = ink;
  to.lineWidth = 1.5;
  to.stroke();
  to.setLineDash([]);
}

/** Where the name of a point has room: right of it, else left, below, above; undefined if nowhere. */
function placed(
  to: CanvasRenderingContext2D,
  room: Room,
  { spot, label, radius }: Mark,
): { text: string; x: number; y: number } | undefined {
  const text = cut(label, LABEL_MAX);
  const width = to.measureText(text).width;
  for (const [x, y] of [
    [spot.x + radius + 5, spot.y],
    [spot.x - radius - 5 - width, spot.y],
    [spot.x - width / 2, spot.y + radius + 11],
    [spot.x - width / 2, spot.y - radius - 11],
  ])
    if (room.take(x, y, width)) return { text, x, y };
  return undefined;
}

function drawTrail(to: CanvasRenderingContext2D, { spots, colour, now }: Trail, { paper }: Drawing): void {
  to.lineJoin = 'round';
  // The past is strong, the future faint.
  for (const [begin, end, alpha] of [
    [Math.floor(now), spots.length, 0.35],
    [0, Math.floor(now) + 1, 0.95],
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
    // A rim of the page's colour keeps it apart from points of the same colour.
    for (const [style, width] of [
      [paper, 4],
      [colour, 2],
    ] as const) {
      to.strokeStyle = style;
      to.lineWidth = width;
      to.stroke();
    }
  }
  to.globalAlpha = 1;
}

function drawTimes(to: CanvasRenderingContext2D, trail: Trail, { times, soft, paper }: Drawing, room: Room): void {
  const { spots, colour } = trail;
  const every = Math.max(1, Math.ceil(spots.length / TIMES));
  for (let i = 0; i < spots.length; i += every) {
    const spot = spots[i];
    if (spot === undefined) continue;
    to.fillStyle = colour;
    to.beginPath();
    to.arc(spot.x, spot.y, 3, 0, 2 * Math.PI);
    to.fill();
    const text = cut(times[i] ?? '', TIME_MAX);
    if (room.take(spot.x + 6, spot.y + 8, to.measureText(text).width))
      write(to, text, spot.x + 6, spot.y + 8, soft, paper);
  }
}

function drawMark(to: CanvasRenderingContext2D, mark: Mark, { ink }: Drawing): void {
  outline(to, mark.glyph, mark.spot.x, mark.spot.y, mark.radius);
  to.fillStyle = mark.colour;
  to.fill();
  to.lineWidth = 2;
  to.strokeStyle = ink;
  to.stroke();
}

function write(to: CanvasRenderingContext2D, text: string, x: number, y: number, ink: string, paper: string): void {
  to.lineWidth = 3;
  to.lineJoin = 'round';
  to.strokeStyle = paper;
  to.strokeText(text, x, y);
  to.fillStyle = ink;
  to.fillText(text, x, y);
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
