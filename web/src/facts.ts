// What a point is in the frame that is shown: its categories, and its values as far as the frame itself has come. Pure.

import { type Dataset, MINE } from './dataset';
import { categoryKey, type Edits } from './edits';
import { lookUp } from './slots';
import { shortNumber } from './texts';
import { type FrameLine, MISSING, type Point, STEPS, type Tensors } from './wire';

export type Fact = readonly [name: string, value: string];

/** `tensors` are those of the whole frame: of a sample's points nobody knows where in it they are. */
export function factsOf(
  dataset: Dataset,
  edits: Edits,
  row: number,
  point: Point | undefined,
  line: FrameLine | undefined,
  tensors: Tensors | undefined,
): Fact[] {
  const facts: Fact[] = [];
  const at = line === undefined || tensors === undefined ? undefined : lookUp(line, tensors, row);
  for (const [name, { names, codes }] of dataset.groupings) {
    const own = tensors?.get(`group.${name}`)?.data;
    const first = name === MINE ? codes?.[row] : point?.codes.get(name);
    const code = (own !== undefined && at !== undefined ? own[at] : first) ?? MISSING;
    const category = names[code] ?? '?';
    if (code !== MISSING) facts.push([name, edits.names.get(categoryKey(name, category)) ?? category]);
  }
  for (const [name, [low, high]] of line?.values ?? []) {
    const step = at === undefined ? MISSING : (tensors?.get(`value.${name}`)?.data[at] ?? MISSING);
    if (step !== MISSING) facts.push([name, shortNumber(low + (step * (high - low)) / STEPS)]);
  }
  return facts;
}
