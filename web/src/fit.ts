// From how far the whole box is seen, and in which part of the canvas: between panels, and not behind what lies in its corners. Pure.

import { Vector3 } from 'three';

/** What covers an upper corner of the canvas: how far it reaches from there, in pixels. */
export type Corner = { width: number; height: number };
/** What covers the canvas: panels at its edges, and what is in its upper corners. */
export type Margins = {
  top: number;
  right: number;
  bottom: number;
  left: number;
  corners?: { left: Corner; right: Corner };
};
/** The canvas in pixels, and the tangent of half the angle that is seen from its top to its bottom. */
export type Canvas = { width: number; height: number; tan: number };

/** What the box keeps from what covers the canvas; on its left, where the numbers of the upright axis stand, more. */
export const EDGE_PX = 24;
const NUMBER_PX = 44;
/** The box is moved to either side, and down, in so many steps until the corners are free. */
const STEPS = 6;

/** How far away, in a direction, a camera sees the box between the margins. */
export function distanceIn(half: readonly number[], direction: Vector3, canvas: Canvas, margins: Margins): number {
  const { width, height, tan } = canvas;
  const { top, right, bottom, left } = margins;
  const part = (free: number, side: number) => Math.max(0.3, free / Math.max(1, side));
  const across = tan * (width / Math.max(1, height)) * part(width - left - right, width);
  return distanceOf(half, direction, across, tan * part(height - top - bottom, height));
}

/** The margins, and the distance in them, at which the box is largest and nothing of it lies behind what is in the corners. */
export function fit(half: readonly number[], direction: Vector3, canvas: Canvas, margins: Margins) {
  const { corners } = margins;
  const first = { margins, far: distanceIn(half, direction, canvas, margins) };
  if (corners === undefined) return first;
  const lefts = steps(margins.left, corners.left.width + NUMBER_PX);
  const tops = steps(margins.top, Math.max(corners.left.height, corners.right.height) + EDGE_PX);
  const rights = steps(margins.right, corners.right.width + EDGE_PX);
  return rights
    .flatMap((right) => lefts.flatMap((left) => tops.map((top) => ({ ...margins, right, left, top }))))
    .map((margins) => ({ margins, far: distanceIn(half, direction, canvas, margins) }))
    .filter(({ margins, far }) => {
      const spots = spotsOf(half, direction, far, canvas, margins);
      const mirrored = spots.map(([x, y]) => [canvas.width - x, y] as const);
      return !isBehind(spots, corners.left, NUMBER_PX) && !isBehind(mirrored, corners.right, EDGE_PX);
    })
    .reduce((best, way) => (best === first || way.far < best.far ? way : best), first);
}

function steps(from: number, to: number): number[] {
  return Array.from({ length: STEPS + 1 }, (_, step) => from + (Math.max(0, to - from) * step) / STEPS);
}

/** Where the corners of the box are on the canvas. */
function spotsOf(half: readonly number[], direction: Vector3, far: number, canvas: Canvas, margins: Margins) {
  const { top, right, bottom, left } = margins;
  const scale = canvas.height / 2 / canvas.tan;
  return cornersOf(half, direction).map(({ near, across, above }): readonly [number, number] => [
    (left + canvas.width - right) / 2 + (scale * across) / (far - near),
    (top + canvas.height - bottom) / 2 - (scale * above) / (far - near),
  ]);
}

/** Whether a line between two of the spots comes nearer than so many pixels to what is in the upper left corner. */
function isBehind(spots: readonly (readonly [number, number])[], { width, height }: Corner, near: number): boolean {
  const away = spots.map(([x, y]) => [x - width - near, y - height - EDGE_PX]);
  // Along a line the greater of the two is least at an end, or where both are the same.
  return away.some(([x, y], i) =>
    away.slice(0, i).some(([u, v]) => {
      const at = (x - y) / (x - y - (u - v));
      const crossing = at > 0 && at < 1 ? x + (u - x) * at : Infinity;
      // Less than a pixel is rounding.
      return Math.min(Math.max(x, y), Math.max(u, v), crossing) < -1;
    }),
  );
}

/** The corners of a box around 0, seen from a direction: how near each is, and how far across and above the middle. */
function cornersOf(half: readonly number[], direction: Vector3) {
  const across = new Vector3(0, 1, 0).cross(direction).normalize();
  const above = direction.clone().cross(across);
  return [-1, 1].flatMap((u) =>
    [-1, 1].flatMap((v) =>
      [-1, 1].map((w) => {
        const corner = new Vector3(u * half[0], v * half[1], w * half[2]);
        return { near: corner.dot(direction), across: corner.dot(across), above: corner.dot(above) };
      }),
    ),
  );
}

/**
 * How far away, in a direction, a camera sees all corners of a box around 0; `right` and `up` are the tangents of the
 * angles that it sees to each side.
 */
export function distanceOf(half: readonly number[], direction: Vector3, right: number, up: number): number {
  const fars = cornersOf(half, direction).map(
    ({ near, across, above }) => near + Math.max(Math.abs(across) / right, Math.abs(above) / up),
  );
  // A single point too is looked at from somewhere.
  return Math.max(2, ...fars);
}
