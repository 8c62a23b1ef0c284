// What points are coloured by, what is hidden, and what people have changed about both.

import type { Dataset } from './dataset';
import { categoryKey, type Edits, noEdits } from './edits';
import {
  categoryLook,
  css,
  DIVERGING,
  type Look,
  ORDERED,
  RAMPS,
  type Rgb,
  ramp,
  rgb,
  SCHEMES,
  SHAPES,
} from './palettes';
import { isSigned, partBelow, type Scale, scaleOf } from './scale';
import { CODES, type Colouring, NO_COLOUR } from './slots';

export const GREY: Rgb = [138, 144, 152];
const PLAIN: Rgb = [86, 150, 214];
/** What points of no category are called in the legend. */
export const NONE = '(none)';

/** A category of the grouping that points are coloured by. `name` is the data's, `title` what it is called now. */
export type Category = { name: string; title: string; colour: string; shape: string; shown: boolean; code: number };

export class Colours {
  colouring: Colouring = { kind: 'plain' };
  scheme = [...SCHEMES.keys()][0];
  /** That of the value that points are coloured by. */
  scale: Scale = scaleOf([], '');
  /** What the version that is shown changes. What is hidden is in `hidden`. */
  edits: Edits = noEdits();
  /** For each grouping the names of the categories that are hidden. */
  readonly hidden = new Map<string, Set<string>>();

  constructor(private readonly dataset: Dataset) {}

  /** Points that are drawn large, by their ids, and as what. */
  glyphs(): Map<string, string> {
    return new Map([...(this.dataset.header?.glyphs ?? []), ...this.edits.glyphs]);
  }

  valueNames(): string[] {
    return [...new Set(this.dataset.frames.flatMap((frame) => [...frame.values.keys()]))];
  }

  /** Colours by the grouping or value of that name; what there is not leaves all points alike. Whether frames must be filled anew. */
  by(name: string): boolean {
    const before = JSON.stringify(this.colouring);
    const grouping = this.dataset.groupings.get(name);
    if (grouping !== undefined) {
      // Colours of bins shall go from one end to the other as bins do, and those of sectors shall not; readers may choose another way.
      const another = this.colouring.kind !== 'grouping' || this.colouring.name !== name;
      if (another && grouping.ordered) this.scheme = ORDERED;
      else if (another && this.scheme === ORDERED) this.scheme = [...SCHEMES.keys()][0];
      this.colouring = { kind: 'grouping', name };
    } else if (this.valueNames().includes(name)) {
      const another = this.colouring.kind !== 'value' || this.colouring.name !== name;
      this.scale = scaleOf(this.dataset.frames, name);
      this.colouring = { kind: 'value', name, low: this.scale.low, high: this.scale.high };
      // What lies on both sides of 0 has colours that tell them apart; readers may choose others.
      if (another && isSigned(this.scale)) this.scheme = DIVERGING;
      else if (!RAMPS.has(this.scheme) || (another && this.scheme === DIVERGING)) this.scheme = [...RAMPS.keys()][0];
    } else this.colouring = { kind: 'plain' };
    if (this.colouring.kind !== 'value' && !SCHEMES.has(this.scheme)) this.scheme = [...SCHEMES.keys()][0];
    return before !== JSON.stringify(this.colouring) || this.colouring.kind === 'grouping';
  }

  /** The categories of the grouping that points are coloured by; the last are the points of none. */
  categories(): Category[] {
    if (this.colouring.kind !== 'grouping') return [];
    const grouping = this.colouring.name;
    const names = this.dataset.groupings.get(grouping)?.names ?? [];
    const hidden = this.hiddenNames();
    const list = names.map((name, code) => {
      const { colour, shape } = this.lookOf(grouping, name, code, names.length);
      const title = this.edits.names.get(categoryKey(grouping, name)) ?? name;
      return { name, title, code, shown: !hidden.has(name), colour: css(colour), shape: SHAPES[shape] };
    });
    const none = { name: NONE, title: NONE, code: NO_COLOUR, colour: css(GREY), shape: SHAPES[0] };
    return [...list, { ...none, shown: !hidden.has(NONE) }];
  }

