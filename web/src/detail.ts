// Level of detail: how many points are drawn. While things move, as many as there is time for; at rest, all of them, a
// part in each picture. Pure.

/** Longest that a picture may take while things move, and below which there is time for more. */
const SLOW_MS = 34;
const FAST_MS = 22;
const LEAST = 20_000;

export type Detail = {
  /** Points that there is time for. */
  budget: number;
  /** Points that are drawn since things came to rest, of those in the buffer. */
  drawn: number;
};

/** What to draw next, from slot `begin` on; the picture is cleared first where `clear` is set. */
export type Part = { begin: number; count: number; clear: boolean };

export function startDetail(): Detail {
  return { budget: 250_000, drawn: 0 };
}

/** The part to draw now, or undefined if the picture is complete. `moving`: what was drawn is no longer true. */
export function nextPart(detail: Detail, points: number, moving: boolean): Part | undefined {
  if (moving) return { begin: 0, count: Math.min(points, detail.budget), clear: true };
  if (detail.drawn >= points) return undefined;
  return { begin: detail.drawn, count: Math.min(points - detail.drawn, detail.budget), clear: detail.drawn === 0 };
}

/** After a part was drawn; `tookMs` is the time between two pictures in a row, undefined if there were none. */
export function after(detail: Detail, part: Part, points: number, tookMs: number | undefined): Detail {
  let budget = detail.budget;
  if (tookMs !== undefined && part.clear) {
    if (tookMs > SLOW_MS)
      budget = Math.max(LEAST, Math.round(Math.min(budget, points) * Math.max(0.2, SLOW_MS / tookMs)));
    else if (tookMs < FAST_MS && budget < points) budget = Math.round(budget * 1.15);
  }
  return { budget, drawn: part.begin + part.count };
}
