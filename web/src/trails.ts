// The ways of chosen points through all frames.

import type { Source } from './loader';
import type { Trail } from './overlay';
import { project } from './pick';
import type { PointScene } from './scene';
import type { Parsed } from './wire';

export class Trails {
  /** Three numbers for each frame and point, NaN where one is not there; undefined until they have come. */
  places: Float32Array | undefined;
  private frames = 0;
  private asked: readonly number[] = [];

  clear(): void {
    this.places = undefined;
    this.asked = [];
  }

  /** Fetches the ways of these rows; false if others were asked for meanwhile. */
  async load(source: Source, rows: readonly number[]): Promise<Parsed<boolean>> {
    this.asked = rows;
    const got = await source.trajectories(rows);
    if (rows !== this.asked) return { ok: true, value: false };
    if (!got.ok) return got;
    this.places = got.value;
    this.frames = got.value.length / 3 / rows.length;
    return { ok: true, value: true };
  }

  /** Where the ways are on the screen. */
  seen(rows: readonly number[], scene: PointScene, now: number, colourOf: (row: number) => string): Trail[] {
    const { places, frames } = this;
    if (places === undefined) return [];
    const screen = scene.screen();
    return rows.map((row, k) => {
      const spots = Array.from({ length: frames }, (_, frame) => {
        const at = places.subarray((frame * rows.length + k) * 3, (frame * rows.length + k) * 3 + 3);
        return Number.isNaN(at[0]) ? undefined : project(screen, scene.toWorld(at));
      });
      return { spots, colour: colourOf(row), now };
    });
  }
}
