// Which points are where on the screen, by what lies in the graphics card.

import { GREY } from './colours';
import { css } from './palettes';
import { codeOf, colourCodeOf, countCodes, inside, nearest, positionOf, project, type Screen, type Spot } from './pick';
import type { PointScene } from './scene';
import type { Shown } from './shown';
import { ABSENT, type Slots } from './slots';

export class Seen {
  /** How long the last search for the point under the pointer took. */
  pickMs = 0;

  constructor(
    private readonly scene: PointScene,
    private readonly shown: Shown,
    private readonly slots: () => Slots,
  ) {}

  /** The row of the point under a place of the canvas. */
  pick(x: number, y: number, radius: number): number | undefined {
    const begin = performance.now();
    const slot = nearest(this.scene.between(), this.scene.screen(), this.shown.available(), x, y, radius);
    this.pickMs = performance.now() - begin;
    return slot === undefined ? undefined : this.slots().rowOf(slot);
  }

  /** The rows of the shown points within a lasso that was drawn on this screen. */
  caught(lasso: readonly number[], screen: Screen): number[] {
    const slots = inside(this.scene.between(), screen, this.shown.available(), lasso);
    return slots.map((slot) => this.slots().rowOf(slot)).sort((a, b) => a - b);
  }

  /** Whether what lies in the graphics card tells of a point: in a sample few are. */
  private isHere(row: number): boolean {
    return row < this.slots().points && this.slots().slotOf(row) < this.shown.available();
  }

  /** Where a point is, if it is there. */
  spotOf(row: number): Spot | undefined {
    const at = new Float64Array(3);
    if (!this.isHere(row) || !positionOf(this.scene.between(), this.slots().slotOf(row), at)) return undefined;
    return project(this.scene.screen(), at);
  }

  /** Whether a point is there and its group is not hidden. */
  isShown(row: number): boolean {
    if (!this.isHere(row)) return false;
    const between = this.scene.between();
    return between.shown[codeOf(between, this.slots().slotOf(row))] !== 0;
  }

  /** As CSS; grey if it is not there. */
  colourOf(row: number): string {
    if (!this.isHere(row)) return css(GREY);
    const code = colourCodeOf(this.scene.between(), this.slots().slotOf(row));
    if (code === ABSENT) return css(GREY);
    const { colours } = this.scene;
    return css([colours[code * 4], colours[code * 4 + 1], colours[code * 4 + 2]]);
  }

  /** Points in the frame that is shown, for each code of a colour; undefined while only a sample of them is there. */
  counts(): Map<number, number> | undefined {
    if (this.shown.available() < this.slots().points) return undefined;
    return countCodes(this.scene.between());
  }
}
