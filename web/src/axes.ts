// The names and ends of the box's axes, beside the edges of it that the points do not hide. Pure.

import { project, type Screen, type Spot } from './pick';
import { shortNumber } from './texts';

/** `spots`: where it may stand, best first. */
export type AxisLabel = { text: string; spots: readonly Spot[] };

/** How far from its edge a label is, in pixels. */
const AWAY_PX = 16;
/** How far from the end of its edge a number may stand, in parts of the edge: at a corner two edges end. */
const FROM_END = [0.04, 0.09, 0.14, 0.19, 0.24];

/** Labels of a box with its middle at 0 and these half sides, in the world; `low` and `high` are its ends in the data. */
export function axisLabels(
  screen: Screen,
  half: readonly number[],
  low: readonly number[],
  high: readonly number[],
  names: readonly string[],
): AxisLabel[] {
  const middle = project(screen, [0, 0, 0]);
  if (middle === undefined) return [];
  return [0, 1, 2].flatMap((axis) => {
    // An axis along which nothing lies is a point, or a direction in which a plane has no depth.
    if (half[axis] <= 0) return [];
    const edge = outermost(screen, half, axis);
    if (edge === undefined) return [];
    const [begin, end] = edge;
    const [dx, dy] = [(begin.x + end.x) / 2 - middle.x, (begin.y + end.y) / 2 - middle.y];
    const far = Math.hypot(dx, dy) || 1;
    // At `part` of the edge, and then away from the middle of the box.
    const at = (part: number): Spot => ({
      x: begin.x + (end.x - begin.x) * part + (dx / far) * AWAY_PX,
      y: begin.y + (end.y - begin.y) * part + (dy / far) * AWAY_PX,
      depth: begin.depth,
    });
    // Seen from its end an edge has no room for three texts.
    if (Math.hypot(end.x - begin.x, end.y - begin.y) < 90) return [{ text: names[axis], spots: [at(0.5)] }];
    return [
      { text: names[axis], spots: [at(0.5)] },
      { text: shortNumber(low[axis]), spots: FROM_END.map(at) },
      { text: shortNumber(high[axis]), spots: FROM_END.map((part) => at(1 - part)) },
    ];
  });
}

/** Of the four edges along an axis the lowest on the screen, or for the upright axis the leftmost. */
function outermost(screen: Screen, half: readonly number[], axis: number): readonly [Spot, Spot] | undefined {
  let best: readonly [Spot, Spot] | undefined;
  let least = Infinity;
  const [b, c] = [(axis + 1) % 3, (axis + 2) % 3];
  for (const u of [-1, 1])
    for (const v of [-1, 1]) {
      const corner = (w: number) => {
        const at = [0, 0, 0];
        [at[axis], at[b], at[c]] = [w * half[axis], u * half[b], v * half[c]];
        return project(screen, at);
      };
      const [begin, end] = [corner(-1), corner(1)];
      // An edge that reaches behind the camera has no place on the screen.
      if (begin === undefined || end === undefined) continue;
      const cost = axis === 1 ? begin.x + end.x : -(begin.y + end.y);
      if (cost < least) [best, least] = [[begin, end], cost];
    }
  return best;
}