  private lookOf(grouping: string, name: string, code: number, of: number): Look {
    const look = categoryLook(this.scheme, code, of);
    const own = this.edits.colours.get(categoryKey(grouping, name));
    return own === undefined ? look : { ...look, colour: rgb(own) };
  }

  hiddenNames(): Set<string> {
    const name = this.colouring.kind === 'grouping' ? this.colouring.name : '';
    const names = this.hidden.get(name) ?? new Set();
    this.hidden.set(name, names);
    return names;
  }

  show(name: string, shown: boolean): void {
    if (shown) this.hiddenNames().delete(name);
    else this.hiddenNames().add(name);
  }

  /** Shows only one category; if it is the only one already, all of them. */
  isolate(name: string): void {
    const categories = this.categories();
    const alone = categories.every((category) => category.shown === (category.name === name));
    const hidden = this.hiddenNames();
    hidden.clear();
    if (!alone) for (const category of categories) if (category.name !== name) hidden.add(category.name);
  }

  /** The names of the categories that are hidden, or of those that are shown where these are fewer. */
  visible(): { hidden: string[] } | { shown: string[] } {
    const names = (shown: boolean) =>
      this.categories().flatMap((category) => (category.shown === shown ? category.name : []));
    const [hidden, shown] = [names(false), names(true)];
    // Without any name neither would be said.
    return shown.length > 0 && shown.length < hidden.length ? { shown } : { hidden };
  }

  /** Hides these categories and no others, or shows these and no others. */
  setVisible({ hidden, shown }: { hidden?: readonly string[]; shown?: readonly string[] }): void {
    const names = this.hiddenNames();
    names.clear();
    for (const name of hidden ?? []) names.add(name);
    if (shown !== undefined) for (const { name } of this.categories()) if (!shown.includes(name)) names.add(name);
  }

  /** Takes over what a version changes. */
  setEdits(edits: Edits): void {
    this.edits = edits;
    this.hidden.clear();
    for (const key of edits.hidden.keys()) {
      const [grouping, category] = JSON.parse(key) as [string, string];
      const names = this.hidden.get(grouping) ?? new Set();
      this.hidden.set(grouping, names.add(category));
    }
  }

  /** What is changed now, what is hidden included; the view is not. */
  currentEdits(): Edits {
    const hidden = new Map<string, true>();
    for (const [grouping, names] of this.hidden)
      if (grouping !== '') for (const name of names) hidden.set(categoryKey(grouping, name), true);
    return { ...this.edits, hidden };
  }

  /** Writes the look of each code into a table of four bytes each: a colour, and 0 for what is hidden, else 255 less the shape. */
  paint(table: Uint8Array): void {
    const put = (code: number, colour: Rgb, shown: boolean, shape = 0) =>
      table.set([...colour.map(Math.round), shown ? 255 - shape : 0], code * 4);
    if (this.colouring.kind === 'grouping') {
      const grouping = this.colouring.name;
      const hidden = this.hiddenNames();
      const names = this.dataset.groupings.get(grouping)?.names ?? [];
      names.forEach((name, code) => {
        const { colour, shape } = this.lookOf(grouping, name, code, names.length);
        put(code, colour, !hidden.has(name), shape);
      });
      put(NO_COLOUR, GREY, !hidden.has(NONE));
    } else if (this.colouring.kind === 'value') {
      const stops = RAMPS.get(this.scheme) ?? [];
      const { low, high } = this.scale;
      for (let code = 0; code <= CODES; code++)
        put(code, ramp(stops, partBelow(this.scale, low + (code / CODES) * (high - low))), true);
      put(NO_COLOUR, GREY, true);
    } else put(NO_COLOUR, PLAIN, true);
  }
}
